"""What an event costs does not grow with the number of nodes. Counted in lines of Python, not in seconds.

Names are a kind of text that counts too: where C code sorts or hashes every node, it runs lines of ``Name``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import islice, pairwise
from types import FrameType
from typing import Any

import numpy as np
import pytest

from shoal.learning.layout import Layout
from shoal.plan import Plan
from shoal.roles.actions import Action, Send
from shoal.roles.events import Asked, Event, Liveness, PeerChanged, Received, Saved, Started, TimerFired
from shoal.roles.leader.leader import Leader
from shoal.roles.leader.leases import TICK_S
from shoal.roles.leader.workers import (
    BORED_AFTER_S,
    CHOOSE_EVERY_S,
    TOLD_AGAIN_MAX,
    VIEWS_MAX,
    VIOLATIONS_MAX,
    WAIT_EVERY_S,
    Workers,
)
from shoal.roles.machine import Machine
from shoal.roles.manager.manager import Manager
from shoal.roles.node.failure_detector import FailureDetector, Patience
from shoal.states import WorkerState
from shoal.wire.messages import Dataset, Facts, Heartbeat, Hello, JobSpec, Message, Ready, Submit, Update, Wait, Work

FEW, MANY = 2_000, 8_000
SHA = "0" * 64


class Name(str):
    """A node's name that is seen to be compared and hashed."""

    __slots__ = ()

    def __lt__(self, other: str) -> bool:
        return str.__lt__(self, other)

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        return str.__hash__(self)


def lines(do: Callable[[], object]) -> int:
    """How many lines of Python run. A loop counts each time around."""
    count = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)
    return count


def names(count: int) -> list[Name]:
    return [Name(f"n{number:05}") for number in range(count)]


def spec(*, examples: int, workers_max: int = 2 * MANY) -> JobSpec:
    return JobSpec(
        job="digits",
        name="digits",
        entry="task:Digits",
        bundle=SHA,
        initial=SHA,
        train=Dataset(manifest=SHA, examples=examples),
        test=Dataset(),
        plan=Plan(batch_size=1, workers_max=workers_max, checkpoint_every_s=1e6),
    )


class Lead:
    """A leader and its clock."""

    def __init__(self, *, examples: int) -> None:
        layout = Layout.of([("w", (2,), "parameter")])
        model = np.zeros(2, dtype=np.float32)
        job = spec(examples=examples)
        self.leader = Leader(spec=job, layout=layout, model=model, term=1, manager="home")
        self.now_s = 0.0
        self.works: dict[str, Work] = {}
        self.waits: list[tuple[str, str]] = []
        self.happens(Started())
        self.happens(Saved(version=0))

    def happens(self, event: Event) -> list[Action]:
        actions = self.leader.handle(event, self.now_s)
        sends = [action for action in actions if isinstance(action, Send)]
        self.works |= {send.to: send.message for send in sends if isinstance(send.message, Work)}
        self.waits = [(send.to, send.message.reason) for send in sends if isinstance(send.message, Wait)]
        return actions

    def update(self, node: str) -> Received:
        work = self.works.pop(node)
        delta = {"delta": np.ones(2, dtype=np.float32)}
        update = Update(job="digits", term=1, lease=work.lease, version=work.version, examples=1, tensors=delta)
        return Received(sender=node, message=update)

    def ready(self, node: str) -> Received:
        return Received(sender=node, message=Ready(job="digits"))

    def tick(self) -> None:
        self.now_s += TICK_S
        self.happens(TimerFired(name="tick"))

    def costs(self, event: Event) -> int:
        return lines(lambda: self.leader.handle(event, self.now_s))

    def cheapest_tick(self) -> int:
        """Whom to show is chosen anew on one tick in a few; the others must be cheap."""
        costs = []
        for _ in range(int(CHOOSE_EVERY_S / TICK_S) + 1):
            self.now_s += TICK_S
            costs.append(self.costs(TimerFired(name="tick")))
        return min(costs)


# Who is alive --------------------------------------------------------------------------------------


def members_of(count: int, *, silent_s: float = 0.0) -> FailureDetector:
    members = FailureDetector(Patience())
    for node in names(count):
        members.on_heard(node, 0.0)
    members.check(silent_s)
    return members


def heartbeat(count: int) -> int:
    members = members_of(count)
    return lines(lambda: members.on_heard(Name("n00700"), 1.0))


def check_of_the_living(count: int) -> int:
    members = members_of(count)
    return lines(lambda: members.check(2.5))


def check_of_suspects(count: int) -> int:
    members = members_of(count, silent_s=4.0)
    return lines(lambda: members.check(4.5))


def check_of_the_lost(count: int) -> int:
    members = members_of(count, silent_s=9.0)
    return lines(lambda: members.check(9.5))


