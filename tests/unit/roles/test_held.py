"""Nodes that an operator holds back: they get nothing new, keep the lease they have, and lose no work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from shoal.learning.layout import Layout
from shoal.roles.actions import Action, Record, Send
from shoal.roles.events import Asked, Event, Heard, Liveness, MemberHeld, PeerChanged, Received, Saved, Started
from shoal.roles.leader.leader import Leader
from shoal.roles.manager.cluster_state import JobRecord
from shoal.roles.manager.manager import Manager
from shoal.roles.node.failure_detector import Patience
from shoal.roles.node.host_router import HostRouter, ToLeader, ToManager
from shoal.states import JobState
from shoal.wire.messages import (
    Assign,
    Dismiss,
    Facts,
    Failed,
    Finished,
    Heartbeat,
    Hello,
    JobSpec,
    Message,
    Ready,
    Release,
    Released,
    Submit,
    Update,
    Welcome,
    Work,
)

M = TypeVar("M", bound=Message)
Make = Callable[..., JobSpec]


def told(actions: list[Action], node: str, kind: type[M]) -> list[M]:
    sent = [action.message for action in actions if isinstance(action, Send) and action.to == node]
    return [message for message in sent if isinstance(message, kind)]


class Office:
    """A manager with one job, and what it just did."""

    def __init__(self, spec: JobSpec, *nodes: str, held: dict[str, str] | None = None) -> None:
        self.manager = Manager(node="home", patience=Patience(), held=held)
        self.happens(Started())
        self.happens(Asked(question=1, message=Submit(spec=spec)))
        for node in nodes:
            self.hello(node)

    def happens(self, event: Event) -> list[Action]:
        self.actions = self.manager.handle(event, 0.0)
        return self.actions

    def says(self, node: str, message: Message) -> list[Action]:
        return self.happens(Received(sender=node, message=message))

    def hello(self, node: str) -> None:
        self.says(node, Hello(node=node, incarnation="1", facts=Facts(torch="2.11")))

    def hold(self, node: str, hold: str) -> None:
        self.happens(MemberHeld(node=node, hold=hold))

    def released(self, node: str, *, job: str = "digits", term: int = 1, sender: str = "home") -> None:
        self.says(sender, Released(job=job, term=term, node=node))

    def told(self, node: str, kind: type[M]) -> list[M]:
        return told(self.actions, node, kind)

    @property
    def working(self) -> list[str]:
        return [view.node for view in self.manager.node_views() if view.job]


# The manager ---------------------------------------------------------------------------------------


def test_a_newcomer_gets_no_role_before_it_is_approved(make_spec: Make) -> None:
    office = Office(make_spec(), held={"a": "pending"})
    office.hello("a")
    assert office.working == []
    (welcome,) = office.told("a", Welcome)
    assert "waits for an operator to approve it (`shoal nodes approve`)" in welcome.reason
    office.hold("a", "")
    assert [assign.job for assign in office.told("a", Assign)] == ["digits"]


def test_one_who_is_held_before_it_comes_is_held_when_it_comes(make_spec: Make) -> None:
    office = Office(make_spec())
    office.hold("a", "pending")
    office.hello("a")
    assert office.working == []


def test_an_ordinary_node_is_welcomed_without_more_words(make_spec: Make) -> None:
    office = Office(make_spec(), "a")
    assert [welcome.reason for welcome in office.told("a", Welcome)] == [""]


def test_draining_goes_through_the_leader_and_the_node_hears_nothing_yet(make_spec: Make) -> None:
    office = Office(make_spec(), "a")
    office.hold("a", "drained")
    (release,) = office.told("home", Release)
    assert (release.job, release.node) == ("digits", "a")
    assert not office.told("a", Dismiss), "that would cost the lease it has"
    assert office.working == ["a"]
    assert office.happens(MemberHeld(node="a", hold="drained")) == [], "once is enough"


def test_its_place_goes_to_another_when_its_leader_has_let_it_go(make_spec: Make) -> None:
    office = Office(make_spec(workers_max=1), "a", "b")
    office.hold("a", "drained")
    assert office.working == ["a"]
    office.released("a")
    assert office.working == ["b"]
    office.says("a", Heartbeat(seq=1))
    office.released("b")
    office.happens(Heard(beats=(("b", 0.0, Heartbeat(seq=1, is_same=True)),)))
    assert office.working == ["b"], "b was not held; a is still"


@pytest.mark.parametrize("wrong", [{"sender": "a"}, {"sender": "b"}, {"term": 2}, {"job": "other"}])
def test_only_its_leader_lets_a_node_go(make_spec: Make, wrong: dict[str, Any]) -> None:
    office = Office(make_spec(), "a")
    office.hold("a", "drained")
    office.released("a", **wrong)
    assert office.actions == []
    assert office.working == ["a"]


def test_one_who_is_let_go_on_gets_work_once_it_was_heard(make_spec: Make) -> None:
    office = Office(make_spec(), "a")
    office.hold("a", "drained")
    office.released("a")
    office.hold("a", "")
    # What its leader said last and a new role take different ways: the role must not overtake.
    assert office.working == []
    office.says("a", Heartbeat(seq=1))
    assert [assign.job for assign in office.told("a", Assign)] == ["digits"]


def test_one_who_is_let_go_on_at_its_last_lease_is_assigned_anew_after_it(make_spec: Make) -> None:
    office = Office(make_spec(), "a")
    office.hold("a", "drained")
    office.hold("a", "")
    assert not office.told("a", Assign), "it still works there"
    office.released("a")
    office.says("a", Heartbeat(seq=1))
    assert [assign.job for assign in office.told("a", Assign)] == ["digits"]


def test_a_drained_node_that_reconnects_keeps_its_lease(make_spec: Make) -> None:
    office = Office(make_spec(), "a")
    office.hold("a", "drained")
    office.happens(PeerChanged(node="a", state=Liveness.SUSPECT, reason="reset"))
    office.hello("a")
    assert [assign.job for assign in office.told("a", Assign)] == ["digits"]
    assert not office.told("a", Dismiss)


def test_a_drained_node_that_was_lost_comes_back_to_nothing(make_spec: Make) -> None:
    office = Office(make_spec(), "a")
    office.hold("a", "drained")
    office.happens(PeerChanged(node="a", state=Liveness.LOST, reason="silent"))
    office.hello("a")
    assert office.working == []
    assert [dismiss.job for dismiss in office.told("a", Dismiss)] == ["digits"]


def test_a_manager_that_returns_remembers_whom_it_holds(make_spec: Make) -> None:
    manager = Manager(
        node="home",
        patience=Patience(),
        jobs=[JobRecord(spec=make_spec(), state=JobState.RUNNING, term=1)],
        held={"a": "drained"},
    )
    manager.handle(Started(), 0.0)
    hello = Hello(node="a", incarnation="1", facts=Facts(torch="2.11"))
    actions = manager.handle(Received(sender="a", message=hello), 0.0)
    assert told(actions, "a", Assign) == []
    assert told(actions, "a", Welcome)


# The leader ----------------------------------------------------------------------------------------


class Story:
    """A leader and what it just did."""

    def __init__(self, spec: JobSpec) -> None:
        layout = Layout.of([("w", (2,), "parameter")])
        model = np.zeros(2, dtype=np.float32)
        self.leader = Leader(spec=spec, layout=layout, model=model, term=1, manager="home")
        self.happens(Started())
        self.happens(Saved(version=0))

    def happens(self, event: Event) -> list[Action]:
        self.actions = self.leader.handle(event, 100.0)
        self.leader._training.ledger.check()
        return self.actions

    def says(self, node: str, message: Message) -> list[Action]:
        return self.happens(Received(sender=node, message=message))

    def work(self, node: str) -> Work:
        self.says(node, Ready(job="digits"))
        (work,) = told(self.actions, node, Work)
        return work

    def release(self, node: str, *, sender: str = "home") -> None:
        self.says(sender, Release(job="digits", node=node, reason="is drained"))

    def update(self, node: str, work: Work) -> None:
        delta = np.ones(2, dtype=np.float32)
        self.says(
            node,
            Update(
                job="digits",
                term=1,
                lease=work.lease,
                version=work.version,
                examples=1,
                loss_sum=0.5,
                tensors={"delta": delta},
            ),
        )

    def let_go(self, node: str) -> bool:
        gone = told(self.actions, "home", Released) == [Released(job="digits", term=1, node=node)]
        assert gone == bool(told(self.actions, node, Finished)), "both hear of it, or neither"
        return gone


def test_a_worker_with_a_lease_goes_when_its_update_is_merged_and_gets_no_other(make_spec: Make) -> None:
    story = Story(make_spec())
    work = story.work("a")
    story.release("a")
    assert not story.let_go("a")
    story.update("a", work)
    assert story.let_go("a")
    assert story.leader.version == 1, "what it trained counts"
    assert told(story.actions, "a", Work) == []
    assert [
        record.reason for record in story.actions if isinstance(record, Record) and record.kind == "device.released"
    ] == ["a is drained"]
    assert not [a for a in story.actions if isinstance(a, Record) and a.kind == "lease.returned"]


def test_a_worker_without_a_lease_goes_at_once(make_spec: Make) -> None:
    story = Story(make_spec(workers_min=2))
    story.says("a", Ready(job="digits"))
    story.release("a")
    assert story.let_go("a")


def test_a_worker_that_is_still_fetching_the_task_is_told_too(make_spec: Make) -> None:
    story = Story(make_spec())
    story.release("a")
    assert story.let_go("a")


def test_a_worker_whose_last_lease_fails_goes_as_well(make_spec: Make) -> None:
    story = Story(make_spec())
    work = story.work("a")
    story.release("a")
    story.says("a", Failed(job="digits", term=1, lease=work.lease, reason="out of memory"))
    assert story.let_go("a")


def test_a_worker_that_is_lost_at_its_last_lease_is_gone(make_spec: Make) -> None:
    story = Story(make_spec())
    story.work("a")
    story.release("a")
    story.happens(PeerChanged(node="a", state=Liveness.LOST, reason="silent"))
    assert story.let_go("a")


def test_the_others_go_on_and_one_who_returns_works_again(make_spec: Make) -> None:
    story = Story(make_spec())
    first, second = story.work("a"), story.work("b")
    story.release("a")
    story.update("a", first)
    assert story.let_go("a")
    story.update("b", second)
    assert told(story.actions, "b", Work)
    assert not told(story.actions, "a", Work)
    assert story.work("a"), "the manager gave it its role again"


def test_only_the_manager_sends_workers_home(make_spec: Make) -> None:
    story = Story(make_spec())
    work = story.work("a")
    story.release("a", sender="b")
    story.update("a", work)
    assert not story.let_go("a")
    assert told(story.actions, "a", Work)


# Between them --------------------------------------------------------------------------------------


def test_both_are_carried_on_the_managers_own_node(make_spec: Make) -> None:
    board = HostRouter(node="home", patience=Patience())
    release, released = Release(job="digits", node="a"), Released(job="digits", term=1, node="a")
    assert board.on_send("home", release) == [], "nobody leads it here any more"
    assign = Assign(job="digits", role="leader", term=1, leader="home", spec=make_spec())
    board.on_send("home", assign)
    assert board.on_send("home", release) == [ToLeader("digits", Received(sender="home", message=release))]
    assert board.on_send("home", released) == [ToManager(Received(sender="home", message=released))]
