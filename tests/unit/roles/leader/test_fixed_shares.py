"""A leader whose plan says ``work = "fixed"``, as stories: everyone trains a share of their own, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.learning.layout import Layout
from shoal.roles.actions import Action, Record, Save, Send
from shoal.roles.events import Event, Liveness, PeerChanged, Received, Saved, Started, TimerFired
from shoal.roles.leader.leader import Leader
from shoal.wire.messages import DeviceState, Failed, JobSpec, Message, Ready, Update, Wait, Work

Start = Callable[..., "Story"]


class Story:
    """A leader whose saves are done at once, and who holds which lease."""

    def __init__(self, spec: JobSpec) -> None:
        layout = Layout.of([("w", (2,), "parameter")])
        self.leader = Leader(spec=spec, layout=layout, model=np.zeros(2, np.float32), term=1, manager="home")
        self.now_s = 100.0
        self.holds: dict[str, Work] = {}
        self.shares: list[str] = []
        self.waits: dict[str, str] = {}
        #: (epoch, batch) -> who trained it.
        self.trained: dict[tuple[int, int], str] = {}
        self.happens(Started())

    def happens(self, event: Event) -> None:
        for action in self.leader.handle(event, self.now_s):
            self._do(action)
        self.leader._training.ledger.check()

    def _do(self, action: Action) -> None:
        match action:
            case Send(message=Work()):
                assert isinstance(action.message, Work)
                self.holds[action.to] = action.message
            case Send(message=Wait()):
                assert isinstance(action.message, Wait)
                self.waits[action.to] = action.message.reason
            case Save():
                self.trained |= {(row.epoch, row.batch): row.node for row in action.applied}
                self.happens(Saved(version=action.version))
            case Record(kind="shares.divided"):
                self.shares.append(action.reason)
            case _:
                pass

    def says(self, node: str, message: Message) -> None:
        self.happens(Received(sender=node, message=message, size_bytes=0))

    def ready(self, *nodes: str) -> None:
        for node in nodes:
            self.says(node, Ready(job="digits"))

    def update(self, *nodes: str, **more: Any) -> None:
        for node in nodes:
            work = self.holds.pop(node)
            told: dict[str, Any] = {"job": "digits", "term": 1, "lease": work.lease, "version": work.version, **more}
            delta = np.ones(2, np.float32)
            self.says(node, Update(**told, examples=len(work.batches), loss_sum=0.5, tensors={"delta": delta}))

    def lost(self, node: str) -> None:
        self.holds.pop(node, None)
        self.happens(PeerChanged(node=node, state=Liveness.LOST, reason="silent"))

    def fails(self, node: str) -> None:
        work = self.holds.pop(node)
        self.says(node, Failed(job="digits", term=1, lease=work.lease, reason="out of memory"))

    def tick(self, after_s: float = 0.5) -> None:
        self.now_s += after_s
        self.happens(TimerFired(name="tick"))

    def batches(self) -> dict[str, tuple[int, ...]]:
        return {node: work.batches for node, work in sorted(self.holds.items())}


@pytest.fixture
def begin(make_spec: Callable[..., JobSpec]) -> Start:
    def start(**spec: Any) -> Story:
        return Story(make_spec(**{"work": "fixed", "examples": 8, "workers_min": 2, "checkpoint_every_s": 0.0, **spec}))

    return start


def test_each_trains_its_own_share_and_no_other(begin: Start) -> None:
    story = begin()
    story.ready("b", "a")
    assert story.shares == ["epoch 1: 2 shares of at most 4 batches"]
    assert story.batches() == {"a": (0,), "b": (4,)}
    for _ in range(4):
        story.update("a", "b")
    assert {batch: node for (epoch, batch), node in story.trained.items() if epoch == 0} == {
        **dict.fromkeys(range(4), "a"),
        **dict.fromkeys(range(4, 8), "b"),
    }
    assert story.leader.epoch == 1
    assert story.shares[1] == "epoch 2: 2 shares of at most 4 batches"
    assert story.batches() == {"a": (0,), "b": (4,)}


def test_whose_share_is_done_waits_and_hears_why(begin: Start) -> None:
    story = begin(pace="async")
    story.ready("a", "b")
    story.update("a", "a", "a", "a")
    assert story.batches() == {"b": (4,)}, "a has nothing left, and what is b's is not lent to it"
    story.tick()
    story.tick(1.0)
    assert story.waits["a"] == "its share of epoch 1 is done; version 5 waits for b"
    (of_a,) = [worker for worker in story.leader.progress().workers if worker.node == "a"]
    assert (of_a.state, of_a.reason) == ("waiting", story.waits["a"])
    story.update("b", "b", "b", "b")
    assert story.leader.epoch == 1
    assert story.batches() == {"a": (0,), "b": (4,)}


def test_a_round_waits_for_everyone_who_has_batches_left(begin: Start) -> None:
    story = begin(examples=3)
    story.ready("a", "b")
    story.update("a")
    assert story.leader.version == 0
    story.update("b")
    assert story.leader.version == 1
    assert story.batches() == {"a": (1,)}, "b had one batch, and waits"
    story.update("a")
    assert story.leader.epoch == 1


def test_when_one_joins_what_is_free_is_cut_anew(begin: Start) -> None:
    story = begin()
    story.ready("a", "b", "c")
    assert story.shares[1] == "epoch 1: 3 shares of at most 2 batches, divided again: c has one now"
    # a and b hold 0 and 4; 1, 2, 3, 5, 6, 7 are free.
    assert story.batches() == {"a": (0,), "b": (4,), "c": (6,)}
    story.update("a", "b", "c")
    assert story.batches() == {"a": (1,), "b": (3,), "c": (7,)}


def test_when_one_is_lost_its_share_goes_to_those_who_are_here(begin: Start) -> None:
    story = begin(workers_min=1, pace="async")
    story.ready("a", "b")
    # It held the first before b came, and half of the seven that were left.
    story.update("a", "a", "a", "a", "a")
    assert "a" not in story.holds
    story.lost("b")
    assert story.shares[-1] == "epoch 1: 1 share of at most 3 batches, divided again: b has none any more"
    story.update("a", "a", "a")
    assert story.leader.epoch == 1
    assert sorted(batch for (epoch, batch) in story.trained if epoch == 0) == list(range(8))


def test_whose_training_fails_has_no_share_until_it_is_ready_again(begin: Start) -> None:
    story = begin(workers_min=1)
    story.ready("a", "b")
    story.fails("b")
    assert "b has none any more" in story.shares[-1]
    story.ready("b")
    assert "b has one now" in story.shares[-1]
    assert set(story.holds) == {"a", "b"}


def test_who_is_late_has_no_share_until_it_is_heard_of(begin: Start) -> None:
    story = begin(lease_s=5.0)
    story.ready("a", "b")
    story.update("a")
    story.tick(8.0)
    # The round goes on without b, who may never come back.
    assert story.leader.version == 1
    assert "b has none any more" in story.shares[-1]
    assert story.batches()["a"] == (1,)
    # Its update comes too late, but it is here.
    story.update("b")
    assert "b has one now" in story.shares[-1]
    assert story.batches() == {"a": (1,), "b": (5,)}


def test_who_was_only_heard_of_has_no_share(begin: Start) -> None:
    story = begin()
    # A word from under another term: whether its worker will come is not known.
    story.says("c", Failed(job="digits", term=7, lease=3, reason="out of memory"))
    story.ready("a", "b")
    assert story.shares[-1].startswith("epoch 1: 2 shares of at most 4 batches")


def test_what_was_held_by_one_without_a_share_is_not_lost(begin: Start) -> None:
    story = begin(workers_min=1, lease_s=5.0, pace="async")
    story.ready("a", "b")
    # Its trainer fails beside the lease that it holds: it has no share any more, but a lease that runs out later.
    story.says("b", Failed(job="digits", term=1, lease=0, reason="cannot start"))
    del story.holds["b"]
    while "a" in story.holds:
        story.update("a")
    assert story.leader.epoch == 0
    story.tick(8.0)
    assert "what was left by someone is given to others" in story.shares[-1]
    story.update("a")
    assert story.leader.epoch == 1


def test_evaluation_is_for_whoever_is_ready(begin: Start) -> None:
    story = begin(examples=2, test=3000)
    story.ready("a", "b")
    story.update("a", "b")
    assert [work.kind for work in story.holds.values()] == ["evaluate", "evaluate"]


# On the devices' own examples ---------------------------------------------------------------------------------------


def test_leases_on_own_examples_are_divided_among_those_who_have_any(begin: Start) -> None:
    story = begin(data="local", examples=0, epoch_leases=8, pace="async", workers_min=1)
    held, empty = DeviceState(examples=50), DeviceState()

    def tells(node: str, state: DeviceState) -> None:
        story.says(node, Ready(job="digits", state=state))

    tells("a", held)
    tells("b", held)
    tells("c", empty)
    story.tick()
    assert "c" not in story.holds
    assert story.waits["c"] == "it has no examples of its own yet"
    assert sum(story.leader._training.ledger.left_for(node) for node in "ab") == 6
    assert not story.leader._training.ledger.left_for("c")
    # It has some now, and an equal share of what is left.
    tells("c", held)
    story.tick()
    tells("c", held)
    assert "c has one now" in story.shares[-1]
    assert "c" in story.holds
    # What b held on its disk is gone: the others train its share.
    story.update("b", state=empty)
    story.tick()
    assert "b has none any more" in story.shares[-1]
    for _ in range(12):
        for node in ("a", "c"):
            if node in story.holds and story.holds[node].epoch == 0:
                story.update(node, state=held)
    story.tick()
    assert story.leader.epoch == 1
    assert sorted(batch for epoch, batch in story.trained if epoch == 0) == list(range(8))
