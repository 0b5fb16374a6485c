"""A worker that sends little: what it keeps, what it takes back, and how it gets from version to version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.compress.codec import Codec
from shoal.compress.sparse import Sparse
from shoal.roles.actions import Action, Record, Send, SetTimer, StageModel, Train
from shoal.roles.events import (
    Connected,
    Disconnected,
    Event,
    Prepared,
    Reassigned,
    Received,
    Started,
    TimerFired,
    Trained,
    TrainerFailed,
)
from shoal.roles.worker.worker import Worker
from shoal.wire.coded import code, decode
from shoal.wire.messages import (
    Hop,
    JobSpec,
    Message,
    ModelShard,
    Ready,
    Route,
    ShardAck,
    Update,
    UpdateRefused,
    UpdateShard,
    Wait,
    Work,
)

UP, DOWN = Codec.parse("top25%+ef"), Codec.parse("top50%")
SIZES = (4, 4)


class Device:
    """A worker that is connected and prepared, with the first model, and what it just did."""

    def __init__(self, spec: JobSpec) -> None:
        self.worker = Worker(spec=spec, leader="home", term=1)
        self.actions: list[Action] = []
        for event in (Started(), Connected(node="home"), Prepared(sizes=SIZES, holds_first=True)):
            self.happens(event)

    def happens(self, event: Event) -> list[Action]:
        self.actions = self.worker.handle(event, 0.0)
        return self.actions

    def hears(self, message: Message, sender: str = "home") -> list[Action]:
        return self.happens(Received(sender=sender, message=message))

    def one(self, kind: type[Any]) -> Any:
        """The one action of this kind, or message."""
        found = [action.message if isinstance(action, Send) else action for action in self.actions]
        (only,) = [each for each in found if isinstance(each, kind)]
        return only

    def trains(self, lease: int, *values: float) -> np.ndarray:
        """It was lent this lease and trained it; what its leader gets."""
        self.hears(work(lease))
        delta = np.array(values, dtype=np.float32)
        self.happens(Trained(lease=lease, examples=1, loss_sum=0.5, seconds=0.1, tensors={"delta": delta}))
        update = self.one(Update)
        arrived = decode(UP, update.tensors, SIZES)
        assert isinstance(arrived, Sparse)
        return arrived.dense()


def work(lease: int, *, version: int = 0, **changes: Any) -> Work:
    given: dict[str, Any] = {"kind": "train", "batches": (4,), "deadline_s": 60.0}
    return Work(job="digits", term=1, lease=lease, version=version, **given | changes)


def changes(*versions: int, value: float = 1.0, size: int = 8) -> dict[str, np.ndarray]:
    """Each moves the first two values by so much."""
    sizes = SIZES if size == 8 else (size,)
    half = np.zeros(size, np.float32)
    half[:2] = value
    coded = code(DOWN, half, sizes)
    return {str(version): coded.tensors()["delta"] for version in versions}


@pytest.fixture
def device(make_spec: Callable[..., JobSpec]) -> Device:
    return Device(make_spec(codec=UP.name, codec_down=DOWN.name))


def test_what_is_not_sent_is_kept_and_sent_later(device: Device) -> None:
    first = device.trains(1, 4, 1, 0, 0, 0, 0, 3, 2)
    assert first.tolist() == [4, 0, 0, 0, 0, 0, 3, 0]
    second = device.trains(2, 0, 0.5, 1, 0, 1, 0, 0, 0)
    assert second.tolist() == [0, 1.5, 0, 0, 0, 0, 0, 2]


def test_a_refused_update_leaves_what_was_kept_before_it(device: Device) -> None:
    device.trains(1, 4, 1, 0, 0, 0, 0, 3, 2)
    device.trains(2, 0, 9, 9, 9, 9, 9, 9, 9)
    device.hears(UpdateRefused(job="digits", term=1, lease=2, reason="it is not of a running lease"))
    # Its batches are trained by someone else. What is left of the first is still here.
    assert device.trains(3, 0, 0, 0, 0, 0, 0, 0, 0).tolist() == [0, 1, 0, 0, 0, 0, 0, 2]


def test_a_copy_of_an_update_that_was_merged_leaves_what_was_kept_after_it(device: Device) -> None:
    device.trains(1, 4, 1, 0, 0, 0, 0, 3, 2)
    device.trains(2, 0, 0.5, 1, 0, 1, 0, 0, 0)
    device.hears(UpdateRefused(job="digits", term=1, lease=2, reason="it was merged already", is_copy=True))
    # What lease 2 sent of the first one's rest is not sent again.
    assert device.trains(3, 0, 0, 0, 0, 0, 0, 0, 0).tolist() == [0, 0, 1, 0, 1, 0, 0, 0]


def test_an_update_that_another_leader_does_not_want_is_taken_back(device: Device) -> None:
    device.trains(1, 4, 1, 0, 0, 0, 0, 3, 2)
    device.hears(work(2))
    device.happens(Disconnected(node="home", reason="gone"))
    delta = np.full(8, 9, np.float32)
    device.happens(Trained(lease=2, examples=1, loss_sum=0.5, seconds=0.1, tensors={"delta": delta}))
    device.happens(Reassigned(term=2, leader="home"))
    device.happens(Connected(node="home"))
    model = {"model": np.zeros(8, np.float32)}
    device.hears(Work(job="digits", term=2, lease=1, kind="train", version=1, began=1, deadline_s=9.0, tensors=model))
    device.happens(Trained(lease=1, examples=1, loss_sum=0.5, seconds=0.1, tensors={"delta": np.zeros(8, np.float32)}))
    arrived = decode(UP, device.one(Update).tensors, SIZES)
    assert isinstance(arrived, Sparse)
    assert arrived.dense().tolist() == [0, 1, 0, 0, 0, 0, 0, 2]


@pytest.mark.parametrize(
    ("began", "kept"),
    [
        (2, [0, 1.5, 0, 0, 0, 0, 0, 2]),  # both updates are in the version that the leader went on from
        (1, [0, 1, 0, 0, 0, 0, 0, 2]),  # the second is not: what the first left is still here
        (0, [0] * 8),  # neither is, and all that they left is trained again
    ],
)
def test_what_a_new_leader_lacks_is_not_held_back(device: Device, began: int, kept: list[float]) -> None:
    device.trains(1, 4, 1, 0, 0, 0, 0, 3, 2)
    device.hears(work(2, version=1, base=0, tensors=changes(1)))
    delta = np.array([9, 0.5, 0, 0, 0, 0, 9, 0], np.float32)
    device.happens(Trained(lease=2, examples=1, loss_sum=0.5, seconds=0.1, tensors={"delta": delta}))
    device.happens(Reassigned(term=2, leader="home"))
    model = {"model": np.zeros(8, np.float32)}
    lent = {"kind": "train", "batches": (4,), "deadline_s": 9.0, "tensors": model}
    device.hears(Work(job="digits", term=2, lease=1, version=2, began=began, **lent))
    told = [action.reason for action in device.actions if isinstance(action, Record)]
    assert [text.partition(":")[0] for text in told] == (
        [f"the job goes on from version {began}, without {2 - began} of our updates"] if began < 2 else []
    )
    device.happens(Trained(lease=1, examples=1, loss_sum=0.5, seconds=0.1, tensors={"delta": np.zeros(8, np.float32)}))
    arrived = decode(UP, device.one(Update).tensors, SIZES)
    assert isinstance(arrived, Sparse)
    assert arrived.dense().tolist() == kept


def test_it_begins_with_the_first_model_and_follows_changes(device: Device) -> None:
    device.hears(work(1))
    assert device.one(Train).tensors == {}
    device.hears(work(2, version=2, base=0, tensors=changes(1, 2)))
    train = device.one(Train)
    assert len(train.changes) == 2
    assert train.changes[0].dense().tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
    device.hears(work(3, version=3, base=2, tensors=changes(3)))
    assert len(device.one(Train).changes) == 1


def test_changes_to_what_it_does_not_hold_are_not_made(device: Device) -> None:
    device.hears(work(1, version=3, base=2, tensors=changes(3)))
    assert not [action for action in device.actions if isinstance(action, Train)]
    ready = device.one(Ready)
    assert (ready.holds_term, ready.holds_version) == (0, 0), "it says what it holds"


def test_changes_that_cannot_be_read_are_told_of_and_the_whole_model_is_asked_for(device: Device) -> None:
    device.hears(work(1, version=1, base=0, tensors={"1": np.zeros(3, np.uint8)}))
    assert "changes of the leader" in device.one(Record).reason
    assert device.one(Ready).holds_version == -1


def test_changes_that_were_made_already_are_not_made_twice(device: Device) -> None:
    device.hears(work(1, version=1, base=0, tensors=changes(1)))
    device.hears(work(2, version=1, base=0, tensors=changes(1)))
    train = device.one(Train)
    assert train.changes == ()
    assert train.tensors == {}


def test_a_lost_session_does_not_cost_the_model_where_none_is_received_over_it(device: Device) -> None:
    device.hears(work(1, version=1, base=0, tensors=changes(1)))
    device.happens(Disconnected(node="home", reason="gone"))
    device.happens(Trained(lease=1, examples=1, loss_sum=0.5, seconds=0.1, tensors={"delta": np.ones(8, np.float32)}))
    device.happens(Connected(node="home"))
    device.hears(work(2, version=2, base=1, tensors=changes(2)))
    assert len(device.one(Train).changes) == 1


def test_pieces_of_an_update_are_what_it_is_as_a_whole(device: Device) -> None:
    hops = (Hop(node="pi", endpoint="pi:1", start=0, stop=3), Hop(node="pa", endpoint="pa:1", start=3, stop=8))
    device.hears(Route(job="digits", term=1, formation=1, hops=hops))
    for node in ("pi", "pa"):
        device.happens(Connected(node=node))
    device.hears(work(1, formation=1))
    delta = np.array([4, 1, 0, 0, 0, 0, 3, 2], np.float32)
    device.happens(Trained(lease=1, examples=1, loss_sum=0.5, seconds=0.1, tensors={"delta": delta}))
    pieces = {a.to: a.message for a in device.actions if isinstance(a, Send) and isinstance(a.message, UpdateShard)}
    read = [decode(UP, pieces["pi"].tensors, (3,)), decode(UP, pieces["pa"].tensors, (1, 4), entries=5)]
    assert all(isinstance(part, Sparse) for part in read)
    assert [part.dense().tolist() for part in read if isinstance(part, Sparse)] == [[4, 0, 0], [0, 0, 0, 3, 0]]


def test_one_that_is_to_ask_again_does_so_though_its_update_went_to_aggregators(device: Device) -> None:
    hops = (Hop(node="pi", endpoint="pi:1", start=0, stop=8),)
    device.hears(Route(job="digits", term=1, formation=1, hops=hops))
    device.happens(Connected(node="pi"))
    device.hears(work(1, formation=1))
    device.happens(Trained(lease=1, examples=1, loss_sum=0.5, seconds=0.1, tensors={"delta": np.ones(8, np.float32)}))
    device.hears(ShardAck(job="digits", term=1, formation=1, lease=1), "pi")
    assert device.one(Update).formation == 1
    device.hears(Wait(job="digits", reason="more devices ask than the pace allows", retry_after_s=3.0))
    assert device.one(SetTimer).after_s == 3.0
    device.happens(TimerFired(name=device.one(SetTimer).name))
    assert device.one(Ready)


# Values of aggregators -------------------------------------------------------------------------------------------


def values(version: int, start: int, stop: int, *, base: int) -> ModelShard:
    half = np.zeros(stop - start, np.float32)
    half[0] = 1
    sizes = (4,)
    coded = code(DOWN, half, sizes)
    tensors = {str(number): coded.tensors()["delta"] for number in range(base + 1, version + 1)}
    return ModelShard(
        job="digits", term=1, formation=1, version=version, start=start, stop=stop, base=base, tensors=tensors
    )


@pytest.fixture
def routed(device: Device) -> Device:
    hops = (Hop(node="pi", endpoint="pi:1", start=0, stop=4), Hop(node="pa", endpoint="pa:1", start=4, stop=8))
    device.hears(Route(job="digits", term=1, formation=1, hops=hops))
    for node in ("pi", "pa"):
        device.happens(Connected(node=node))
    return device


def test_parts_are_changed_one_by_one_and_trained_on_once_whole(routed: Device) -> None:
    routed.hears(values(1, 0, 4, base=0), "pi")
    stage = routed.one(StageModel)
    assert (stage.start, stage.anew, len(stage.changes)) == (0, True, 1)
    routed.hears(work(1, version=1, values_by=1))
    assert not [action for action in routed.actions if isinstance(action, Train)]
    routed.hears(values(1, 4, 8, base=0), "pa")
    assert routed.one(Train).staged


def test_a_part_that_follows_one_that_was_not_trained_on_is_made_of_that(routed: Device) -> None:
    for version in (1, 2):
        for node, start in (("pi", 0), ("pa", 4)):
            routed.hears(values(version, start, start + 4, base=version - 1), node)
            assert routed.one(StageModel).anew == (version == 1)
    routed.hears(work(1, version=2, values_by=1))
    assert routed.one(Train).staged


def test_changes_from_what_the_trainer_has_begin_anew(routed: Device) -> None:
    routed.hears(values(1, 0, 4, base=0), "pi")
    routed.hears(values(2, 0, 4, base=0), "pi")
    stage = routed.one(StageModel)
    assert (stage.anew, len(stage.changes)) == (True, 2)


def test_parts_made_of_a_model_that_was_lost_with_its_trainer_do_not_count(routed: Device) -> None:
    routed.hears(values(1, 0, 4, base=0), "pi")
    assert routed.one(StageModel)
    routed.happens(TrainerFailed(lease=0, reason="out of memory"))
    routed.happens(Prepared(sizes=SIZES))
    routed.hears(values(2, 0, 4, base=1), "pi")
    assert not [action for action in routed.actions if isinstance(action, StageModel)]


def test_a_part_of_which_nothing_can_be_made_is_not_waited_for(routed: Device) -> None:
    routed.hears(values(3, 0, 4, base=2), "pi")
    assert routed.actions == []
    routed.hears(work(1, version=3, values_by=1))
    assert routed.one(Ready).holds_version == 0


# Momentum on the device ------------------------------------------------------------------------------------------


class Carrying:
    """A device under a robust plan, whose last three values are buffers."""

    def __init__(self, spec: JobSpec) -> None:
        self.worker = Worker(spec=spec, leader="home", term=1)
        prepared = Prepared(sizes=SIZES, holds_first=True, parameters=5)
        for event in (Started(), Connected(node="home"), prepared):
            self.worker.handle(event, 0.0)

    def trains(self, lease: int, value: float) -> np.ndarray:
        self.worker.handle(Received(sender="home", message=work(lease)), 0.0)
        tensors = {"delta": np.full(8, value, np.float32)}
        done = self.worker.handle(Trained(lease=lease, examples=1, loss_sum=0.5, seconds=0.1, tensors=tensors), 0.0)
        (update,) = [each.message for each in done if isinstance(each, Send) and isinstance(each.message, Update)]
        assert tensors["delta"].tolist() == [value] * 8, "a lease is what the trainer made of it"
        return update.tensors["delta"]


@pytest.fixture
def carrying(make_spec: Callable[..., JobSpec]) -> Carrying:
    return Carrying(make_spec(trust="robust", codec_down=DOWN.name, worker_momentum=0.5, outer="adam"))


def test_a_device_sends_a_mean_of_its_updates(carrying: Carrying) -> None:
    # Adam at the leader: half of what is added up is sent.
    assert carrying.trains(1, 4.0).tolist() == [2.0] * 5 + [4.0] * 3
    assert carrying.trains(2, 4.0).tolist() == [3.0] * 5 + [4.0] * 3


def test_a_refused_update_is_not_carried_on(carrying: Carrying) -> None:
    carrying.trains(1, 4.0)
    carrying.trains(2, 400.0)
    refused = UpdateRefused(job="digits", term=1, lease=2, reason="it is not of a running lease")
    carrying.worker.handle(Received(sender="home", message=refused), 0.0)
    assert carrying.trains(3, 4.0).tolist() == [3.0] * 5 + [4.0] * 3
    # A refusal of an update before the last one changes nothing.
    carrying.worker.handle(Received(sender="home", message=refused), 0.0)
    assert carrying.trains(4, 4.0).tolist() == [3.5] * 5 + [4.0] * 3


def test_a_new_process_begins_at_rest(make_spec: Callable[..., JobSpec], carrying: Carrying) -> None:
    carrying.trains(1, 4.0)
    assert Carrying(carrying.worker._spec).trains(1, 4.0).tolist() == [2.0] * 5 + [4.0] * 3