def check_of_the_disconnected(count: int) -> int:
    members = members_of(count)
    for node in names(count):
        members.on_closed(node, 1.0, reason="reset")
    return lines(lambda: members.check(2.0))


# Who works where -----------------------------------------------------------------------------------


def manager_of(count: int, *, most: int = 2 * MANY) -> Manager:
    manager = Manager(node="home", patience=Patience())
    manager.handle(Started(), 0.0)
    for node in names(count):
        manager.handle(hello(node), 0.0)
    manager.handle(Asked(question=1, message=Submit(spec=spec(examples=1, workers_max=most))), 0.0)
    return manager


def hello(node: str) -> Received:
    return received(node, Hello(node=node, incarnation="1", facts=Facts(torch="2")))


def received(node: str, message: Message) -> Received:
    return Received(sender=node, message=message)


def manager_hello(count: int) -> int:
    manager, event = manager_of(count), hello(Name("zz"))
    return lines(lambda: manager.handle(event, 0.0))


def manager_hello_when_the_job_is_full(count: int) -> int:
    manager, event = manager_of(count, most=count // 2), hello(Name("zz"))
    return lines(lambda: manager.handle(event, 0.0))


def manager_loses_a_worker(count: int) -> int:
    # Another takes its place: there are free ones.
    manager = manager_of(count, most=count // 2)
    event = PeerChanged(node=Name("n00700"), state=Liveness.LOST, reason="silent")
    return lines(lambda: manager.handle(event, 0.0))


def manager_heartbeat(count: int) -> int:
    manager, event = manager_of(count), received(Name("n00700"), Heartbeat(seq=1))
    return lines(lambda: manager.handle(event, 0.0))


# Who trains ----------------------------------------------------------------------------------------


def all_but_one_rest(count: int) -> Lead:
    """A round in which one worker has not answered, and everyone has been told who."""
    lead = Lead(examples=3 * count)
    crew = names(count)
    for node in crew:
        lead.happens(lead.ready(node))
    for node in crew[:-2]:
        lead.happens(lead.update(node))
    for _ in range(4):
        lead.tick()
    return lead


def nothing_is_free(count: int) -> Lead:
    """One batch an epoch: one worker has it, everyone else is ready."""
    lead = Lead(examples=1)
    for node in names(count):
        lead.happens(lead.ready(node))
    for _ in range(4):
        lead.tick()
    return lead


def update_in_a_round(count: int) -> int:
    lead = all_but_one_rest(count)
    return lead.costs(lead.update(names(count)[-2]))


def tick_of_those_who_rest(count: int) -> int:
    return all_but_one_rest(count).cheapest_tick()


def tick_of_those_who_wait(count: int) -> int:
    return nothing_is_free(count).cheapest_tick()


def tick_while_all_work(count: int) -> int:
    lead = Lead(examples=count + 1)
    for node in names(count):
        lead.happens(lead.ready(node))
    # One gets the last batch, two wait: they are told who has the leases.
    for node in ("zx", "zy", "zz"):
        lead.happens(lead.ready(Name(node)))
    for _ in range(4):
        lead.tick()
    return lead.cheapest_tick()


def ready_when_nothing_is_free(count: int) -> int:
    lead = nothing_is_free(count)
    return lead.costs(lead.ready(Name("zz")))


def loss_of_one_who_rests(count: int) -> int:
    lead = all_but_one_rest(count)
    return lead.costs(PeerChanged(node=Name("n00700"), state=Liveness.LOST, reason="silent"))


def version_of_one_among_many(count: int) -> int:
    """The batch comes back, an epoch ends, and the next in line has the only batch of the next."""
    lead = nothing_is_free(count)
    return lead.costs(lead.update(next(iter(lead.works))))


@pytest.mark.parametrize(
    "cost",
    [
        heartbeat,
        check_of_the_living,
        check_of_suspects,
        check_of_the_lost,
        check_of_the_disconnected,
        manager_hello,
        manager_hello_when_the_job_is_full,
        manager_loses_a_worker,
        manager_heartbeat,
        update_in_a_round,
        tick_of_those_who_rest,
        tick_of_those_who_wait,
        tick_while_all_work,
        ready_when_nothing_is_free,
        loss_of_one_who_rests,
        version_of_one_among_many,
    ],
)
def test_an_event_costs_the_same_among_four_times_as_many(cost: Callable[[int], int]) -> None:
    few, many = cost(FEW), cost(MANY)
    assert 0 < many < 1.5 * few


def test_the_count_sees_what_c_code_does_with_every_name() -> None:
    crew = dict.fromkeys(names(1000))
    assert lines(lambda: sorted(crew)) > 900
    assert lines(lambda: [name for name in crew]) > 900  # noqa: C416
    assert lines(lambda: set(crew)) < 900, "a set takes a dictionary's hashes over"


# No storm of words ---------------------------------------------------------------------------------


def test_a_wait_is_explained_once_and_then_seldom_and_to_few_at_a_time() -> None:
    count = 3 * TOLD_AGAIN_MAX
    lead = Lead(examples=1)
    crew = names(count)
    for node in crew:
        lead.happens(lead.ready(node))
    (holder,) = lead.works
    told: dict[str, list[float]] = {node: [] for node in crew}
    for _ in range(int(3 * WAIT_EVERY_S / TICK_S)):
        # The holder is lost and another has the batch: who is waited for changes all the time.
        lead.happens(PeerChanged(node=holder, state=Liveness.LOST, reason="silent"))
        holder = list(lead.works)[-1]
        lead.tick()
        for node, reason in lead.waits:
            assert reason == f"the end of epoch 1 waits for {holder}"
            told[node].append(lead.now_s)
        if lead.now_s > BORED_AFTER_S + TICK_S:
            assert len(lead.waits) <= TOLD_AGAIN_MAX
        shown = [member.reason for member in islice(lead.leader._workers.idle(), VIEWS_MAX)]
        if lead.now_s > BORED_AFTER_S:
            assert set(shown) == {f"the end of epoch 1 waits for {holder}"}, "what people see is as it is now"
    waiting = [times for node, times in told.items() if lead.leader._workers.is_idle(node)]
    assert len(waiting) > TOLD_AGAIN_MAX
    for times in waiting:
        assert times[0] == BORED_AFTER_S + TICK_S
        assert len(times) == 3
        assert all(later - earlier >= WAIT_EVERY_S for earlier, later in pairwise(times))


def test_one_who_is_left_out_hears_why_though_nothing_is_free() -> None:
    lead = Lead(examples=2)
    for node in ("a", "b", "c"):
        lead.happens(lead.ready(node))
    liar = lead.leader._workers.get("c")
    assert liar is not None
    for _ in range(VIOLATIONS_MAX):
        lead.leader._workers.on_violation(liar, "not finite")
    lead.leader._workers.make_idle(liar)
    lead.tick()
    assert lead.waits == [("c", f"left out after {VIOLATIONS_MAX} refused updates: not finite")]
    lead.tick()
    lead.tick()
    assert lead.waits == [], "once"


def test_of_a_large_crew_those_shown_are_chosen_now_and_then() -> None:
    machine = Machine()
    crew = Workers(machine, job="digits")
    for node in names(VIEWS_MAX + 50):
        crew.add(node)
    assert crew.views(typical_s=1.0)[0].node == "n00000"
    failing = crew.get("n00240")
    assert failing is not None
    failing.failures = 1
    crew.remove("n00000")
    machine.now_s = CHOOSE_EVERY_S - 0.1
    views = crew.views(typical_s=1.0)
    assert [view.node for view in views[:2]] == ["n00001", "n00002"], "whoever went is not shown"
    machine.now_s = CHOOSE_EVERY_S
    views = crew.views(typical_s=1.0)
    assert [view.node for view in views[:2]] == ["n00240", "n00001"]
    assert len(views) == VIEWS_MAX


# First ready, first served -------------------------------------------------------------------------


def line_of(crew: Workers) -> list[str]:
    """Who is served in which order."""
    served = []
    while (member := crew.first_in_line()) is not None:
        served.append(member.node)
        crew.make_busy(member, WorkerState.WORKING)
    return served


def test_those_who_rest_keep_their_turn() -> None:
    crew = Workers(Machine(), job="digits")
    members = [crew.add(node) for node in ("d", "c", "b", "a")]
    for member in members:
        crew.make_idle(member)
    crew.rest(members[0])
    crew.rest(members[2])
    first = crew.first_in_line()
    assert first is members[1]
    assert [member.node for member in crew.idle()] == ["d", "c", "b", "a"], "they are idle all the same"
    crew.release()
    assert line_of(crew) == ["d", "c", "b", "a"]


def test_asking_again_keeps_the_turn_and_ends_the_rest() -> None:
    crew = Workers(Machine(), job="digits")
    for node in ("a", "b", "c"):
        crew.make_idle(crew.add(node))
    a = crew.get("a")
    assert a is not None
    crew.rest(a)
    crew.make_idle(a)
    crew.remove("b")
    first = crew.first_in_line()
    assert first is a
    crew.make_busy(a, WorkerState.WORKING)
    crew.release()
    assert line_of(crew) == ["c"], "who works does not rest"


def test_a_line_does_not_remember_all_who_ever_stood_in_it() -> None:
    crew = Workers(Machine(), job="digits")
    waiting = crew.add("first")
    crew.make_idle(waiting)
    for _ in range(1000):
        for node in ("x", "y"):
            crew.make_idle(crew.add(node))
        crew.remove("x")
        crew.remove("y")
    assert len(crew._line._heap) < 100
    assert line_of(crew) == ["first"]
