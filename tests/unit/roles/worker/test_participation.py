"""A device in a private job: it cuts what leaves it, counts it first, and takes no leader's word for how often."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.compress.codec import Codec
from shoal.learning.clipping import length_of
from shoal.learning.metrics import judged_sums
from shoal.plan import epochs
from shoal.roles.actions import Action, Participate, Record, Send, SetTimer, Train
from shoal.roles.events import (
    Connected,
    Disconnected,
    Event,
    NotParticipated,
    Participated,
    Prepared,
    Reassigned,
    Received,
    Started,
    TimerFired,
    Trained,
)
from shoal.roles.worker.worker import Worker
from shoal.wire.coded import decode, norm_of
from shoal.wire.messages import (
    Failed,
    Go,
    Hop,
    JobSpec,
    Message,
    Offer,
    Ready,
    Route,
    Update,
    UpdateRefused,
    UpdateShard,
    Work,
)

SIZES = (4, 4)
CLIP = 2.0
Make = Callable[..., JobSpec]


def private(make_spec: Make, **plan: Any) -> JobSpec:
    given = {"trust": "private(8, 1e-5)", "data": "local", "cohort": 2, "clip_update": CLIP, "until": epochs(5)}
    return make_spec(**{**given, "epoch_leases": 20, "participations": 3, "apart": 4, "workers_min": 8, **plan})


class Device:
    """A worker whose driver has a disk: what was written on it comes back with another process."""

    def __init__(
        self, spec: JobSpec, disk: list[tuple[int, int]] | None = None, *, epsilon_left: float = math.inf
    ) -> None:
        self.spec, self.disk = spec, [] if disk is None else disk
        self.worker = Worker(spec=spec, leader="home", term=1)
        self.actions: list[Action] = []
        prepared = Prepared(sizes=SIZES, participations=tuple(self.disk), epsilon_left=epsilon_left)
        for event in (Started(), Connected(node="home"), prepared):
            self.happens(event)

    def happens(self, event: Event) -> list[Action]:
        self.actions = self.worker.handle(event, 0.0)
        return self.actions

    def hears(self, message: Message) -> list[Action]:
        return self.happens(Received(sender="home", message=message))

    def all(self, kind: type[Any]) -> list[Any]:
        found = [action.message if isinstance(action, Send) else action for action in self.actions]
        return [each for each in found if isinstance(each, kind)]

    def lent(self, lease: int, version: int, **changes: Any) -> list[Action]:
        given: dict[str, Any] = {"kind": "train", "batches": (4,), "deadline_s": 60.0, "examples": 32, "term": 1}
        given["tensors"] = {"model": np.zeros(8, np.float32)}
        return self.hears(Work(job="digits", lease=lease, version=version, **given | changes))

    def trained(self, lease: int, *values: float) -> list[Action]:
        delta = np.array(values or (9.0,) * 8, dtype=np.float32)
        return self.happens(
            Trained(
                lease=lease,
                examples=7,
                loss_sum=3.5,
                seconds=0.1,
                tensors={"delta": delta},
                fresh=2,
                fresh_metrics=judged_sums(examples=2, loss_sum=1.0, correct=1),
                labels=(3, 4),
            )
        )

    def written(self) -> list[Action]:
        """Its disk is done."""
        (asked,) = self.all(Participate)
        self.disk.append((asked.term, asked.version))
        return self.happens(Participated(term=asked.term, version=asked.version, lease=asked.lease))

    def takes_part(self, lease: int, version: int, *values: float, **changes: Any) -> Update:
        self.lent(lease, version, **changes)
        assert self.all(Train)
        self.trained(lease, *values)
        assert not self.all(Update), "it has not been counted"
        self.written()
        (update,) = self.all(Update)
        assert isinstance(update, Update)
        return update


def test_an_update_is_counted_before_it_leaves_and_is_no_longer_than_it_may_be(make_spec: Make) -> None:
    device = Device(private(make_spec))
    update = device.takes_part(1, 0)
    assert length_of(update.tensors["delta"]) == pytest.approx(CLIP, rel=1e-5)
    assert length_of(update.tensors["delta"]) <= CLIP
    short = device.takes_part(2, 4, *(0.5,) * 8)
    assert short.tensors["delta"].tolist() == [0.5] * 8


def test_nothing_else_tells_of_the_examples(make_spec: Make) -> None:
    update = Device(private(make_spec)).takes_part(1, 0)
    assert (update.examples, update.loss_sum, update.fresh) == (32, 0.0, 0)
    assert (update.fresh_metrics, update.labels, update.logged) == ((), (), ())
    assert update.state is not None
    assert (update.state.participations, update.state.participations_left, update.state.spent_version) == (1, 2, 0)
    assert update.state.spent > 0


@pytest.mark.parametrize("codec", ["bf16", "fp16", "top50%", "top50%+ef", "top100%+4bit", "top100%+ef+8bit"])
def test_what_leaves_is_cut_last_whatever_is_added_to_it_before(make_spec: Make, codec: str) -> None:
    device, rng = Device(private(make_spec, codec=codec, participations=9, apart=1)), np.random.default_rng(4)
    for lease in range(1, 9):
        update = device.takes_part(lease, lease, *(3 * rng.standard_normal(8)))
        length = norm_of(decode(Codec.parse(codec), update.tensors, SIZES))
        assert 0.8 * CLIP < length <= CLIP * (1 + 1e-9)


def test_more_often_than_the_plan_says_is_refused_whoever_asks(make_spec: Make) -> None:
    device = Device(private(make_spec))
    for number in range(3):
        device.takes_part(number + 1, 4 * number)
    device.lent(4, 40)
    assert not device.all(Train)
    assert "took part 3 times, of 3" in device.all(Record)[0].reason
    (ready,) = device.all(Ready)
    assert (ready.state.participations, ready.state.participations_left) == (3, 0)
    # One that does not listen is asked ever more seldom.
    waits = []
    for lease in range(5, 10):
        device.lent(lease, 40 + lease)
        assert not device.all(Train)
        waits += [timer.after_s for timer in device.all(SetTimer)]
    assert waits == [1.0, 2.0, 5.0, 10.0, 30.0]
    # Nor under another leader.
    device.lent(1, 41, term=9)
    assert not device.all(Train)


def test_what_the_owner_leaves_for_a_job_ends_it_before_the_plan_does(make_spec: Make) -> None:
    spec = private(make_spec)
    promised = spec.plan.privacy
    assert promised is not None
    one, two = (promised.epsilon_of(promised.spent([count])) for count in (1, 2))
    device = Device(spec, epsilon_left=(one + two) / 2)
    update = device.takes_part(1, 0)
    assert update.state is not None
    assert update.state.participations_left == 0, "the leader is told not to ask"
    device.lent(2, 4)
    assert not device.all(Train)
    assert "that its owner left for this job" in device.all(Record)[0].reason
    # As much as is left, and not more.
    assert Device(spec, epsilon_left=two).takes_part(1, 0).state is not None
    nothing = Device(spec, epsilon_left=-1.0)
    nothing.lent(1, 0)
    assert not nothing.all(Train)


def test_too_soon_is_refused_within_a_term_and_not_beyond(make_spec: Make) -> None:
    device = Device(private(make_spec))
    device.takes_part(1, 10)
    for version in (10, 11, 13, 5):
        device.lent(2, version)
        assert not device.all(Train)
        assert "took part in version 10, and takes part again 4 versions later" in device.all(Record)[0].reason
    device.takes_part(3, 14)
    # Another leader has noise of its own, whatever its versions are called.
    assert device.takes_part(1, 12, term=2).state is not None


def test_a_refused_or_lost_update_stays_counted(make_spec: Make) -> None:
    device = Device(private(make_spec))
    device.takes_part(1, 0)
    device.hears(UpdateRefused(job="digits", term=1, lease=1, reason="its lease is over"))
    device.lent(2, 4)
    device.trained(2)
    device.happens(Disconnected(node="home", reason="cut"))
    # It was counted while there was a session, and there is none any more.
    asked = Participated(term=1, version=4, lease=2)
    device.disk.append((1, 4))
    assert device.happens(asked) == []
    device.happens(Reassigned(term=2, leader="pi"))
    again = Device(device.spec, device.disk)
    (ready,) = list(again.all(Ready))
    assert (ready.state.participations, ready.state.participations_left) == (2, 1)


def test_what_is_kept_for_want_of_a_leader_is_not_counted_until_it_leaves(make_spec: Make) -> None:
    device = Device(private(make_spec))
    device.lent(1, 0)
    device.happens(Disconnected(node="home", reason="cut"))
    device.trained(1)
    assert not device.all(Participate)
    device.happens(Connected(node="home"))
    device.written()
    assert device.all(Update)


def test_an_update_is_counted_once_however_often_it_is_sent(make_spec: Make) -> None:
    device = Device(private(make_spec))
    device.lent(1, 0, credit=False)
    device.trained(1)
    device.written()
    assert device.all(Offer)
    device.happens(Disconnected(node="home", reason="cut"))
    device.happens(Connected(node="home"))
    assert device.all(Offer)
    assert not device.all(Participate)
    assert device.disk == [(1, 0)]


def test_a_participation_that_cannot_be_written_down_keeps_the_update_here(make_spec: Make) -> None:
    device = Device(private(make_spec))
    device.lent(1, 0)
    device.trained(1)
    device.happens(NotParticipated(term=1, lease=1, reason="the disk is full"))
    assert not device.all(Update)
    assert device.all(Failed)[0].reason == "the disk is full"
    device.takes_part(2, 0)


def test_evaluations_are_of_no_persons_examples(make_spec: Make) -> None:
    device = Device(private(make_spec, participations=1))
    device.takes_part(1, 0)
    device.lent(2, 1, kind="evaluate")
    assert not device.all(Record)


ROUTE = Route(job="digits", term=1, formation=2, hops=(Hop(node="sub", endpoint="sub:1", start=0, stop=8),))


def on_its_way(make_spec: Make) -> Device:
    """A device whose update goes to an aggregator that it reaches, and whose disk is not done."""
    device = Device(private(make_spec, topology="tree"))
    device.hears(ROUTE)
    device.happens(Connected(node="sub"))
    device.lent(1, 0, formation=2)
    device.trained(1)
    assert device.all(Participate)
    return device


@pytest.mark.parametrize(
    "said",
    [
        Received(sender="home", message=Go(job="digits", term=1, lease=1, formation=2)),
        Received(sender="home", message=Go(job="digits", term=1, lease=1)),
        Received(sender="home", message=ROUTE),
        Connected(node="sub"),
        Connected(node="home"),
        TimerFired(name="taken"),
    ],
)
def test_no_piece_leaves_before_it_is_counted_whatever_is_said(make_spec: Make, said: Event) -> None:
    device = on_its_way(make_spec)
    asked = device.all(Participate)
    device.happens(said)
    assert not device.all(UpdateShard)
    assert not device.all(Update)
    assert not device.all(Participate), "it is being counted"
    device.actions = [*asked]
    device.written()
    assert device.all(UpdateShard) or device.all(Update), "then it leaves, by the way that the leader named"
    assert device.disk == [(1, 0)]


def test_a_piece_is_cut_and_an_update_that_goes_another_way_is_counted_once(make_spec: Make) -> None:
    device = on_its_way(make_spec)
    device.written()
    (piece,) = device.all(UpdateShard)
    assert length_of(piece.tensors["delta"]) == pytest.approx(CLIP, rel=1e-5)
    device.hears(Go(job="digits", term=1, lease=1))
    (update,) = device.all(Update)
    assert np.array_equal(update.tensors["delta"], piece.tensors["delta"])
    assert not device.all(Participate)
