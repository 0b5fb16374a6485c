"""Aggregators, and a leader and a worker that have to do with them, as stories: what is lost comes another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from shoal.learning.layout import Layout
from shoal.plan import Until
from shoal.roles.actions import Action, Record, Send, SetTimer, Train
from shoal.roles.aggregator.aggregator import Aggregator
from shoal.roles.events import (
    Connected,
    Disconnected,
    Liveness,
    PeerChanged,
    Prepared,
    Received,
    Saved,
    Started,
    TimerFired,
    Trained,
)
from shoal.roles.leader.leader import Leader
from shoal.roles.worker.worker import Worker
from shoal.wire.messages import (
    AggregatorReady,
    Go,
    HandOver,
    Hop,
    JobSpec,
    Message,
    ModelShard,
    Offer,
    Ready,
    Reduce,
    ReduceResult,
    Route,
    Routed,
    SetUpAggregator,
    ShardAck,
    SteppedDown,
    TearDown,
    Update,
    UpdateRefused,
    UpdateShard,
    Work,
)

M = TypeVar("M", bound=Message)
SIZE = 4


def said(actions: list[Action], kind: type[M], to: str = "") -> list[M]:
    sent = [action for action in actions if isinstance(action, Send) and (not to or action.to == to)]
    return [action.message for action in sent if isinstance(action.message, kind)]


# An aggregator ------------------------------------------------------------------------------------------


class Desk:
    """The aggregator of a group of two."""

    def __init__(self) -> None:
        form = SetUpAggregator(
            job="job", term=1, formation=1, kind="tree", version=0, start=0, stop=SIZE, members=("a", "b")
        )
        self.sub = Aggregator(form, node="a", leader="home")

    def takes(self, member: str, lease: int, value: float) -> list[Action]:
        tensors = {"delta": np.full(SIZE, value, dtype=np.float32)}
        piece = UpdateShard(job="job", term=1, formation=1, lease=lease, version=0, tensors=tensors)
        return self.sub.handle(Received(sender=member, message=piece), 0.0)

    def sums(self, *leases: int) -> ReduceResult:
        ones = tuple(1.0 for _ in leases)
        count = Reduce(job="job", term=1, formation=1, version=1, leases=leases, weights=ones, scales=ones, last=True)
        (gathered,) = said(self.sub.handle(Received(sender="home", message=count), 0.0), ReduceResult)
        return gathered


def test_a_late_copy_of_an_older_piece_does_not_take_the_place_of_the_newer() -> None:
    desk = Desk()
    desk.takes("a", 3, 1.0)
    desk.takes("a", 5, 7.0)
    assert said(desk.takes("a", 3, 1.0), ShardAck), "it is answered: its worker may not have heard that"
    gathered = desk.sums(5)
    assert gathered.leases == (5,)
    assert gathered.tensors["mean"][0] == 7.0


def test_a_piece_that_was_summed_up_is_not_kept_once_more() -> None:
    desk = Desk()
    desk.takes("a", 3, 1.0)
    desk.takes("b", 4, 3.0)
    assert desk.sums(3, 4).tensors["mean"][0] == 2.0
    assert said(desk.takes("a", 3, 1.0), ShardAck)
    assert desk.sums(3, 4).leases == ()


def test_a_piece_that_is_sent_again_counts_once() -> None:
    desk = Desk()
    desk.takes("a", 3, 1.0)
    desk.takes("a", 3, 1.0)
    gathered = desk.sums(3)
    assert (gathered.leases, gathered.weight) == ((3,), 1.0)


# A leader ----------------------------------------------------------------------------------------------


class Story:
    """A leader of four workers with room for two uploads, until a formation over them holds and everyone has a lease
    by it. Every update is of ones, so that version n of the model is all n."""

    NODES = ("a", "b", "c", "d")

    def __init__(self, spec: JobSpec) -> None:
        layout = Layout.of([("w", (SIZE,), "parameter")])
        model = np.zeros(SIZE, dtype=np.float32)
        budget_bytes = 2 * model.nbytes
        self.leader = Leader(
            spec=spec, layout=layout, model=model, term=1, manager="home", upload_budget_bytes=budget_bytes
        )
        self.now_s = 100.0
        self.actions: list[Action] = []
        self.works: dict[str, Work] = {}
        #: Aggregator -> what it was last told to be.
        self.forms: dict[str, SetUpAggregator] = {}
        self.happens(Started())
        self.happens(Saved(version=0))
        for node in self.NODES:
            self.says(node, Ready(job="digits"))
        # Nobody came for a while: the next version begins with setting a formation up, the one after that goes by it.
        self.now_s += 3.0
        self.straight()
        for node in list(self.forms):
            self.says(node, AggregatorReady(job="digits", term=1, formation=1, endpoint=f"{node}:7070"))
        for node in self.NODES:
            self.says(node, Routed(job="digits", term=1, formation=1))
        self.straight()
        assert [work.formation for work in self.works.values()] == [1] * 4
        self.version = self.leader.version

    def straight(self) -> None:
        works = dict(self.works)
        for node, work in works.items():
            self.says(node, self.update(node, work, tensors={"delta": np.ones(SIZE, dtype=np.float32)}))

    def happens(self, event: Any) -> list[Action]:
        self.actions = self.leader.handle(event, self.now_s)
        self.leader._training.ledger.check()
        for action in self.actions:
            if isinstance(action, Send) and isinstance(action.message, Work):
                self.works[action.to] = action.message
            elif isinstance(action, Send) and isinstance(action.message, SetUpAggregator):
                self.forms[action.to] = action.message
        return self.actions

    def says(self, node: str, message: Message) -> list[Action]:
        return self.happens(Received(sender=node, message=message))

    def lost(self, node: str) -> list[Action]:
        return self.happens(PeerChanged(node=node, state=Liveness.LOST, reason="gone"))

    def update(self, node: str, work: Work | None = None, **changes: Any) -> Update:
        work = work or self.works[node]
        given: dict[str, Any] = {"lease": work.lease, "version": work.version, "examples": len(work.batches)}
        return Update(job="digits", term=1, loss_sum=0.5, **given | changes)

    def report(self, *nodes: str) -> list[Action]:
        return [action for node in nodes for action in self.says(node, self.update(node, formation=1))]

    def gathered(self, node: str, *leases: int) -> ReduceResult:
        form = self.forms[node]
        mean = {"mean": np.ones(form.stop - form.start, dtype=np.float32)}
        version = self.leader.version + 1
        weight = float(len(leases))
        return ReduceResult(
            job="digits", term=1, formation=1, version=version, leases=leases, weight=weight, tensors=mean
        )

    def leases(self, *nodes: str) -> tuple[int, ...]:
        return tuple(self.works[node].lease for node in nodes or self.NODES)

    def records(self, kind: str) -> list[str]:
        return [action.reason for action in self.actions if isinstance(action, Record) and action.kind == kind]


Begin = Callable[[str], Story]


@pytest.fixture
def begin(make_spec: Callable[..., JobSpec]) -> Begin:
    return lambda shape: Story(make_spec(examples=400, topology=shape, workers_min=1, until=Until(epochs=9)))


def test_a_shard_makes_a_version_once_every_part_of_it_has_come(begin: Begin) -> None:
    story = begin("shard")
    counts = said(story.report(*story.NODES), Reduce)
    assert [(count.leases, count.last) for count in counts] == [(story.leases(), True)] * len(story.forms)
    before, leases = story.version, story.leases()
    for node in story.forms:
        assert story.leader.version == before
        story.says(node, story.gathered(node, *leases))
    assert story.leader.version == before + 1
    assert story.leader.model.tolist() == [before + 1.0] * SIZE


def test_a_sum_that_comes_once_more_is_not_held_against_its_aggregator(begin: Begin) -> None:
    story = begin("shard")
    story.report(*story.NODES)
    first = {node: story.gathered(node, *story.leases()) for node in story.forms}
    for node, sums in first.items():
        story.says(node, sums)
    story.report(*story.NODES)
    node = next(iter(story.forms))
    assert not story.says(node, first[node])
    version = story.leader.version
    for node in story.forms:
        story.says(node, story.gathered(node, *story.leases()))
    assert story.leader.version == version + 1


def test_a_sum_of_other_leases_than_were_counted_ends_the_formation(begin: Begin) -> None:
    story = begin("shard")
    story.report(*story.NODES)
    node = next(iter(story.forms))
    story.says(node, story.gathered(node, *story.leases("a", "b")))
    assert "it was asked about" in story.records("sum.rejected")[0]
    assert story.leader.version == story.version


def test_one_update_that_an_aggregator_lacks_was_never_sent_there(begin: Begin) -> None:
    """Its worker is refused, not the honest aggregator. The formation is set up anew: others have summed it up."""
    story = begin("shard")
    story.report(*story.NODES)
    node = next(iter(story.forms))
    actions = story.says(node, story.gathered(node, *story.leases("a", "b", "c")))
    (refused,) = said(actions, UpdateRefused, to="d")
    assert "no piece of the update of d" in refused.reason
    assert not story.records("sum.rejected")
    assert story.leader.version == story.version
    assert story.records("topology.planned")[-1].count("no piece of the update of d")


def test_updates_that_lay_with_a_lost_aggregator_come_straight_in_their_turn(begin: Begin) -> None:
    """The leader has room for two at a time, whatever it had given to aggregators."""
    story = begin("tree")
    story.report(*story.NODES[:3])
    story.says("home", HandOver(job="digits", term=1, reason="asked"))
    gone = next(node for node in story.forms if node != "d")
    actions = story.lost(gone)
    goes = said(actions, Go)
    assert [go.formation for go in goes] == [0, 0]
    there = [node for node in story.NODES if node != gone]
    assert {go.lease for go in goes} < set(story.leases(*there))
    later: list[Action] = []
    for node in there:
        if story.works[node].lease in {go.lease for go in goes}:
            tensors = {"delta": np.ones(SIZE, dtype=np.float32)}
            later += story.says(node, story.update(node, tensors=tensors))
    assert len(said(later, Go)) == 1


def test_a_lease_whose_update_is_lost_with_worker_and_aggregator_is_returned_and_that_is_told(begin: Begin) -> None:
    story = begin("tree")
    gone = next(iter(story.forms))
    story.report(gone)
    story.says("home", HandOver(job="digits", term=1, reason="asked"))
    story.lost(gone)
    (lease,) = story.leases(gone)
    assert any(record.startswith(f"lease {lease} was taken back") for record in story.records("lease.returned"))


def test_a_leader_that_hands_over_does_not_wait_for_a_sum_that_cannot_come(begin: Begin) -> None:
    story = begin("shard")
    story.report(*story.NODES)
    story.says("home", HandOver(job="digits", term=1, reason="asked"))
    gone = next(iter(story.forms))
    actions = story.lost(gone)
    rest = [node for node in story.NODES if node != gone]
    for _ in range(3):
        going = {go.lease for go in said(actions, Go)}
        actions = []
        for node in rest:
            if story.works[node].lease in going:
                tensors = {"delta": np.ones(SIZE, dtype=np.float32)}
                actions += story.says(node, story.update(node, tensors=tensors))
    assert story.leader.version == story.version + 1
    assert said(story.happens(Saved(version=story.leader.version)), SteppedDown)


def unreached(story: Story, node: str) -> list[Action]:
    """This worker trained its lease and does not reach one of its aggregators."""
    away = next(iter(story.forms))
    story.says(node, Routed(job="digits", term=1, formation=1, unreached=(away,)))
    return story.says(node, Offer(job="digits", term=1, lease=story.works[node].lease, size_bytes=16))


def test_an_update_that_cannot_go_to_its_aggregator_in_a_tree_comes_straight(begin: Begin) -> None:
    story = begin("tree")
    (go,) = said(unreached(story, "a"), Go, to="a")
    assert (go.lease, go.formation) == (story.works["a"].lease, 0)
    story.report("b", "c", "d")
    story.says("a", story.update("a", tensors={"delta": np.ones(SIZE, dtype=np.float32)}))
    groups = {node: [member for member in form.members if member != "a"] for node, form in story.forms.items()}
    for node, members in groups.items():
        if members:
            story.says(node, story.gathered(node, *story.leases(*members)))
    assert story.leader.version == story.version + 1


def test_an_update_that_cannot_go_to_every_aggregator_of_a_shard_is_lent_anew(begin: Begin) -> None:
    story = begin("shard")
    actions = unreached(story, "a")
    (refused,) = said(actions, UpdateRefused, to="a")
    assert refused.lease == story.works["a"].lease
    assert "does not reach" in story.records("lease.returned")[0]
    # The others go on without it.
    assert len(said(story.report("b", "c", "d"), Reduce)) == len(story.forms)


def test_a_worker_that_has_lost_its_way_is_told_it_once_more(begin: Begin) -> None:
    story = begin("shard")
    actions = story.says("a", Offer(job="digits", term=1, lease=story.works["a"].lease, size_bytes=16))
    assert [type(message) for message in said(actions, Message, to="a")] == [Route, Go]
    assert said(actions, Go)[0].formation == 1


# A worker ----------------------------------------------------------------------------------------------

MODEL = {"model": np.zeros(SIZE, dtype=np.float32)}


class Device:
    """A worker that is connected to its leader and to both aggregators of its route."""

    def __init__(self, spec: JobSpec) -> None:
        self.worker = Worker(spec=spec, leader="home", term=1)
        for event in (Started(), Connected(node="home"), Prepared()):
            self.happens(event)
        hops = (
            Hop(node="a", endpoint="a:1", start=0, stop=2),
            Hop(node="b", endpoint="b:1", start=2, stop=SIZE),
        )
        self.hears("home", Route(job="digits", term=1, formation=1, hops=hops))
        self.happens(Connected(node="a"))
        self.happens(Connected(node="b"))

    def happens(self, event: Any) -> list[Action]:
        self.actions = self.worker.handle(event, 0.0)
        return self.actions

    def hears(self, sender: str, message: Message) -> list[Action]:
        return self.happens(Received(sender=sender, message=message))

    def values(self, node: str, version: int) -> list[Action]:
        start = 0 if node == "a" else 2
        tensors = {"model": np.full(2, float(version), dtype=np.float32)}
        given: dict[str, Any] = {"version": version, "start": start, "stop": start + 2, "tensors": tensors}
        return self.hears(node, ModelShard(job="digits", term=1, formation=1, **given))

    def works(self, lease: int, version: int) -> list[Action]:
        given: dict[str, Any] = {"kind": "train", "batches": (0,), "deadline_s": 60.0, "formation": 1, "values_by": 1}
        return self.hears("home", Work(job="digits", term=1, lease=lease, version=version, **given))

    def trains(self, lease: int) -> list[Action]:
        self.hears("home", work(lease))
        delta = {"delta": np.zeros(SIZE, dtype=np.float32)}
        return self.happens(Trained(lease=lease, examples=1, loss_sum=0.5, seconds=0.1, tensors=delta))

    def time_passes(self) -> list[Action]:
        return self.happens(TimerFired(name="route"))


def work(lease: int) -> Work:
    given: dict[str, Any] = {"kind": "train", "batches": (0,), "deadline_s": 60.0, "formation": 1, "tensors": MODEL}
    return Work(job="digits", term=1, lease=lease, version=0, **given)


@pytest.fixture
def device(make_spec: Callable[..., JobSpec]) -> Device:
    return Device(make_spec())


def test_a_leader_hears_once_that_every_aggregator_is_reached(device: Device) -> None:
    assert len(said(device.actions, Routed)) == 1
    assert not said(device.happens(Connected(node="a")), Routed), "it was there already"


def test_a_leader_that_is_back_hears_again_that_every_aggregator_is_reached(device: Device) -> None:
    """It may not have heard it: the session broke before."""
    device.happens(Disconnected(node="home", reason="it broke"))
    assert [message.unreached for message in said(device.happens(Connected(node="home")), Routed)] == [()]


def test_staged_values_are_there_for_one_training(device: Device) -> None:
    """The trainer has them, and what it makes of them is lost with its leader's session: they are asked for anew."""
    device.values("a", 3)
    device.values("b", 3)
    (train,) = [action for action in device.works(1, 3) if isinstance(action, Train)]
    assert train.staged
    delta = {"delta": np.zeros(SIZE, dtype=np.float32)}
    device.happens(Trained(lease=1, examples=1, loss_sum=0.5, seconds=0.1, tensors=delta))
    device.happens(Disconnected(node="home", reason="it broke"))
    device.happens(Connected(node="home"))
    actions = device.works(2, 3)
    assert not any(isinstance(action, Train) for action in actions)
    assert [ready.holds_version for ready in said(actions, Ready)] == [-1]


