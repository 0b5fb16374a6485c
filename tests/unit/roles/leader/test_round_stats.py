"""The pulse of a job, from leases whose times are written down: what is counted as a round, and what as waiting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.learning.layout import Layout
from shoal.learning.metrics import judged_sums
from shoal.plan import Until
from shoal.roles.actions import Record, Save, Send
from shoal.roles.events import Event, Received, Saved, Started
from shoal.roles.leader.leader import Leader
from shoal.roles.leader.round_stats import _TYPICAL_ROUNDS, RoundStats
from shoal.roles.machine import Machine
from shoal.scheduling.ledger import Lease
from shoal.topology.saturation import GAINS, ROUNDS_KEPT, ROUNDS_MIN, SATURATED, UNSURE
from shoal.wire.messages import Evaluated, JobSpec, Message, Ready, Update, Work

#: Of each lease, how long it took and how much of that was training.
Leases = list[tuple[float, float]]

HALF_RIGHT = judged_sums(examples=30, loss_sum=15.0, correct=15)


def lease(issued_s: float) -> Lease:
    return Lease(id=1, worker="a", epoch=0, batches=(0,), version=0, issued_s=issued_s, deadline_s=issued_s + 60)


class Told(RoundStats):
    """A pulse that is told of whole rounds."""

    def __init__(self, pace: str = "sync") -> None:
        self.clock = Machine()
        super().__init__(self.clock, pace=pace)
        self.now_s = 100.0

    def round(self, leases: Leases, *, workers: int | None = None, **changes: Any) -> None:
        crew = len(leases) if workers is None else workers
        for lease_s, train_s in leases:
            given = {"workers": crew, "others": crew - 1, **changes}
            self.clock.now_s = self.now_s + lease_s
            self.on_merged(lease(self.now_s), train_s=train_s, **given)
        self.clock.now_s = self.now_s
        self.on_version(workers=crew)
        self.now_s += max(lease_s for lease_s, _ in leases)

    @property
    def last(self) -> tuple[float, float]:
        """Of the round counted last: how long it took, and how long without the wait for stragglers."""
        ((workers, logs),) = self._saturation._logs.items()
        return self._shown[-1][0], workers / math.exp(logs[-1])


def even(workers: int, lease_s: float) -> Leases:
    return [(lease_s, 1.0)] * workers


# What is a round -----------------------------------------------------------------------------------------------


def test_a_round_takes_until_its_last_lease_and_what_is_not_training_is_synchronisation() -> None:
    pulse = Told()
    pulse.round([(1.4, 1.0), (1.6, 1.0), (1.8, 1.0)])
    assert (pulse.round_s, pulse.sync_s) == pytest.approx((1.8, 0.8))
    assert pulse.verdict == ""
    pulse.look()
    assert (pulse.verdict, pulse.saturated_at) == (UNSURE, 0)
    assert pulse.reason == "3 workers: measuring whether the last one helped (20 rounds needed)"


@pytest.mark.parametrize(
    "kind",
    [
        "device.joined",
        "worker.lost",
        "device.released",
        "lease.expired",
        "lease.returned",
        "lease.failed",
        "preparation.failed",
        "update.rejected",
        "job.evaluated",
        "job.resumed",
    ],
)
@pytest.mark.parametrize("pace", ["sync", "async"])
def test_a_round_in_which_something_happened_is_not_counted_and_the_next_is(kind: str, pace: str) -> None:
    pulse = Told(pace)
    for _ in range(4):
        pulse.round(even(3, 1.5))
    pulse.on_record(kind)
    counted = pulse._counted
    pulse.round(even(3, 9.0))
    assert pulse._counted == counted
    assert pulse.round_s == pytest.approx(1.5)
    for _ in range(3):
        pulse.round(even(3, 2.5))
    assert pulse._shown[-1][0] == pytest.approx(2.5)


@pytest.mark.parametrize("kind", ["epoch.done", "worker.suspected", "saturation.estimated", "save.failed"])
def test_what_does_not_touch_a_round_does_not_disturb_it(kind: str) -> None:
    pulse = Told()
    pulse.on_record(kind)
    pulse.round(even(3, 1.5))
    assert pulse.round_s == pytest.approx(1.5)


def test_a_round_cut_short_by_the_end_of_an_epoch_is_not_counted() -> None:
    pulse = Told()
    pulse.round(even(2, 1.5), workers=3)
    assert pulse.round_s == 0.0


def test_a_round_in_which_one_began_later_is_not_counted() -> None:
    pulse = Told()
    pulse.clock.now_s = 101.5
    pulse.on_merged(lease(100.0), train_s=1.0, workers=2, others=1)
    pulse.clock.now_s = 102.5
    pulse.on_merged(lease(101.0), train_s=1.0, workers=2, others=0)
    pulse.clock.now_s = 0.0
    pulse.on_version(workers=2)
    assert pulse.round_s == 0.0


def test_a_clock_that_stands_still_counts_nothing() -> None:
    pulse = Told()
    pulse.round(even(2, 0.0))
    assert pulse.round_s == 0.0


def test_where_nobody_waits_a_round_is_as_many_updates_as_workers_and_the_mean_lease_is_its_time() -> None:
    pulse = Told("async")
    steady: Leases = [(1.0, 0.5), (2.0, 0.5)]
    # The first update shows how many are here, and one round is passed over.
    for _ in range(6):
        pulse.round(steady)
    assert pulse._counted == 4
    assert (pulse.round_s, pulse.sync_s) == pytest.approx((1.5, 1.0))


def test_where_nobody_waits_nothing_is_counted_while_someone_has_no_work() -> None:
    pulse = Told("async")
    for _ in range(9):
        pulse.round(even(3, 1.5), others=1)
    assert pulse.round_s == 0.0


# What is waiting -----------------------------------------------------------------------------------------------


def test_what_the_slowest_trained_longer_is_waiting_where_the_link_was_free() -> None:
    pulse = Told()
    # Three train 1.0 s and their transfers take 0.3 s; the fourth trains three seconds longer.
    pulse.round([(1.3, 1.0), (1.3, 1.0), (1.3, 1.0), (4.3, 4.0)])
    assert pulse.last == pytest.approx((4.3, 1.3))


def test_it_is_not_where_others_queued_for_the_link_as_long() -> None:
    pulse = Told()
    # The last trained half a second longer than the others, but one of them came just as late.
    pulse.round([(2.0, 1.0), (2.5, 1.0), (3.0, 1.0), (3.1, 1.5)])
    assert pulse.last == pytest.approx((3.1, 3.0))


def test_where_nobody_waits_a_slow_device_is_not_the_links_fault_either() -> None:
    pulse = Told("async")
    for _ in range(6):
        pulse.round([(1.3, 1.0), (1.3, 1.0), (4.3, 4.0)])
    assert pulse.last == pytest.approx((2.3, 1.3))


def test_a_worker_that_claims_to_have_trained_longer_than_it_was_away_is_not_believed() -> None:
    pulse = Told()
    for _ in range(3):
        pulse.round([(1.3, 1e9), (1.3, 1e9)])
    assert pulse.last == pytest.approx((1.3, 1.3))


# What comes of it ----------------------------------------------------------------------------------------------


def grow(pulse: Told, curve: dict[int, float], *, rounds: int = ROUNDS_MIN + 5) -> list[str]:
    told = []
    for workers, lease_s in curve.items():
        pulse.on_record("device.joined")
        for number in range(rounds):
            # Times never are all the same.
            pulse.round(even(workers, lease_s * (1 + 0.001 * (number % 3))))
            if (record := pulse.look()) is not None:
                told.append(record)
    return told


@pytest.mark.parametrize("pace", ["sync", "buffered", "async"])
def test_saturation_is_said_once_and_that_it_is_over_too(pace: str) -> None:
    pulse = Told(pace)
    told = grow(pulse, {1: 1.5, 2: 1.5, 3: 1.5, 4: 2.0})
    assert len(told) == 1
    assert told[0].startswith("saturated at 3 workers: one more gains -0.0 % ± ")
    assert (pulse.verdict, pulse.saturated_at) == (SATURATED, 3)
    # With a better link five do more than three did.
    told = grow(pulse, {5: 1.5})
    assert len(told) == 1
    assert "4 workers: one more gains 66." in told[0]
    assert (pulse.verdict, pulse.saturated_at) == (GAINS, 0)


def test_that_each_brings_something_needs_no_record() -> None:
    pulse = Told()
    assert grow(pulse, {1: 1.5, 2: 1.5, 3: 1.5}) == []
    assert pulse.verdict == GAINS
    assert "worth it" in pulse.reason


def test_when_training_is_another_thing_all_is_measured_anew() -> None:
    pulse = Told()
    grow(pulse, {1: 1.5, 2: 1.5})
    assert pulse.verdict == GAINS
    # One joins, and all of them train twice as long from then on: that throughput falls is not because of the link.
    for _ in range(_TYPICAL_ROUNDS + ROUNDS_MIN):
        pulse.round([(2.5, 2.0), (2.49, 2.0), (2.48, 2.0)])
    assert pulse.look() is None
    assert pulse.verdict == UNSURE
    assert pulse.reason.startswith("3 workers: no smaller number of workers was measured")


def test_memory_is_bounded() -> None:
    pulse = Told()
    for _ in range(2 * ROUNDS_KEPT):
        pulse.round(even(2, 1.5))
    assert len(pulse._saturation._logs[2]) == ROUNDS_KEPT
    assert len(pulse._rounds.gathering) == 0
    assert len(pulse._typicals_s) == _TYPICAL_ROUNDS


# In a leader ---------------------------------------------------------------------------------------------------


class Led:
    """A leader of two workers whose leases take as long as a story says; each trains one second of it."""

    def __init__(self, spec: JobSpec) -> None:
        layout = Layout.of([("w", (2,), "parameter")])
        self.leader = Leader(spec=spec, layout=layout, model=np.zeros(2, np.float32), term=1, manager="home")
        self.now_s = 100.0
        self.holds: dict[str, Work] = {}
        self.records: list[str] = []
        self.happens(Started())
        for node in ("a", "b"):
            self.happens(Received(sender=node, message=Ready(job="digits"), size_bytes=0))

    def happens(self, event: Event) -> None:
        for action in self.leader.handle(event, self.now_s):
            if isinstance(action, Send) and isinstance(action.message, Work):
                self.holds[action.to] = action.message
            elif isinstance(action, Save):
                self.happens(Saved(version=action.version))
            elif isinstance(action, Record):
                self.records.append(action.kind)

    def answer(self, lease_s: float) -> None:
        """What is lent comes back."""
        self.now_s += lease_s
        for node, work in sorted(self.holds.items()):
            del self.holds[node]
            same: dict[str, Any] = {"job": "digits", "term": 1, "lease": work.lease}
            if work.kind == "evaluate":
                told: Message = Evaluated(**same, version=work.version, examples=30, metrics=HALF_RIGHT)
            else:
                delta = np.ones(2, np.float32)
                told = Update(
                    **same, version=work.version, examples=1, loss_sum=0.5, train_s=1.0, tensors={"delta": delta}
                )
            self.happens(Received(sender=node, message=told, size_bytes=0))

    @property
    def round_s(self) -> float:
        return self.leader.progress().round_s


def test_a_leader_counts_whole_rounds_and_not_the_first_after_joining_or_an_evaluation(
    make_spec: Callable[..., JobSpec],
) -> None:
    led = Led(make_spec(examples=6, test=30, until=Until(epochs=9)))
    # The second came while the first had its lease.
    led.answer(7.0)
    assert led.round_s == 0.0
    led.answer(1.5)
    assert led.round_s == 1.5
    led.answer(1.5)
    assert led.leader.epoch == 1
    led.answer(9.0)
    assert "job.evaluated" in led.records
    led.answer(1.1)
    assert led.round_s == 1.5, "nobody was sent a model"
    led.answer(1.7)
    assert led.round_s == pytest.approx(1.5)
    led.answer(1.7)
    assert led.round_s == pytest.approx(1.6)
