"""A broker alone: how it places tasks, what it refuses, and what it does about held and lost executors."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from shoal.offload.kinds import digest_of
from shoal.offload.roles.broker import STALE_LEAST_S, Broker
from shoal.roles.actions import Action, Record, Send
from shoal.roles.events import Connected, Disconnected, Liveness, MemberHeld, PeerChanged, Received, TimerFired
from shoal.wire.messages import (
    AskPool,
    Caught,
    Forget,
    Lend,
    Measure,
    Message,
    NeedOperand,
    Pool,
    RightOperand,
    TileResult,
    TileTask,
)

LEFT = np.arange(12, dtype=np.float32).reshape(4, 3)
RIGHT = np.arange(6, dtype=np.float32).reshape(3, 2)
NAMED = digest_of(RIGHT)


class Desk:
    """A broker, and the actions it took last."""

    def __init__(self, *nodes: str, held: dict[str, str] | None = None) -> None:
        self.broker = Broker(held=held)
        self.now_s = 0.0
        self.records: list[Record] = []
        self.connect(*nodes)

    def told(self, event: Any, after_s: float = 0.0) -> list[tuple[str, Message]]:
        self.now_s += after_s
        actions: list[Action] = self.broker.handle(event, self.now_s)
        self.records += [action for action in actions if isinstance(action, Record)]
        return [(action.to, action.message) for action in actions if isinstance(action, Send)]

    def hears(self, sender: str, message: Message, after_s: float = 0.0) -> list[tuple[str, Message]]:
        return self.told(Received(sender=sender, message=message), after_s)

    def connect(self, *nodes: str) -> None:
        """Each is measured: a millisecond there and back, and so long for each million of operations."""
        for node in nodes:
            said = self.told(Connected(node=node))
            while said and isinstance(said[-1][1], Measure):
                measure = said[-1][1]
                took_s = 0.001 + measure.rows**3 / 1e9
                lend = Lend(number=measure.number, seconds=0.0, task_max_bytes=1 << 20, rights_max_bytes=1 << 20)
                said = [item for item in self.hears(node, lend, took_s) if item[0] == node]

    def states(self) -> dict[str, str]:
        return {view.node: view.state for view in self.broker.views()}

    def borrow(self, client: str = "op/1") -> Pool:
        ((to, pool),) = self.hears(client, AskPool())
        assert to == client
        assert isinstance(pool, Pool)
        return pool


def task(number: int = 1, **changes: Any) -> TileTask:
    plain = TileTask(
        task=number, kind="tile", right=NAMED, rows=4, inner=3, columns=2, deadline_s=30.0, tensors={"left": LEFT}
    )
    return dataclasses.replace(plain, **changes)


def right(array: np.ndarray = RIGHT) -> RightOperand:
    return RightOperand(right=NAMED, tensors={"right": array})


def result(given: Message, value: float = 0.0) -> TileResult:
    assert isinstance(given, TileTask)
    return TileResult(task=given.task, tensors={"result": np.full((4, 2), value, dtype=np.float32)})


def kinds(said: list[tuple[str, Message]]) -> list[tuple[str, str]]:
    return [(to, type(message).__name__) for to, message in said]


def test_an_executor_is_measured_by_the_brokers_clock() -> None:
    desk = Desk("pi")
    view = desk.broker.views()[0]
    # 10^9 a second were said by the clock of this test; what the executor says of itself is not asked.
    assert view.multiply_adds_per_s == pytest.approx(1e9, rel=0.05)
    assert view.latency_s == pytest.approx(0.001, rel=0.1)
    pool = desk.borrow()
    assert (pool.executors, pool.window) == (1, 5)


def test_a_right_side_is_asked_for_once_and_passed_on() -> None:
    desk = Desk("pi")
    desk.borrow()
    assert desk.hears("op/1", task(1)) == [("op/1", NeedOperand(right=NAMED))]
    assert desk.hears("op/1", task(2)) == []
    assert kinds(desk.hears("op/1", right())) == [("pi", "RightOperand"), ("pi", "TileTask"), ("pi", "TileTask")]
    assert kinds(desk.hears("pi", NeedOperand(right=NAMED))) == [("pi", "RightOperand")], "it let go of it"


def test_a_right_side_that_is_not_what_its_name_says_is_kept_for_nobody() -> None:
    desk = Desk("pi")
    desk.borrow()
    desk.hears("op/1", task(1))
    ((to, refusal),) = desk.hears("op/1", right(RIGHT + 1))
    assert to == "op/1"
    assert isinstance(refusal, TileResult)
    assert "not the one that was named" in refusal.reason
    assert desk.hears("op/1", task(2)) == [("op/1", NeedOperand(right=NAMED))]
    desk.borrow("other/2")
    assert desk.hears("other/2", right()) == [], "and what nobody asked for is not taken"


def test_one_result_counts_when_two_have_the_task() -> None:
    desk = Desk("a", "b")
    desk.borrow()
    desk.hears("op/1", task())
    said = desk.hears("op/1", right())
    (first, given) = said[-1]
    late = desk.told(TimerFired(name="look"), after_s=STALE_LEAST_S * 2)
    ((second, again),) = [item for item in late if isinstance(item[1], TileTask)]
    assert {first, second} == {"a", "b"}
    assert next(view.late for view in desk.broker.views() if view.node == first) == 1
    ((to, passed),) = [item for item in desk.hears(second, result(again, 2.0)) if isinstance(item[1], TileResult)]
    assert (to, passed.task, passed.executor) == ("op/1", 1, second)  # type: ignore[attr-defined]
    assert not [item for item in desk.hears(first, result(given, 1.0)) if isinstance(item[1], TileResult)]
    assert [view.tasks for view in desk.broker.views() if view.node == second] == [1]


def test_what_a_lost_executor_had_goes_to_another_and_it_may_have_it_again() -> None:
    desk = Desk("a")
    desk.borrow()
    desk.hears("op/1", task())
    assert desk.hears("op/1", right())[-1][0] == "a"
    # Nobody else is there: the client hears so, and looks elsewhere.
    said = desk.told(Disconnected(node="a", reason="killed"))
    refusals = [message for to, message in said if isinstance(message, TileResult)]
    assert "no executor is available now: 1 lost" in refusals[0].reason
    desk.connect("a")
    assert desk.hears("op/1", task(2))[-1][0] == "a"
    desk.told(PeerChanged(node="a", state=Liveness.LOST, reason="silent"))
    assert desk.states() == {"a": "lost"}


def test_those_who_are_held_back_get_nothing() -> None:
    desk = Desk("a", "b", held={"a": "drained"})
    assert desk.states() == {"a": "held", "b": "ready"}
    assert desk.borrow().executors == 1
    desk.told(MemberHeld(node="a", hold=""))
    assert desk.states() == {"a": "ready", "b": "ready"}
    desk.told(MemberHeld(node="b", hold="drained"))
    desk.hears("op/1", task())
    assert desk.hears("op/1", right())[-1][0] == "a"


def test_who_was_caught_is_asked_no_more_until_it_is_drained_and_undrained() -> None:
    desk = Desk("a", "b")
    desk.borrow()
    desk.hears("op/1", Caught(executor="a", reason="row 1 is wrong"))
    desk.hears("op/1", Caught(executor="a", reason="again"))
    assert desk.states() == {"a": "excluded", "b": "ready"}
    assert [
        (record.kind, "row 1 is wrong" in record.reason)
        for record in desk.records
        if record.kind == "executor.excluded"
    ] == [("executor.excluded", True)]
    desk.connect("a")
    assert desk.states()["a"] == "excluded", "a new session is no new executor"
    desk.told(MemberHeld(node="a", hold="drained"))
    desk.told(MemberHeld(node="a", hold=""))
    assert desk.states()["a"] == "ready"
    assert next(view.caught for view in desk.broker.views() if view.node == "a") == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kind": "mask"}, "came with"),
        ({"rows": 5}, "came with"),
        ({"right": ""}, "came with"),
    ],
)
def test_a_task_that_is_none_is_refused_in_words(wrong: dict[str, Any], words: str) -> None:
    desk = Desk("a")
    desk.borrow()
    ((_, refusal),) = desk.hears("op/1", task(**wrong))
    assert isinstance(refusal, TileResult)
    assert words in refusal.reason


def test_more_tasks_than_were_offered_are_refused_and_those_forgotten_are_gone() -> None:
    desk = Desk("a")
    window = desk.borrow().window
    said = [desk.hears("op/1", task(number)) for number in range(1, 4 * window)]
    refused = [message for item in said for _, message in item if isinstance(message, TileResult)]
    assert refused
    assert "more tasks than" in refused[0].reason
    desk.hears("op/1", Forget(upto=4 * window))
    assert desk.hears("op/1", task(999)) == [], "there is room again; the right side was asked for"
    desk.told(Disconnected(node="op/1", reason="gone"))
    ((_, stranger),) = desk.hears("op/1", task(1000))
    assert isinstance(stranger, TileResult)
    assert "ask for the pool first" in stranger.reason


def test_replicas_of_a_tile_go_to_different_executors() -> None:
    desk = Desk("a", "b", "c")
    desk.borrow()
    for number in (1, 2, 3, 4):
        said = desk.hears("op/1", task(number, group=7))
    given = [to for to, message in desk.hears("op/1", right()) if isinstance(message, TileTask)]
    assert sorted(given) == ["a", "b", "c"]
    assert said == []
    # The fourth found nobody, and its client heard so.


def test_a_result_of_another_shape_is_no_result() -> None:
    desk = Desk("a", "b")
    desk.borrow()
    desk.hears("op/1", task())
    (first, given) = desk.hears("op/1", right())[-1]
    assert isinstance(given, TileTask)
    wrong = TileResult(task=given.task, tensors={"result": np.zeros((1, 1), dtype=np.float32)})
    said = desk.hears(first, wrong)
    assert [to for to, message in said if isinstance(message, TileTask)] == [{"a": "b", "b": "a"}[first]]
    assert next(view.refused for view in desk.broker.views() if view.node == first) == 1