def test_an_update_that_cannot_reach_an_aggregator_is_offered_to_the_leader(device: Device) -> None:
    assert len(said(device.trains(1), UpdateShard)) == 2
    device.happens(Disconnected(node="b", reason="it broke"))
    routed, offer = said(device.time_passes(), Message, to="home")
    # In this order: the leader knows why, when it says which way the update goes.
    assert isinstance(routed, Routed)
    assert routed.unreached == ("b",)
    assert isinstance(offer, Offer)
    assert offer.lease == 1
    update = said(device.hears("home", Go(job="digits", term=1, lease=1)), Update)
    assert list(update[0].tensors) == ["delta"]


def test_an_update_whose_formation_is_over_is_not_kept_for_ever(device: Device) -> None:
    device.trains(1)
    actions = device.hears("home", TearDown(job="digits", term=1, formation=1, reason="over"))
    (timer,) = [action for action in actions if isinstance(action, SetTimer)]
    assert timer.after_s < 1, "its lease may have run out long ago, and then nobody asks for it"
    assert [offer.lease for offer in said(device.happens(TimerFired(name=timer.name)), Offer)] == [1]


def test_an_update_that_was_told_where_to_go_is_not_offered(device: Device) -> None:
    device.trains(1)
    hops = (Hop(node="a", endpoint="a:1", start=0, stop=SIZE),)
    device.hears("home", Route(job="digits", term=1, formation=2, hops=hops))
    (timer,) = device.hears("home", TearDown(job="digits", term=1, formation=1, reason="over"))
    assert isinstance(timer, SetTimer)
    assert said(device.hears("home", Go(job="digits", term=1, lease=1, formation=2)), UpdateShard, "a")
    assert not device.happens(TimerFired(name=timer.name))


def test_a_lease_that_is_trained_after_its_formation_was_over_is_offered(device: Device) -> None:
    device.hears("home", work(1))
    device.hears("home", TearDown(job="digits", term=1, formation=1, reason="over"))
    delta = {"delta": np.zeros(SIZE, dtype=np.float32)}
    trained = device.happens(Trained(lease=1, examples=1, loss_sum=0.5, seconds=0.1, tensors=delta))
    assert [offer.lease for offer in said(trained, Offer)] == [1]
    assert not said(trained, Update)
