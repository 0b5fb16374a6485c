"""The worker: prepares, takes leases, delivers, and never leaves its leader waiting for an answer it will not give."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from shoal.roles.actions import Action, CancelTimer, End, Evaluate, Interrupt, Prepare, Record, Send, SetTimer, Train
from shoal.roles.events import (
    Connected,
    Disconnected,
    EvaluationDone,
    Prepared,
    PrepareFailed,
    Reassigned,
    Received,
    Started,
    StopRequested,
    TimerFired,
    Trained,
    TrainerFailed,
)
from shoal.roles.worker import RETRY_S, Worker
from shoal.wire.messages import (
    Evaluated,
    Failed,
    Finished,
    Go,
    JobSpec,
    Message,
    Offer,
    Ready,
    Refused,
    Update,
    Wait,
    Work,
)

A = TypeVar("A")
M = TypeVar("M", bound=Message)
MODEL = {"model": np.array([1, 2], dtype=np.float32)}
DELTA = {"delta": np.array([0.5, 0.5], dtype=np.float32)}


def work(lease: int = 1, *, version: int = 0, term: int = 1, **changes: Any) -> Work:
    given: dict[str, Any] = {"kind": "train", "batches": (4,), "deadline_s": 60.0, "tensors": MODEL}
    return Work(job="digits", term=term, lease=lease, version=version, **given | changes)


def trained(lease: int = 1, **changes: Any) -> Trained:
    given: dict[str, Any] = {"examples": 1, "loss_sum": 0.5, "seconds": 0.1, "tensors": DELTA}
    return Trained(lease=lease, **given | changes)


class Device:
    """A worker that is connected and prepared, and what it just did."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.worker = Worker(spec=spec, leader="home", term=1)
        self.actions: list[Action] = []
        for event in (Started(), Connected(node="home"), Prepared()):
            self.happens(event)

    def happens(self, event: Any) -> list[Action]:
        self.actions = self.worker.handle(event, 0.0)
        return self.actions

    def hears(self, message: Message) -> list[Action]:
        return self.happens(Received(sender="home", message=message))

    def says(self, kind: type[M]) -> list[M]:
        messages = [action.message for action in self.actions if isinstance(action, Send) and action.to == "home"]
        return [message for message in messages if isinstance(message, kind)]

    def does(self, kind: type[A]) -> list[A]:
        return [action for action in self.actions if isinstance(action, kind)]


@pytest.fixture
def device(make_spec: Callable[..., JobSpec]) -> Device:
    return Device(make_spec())


# Beginning -----------------------------------------------------------------------------------------


def test_it_prepares_first_and_is_ready_once_there_is_a_session_too(make_spec: Callable[..., JobSpec]) -> None:
    spec = make_spec()
    worker = Worker(spec=spec, leader="home", term=1)
    assert worker.handle(Started(), 0.0) == [Prepare(spec=spec)]
    assert worker.handle(Prepared(), 0.0) == []
    ready = Send(to="home", message=Ready(job="digits", holds_term=0, holds_version=-1))
    assert worker.handle(Connected(node="home"), 0.0) == [ready]


def test_a_lease_is_trained_and_its_update_sent(device: Device) -> None:
    device.hears(work())
    assert device.actions == [
        SetTimer(name="lease-deadline", after_s=60.0),
        Train(lease=1, epoch=0, batches=(4,), tensors=MODEL),
    ]
    device.happens(trained())
    assert CancelTimer(name="lease-deadline") in device.actions
    (update,) = device.says(Update)
    assert update == Update(job="digits", term=1, lease=1, version=0, examples=1, loss_sum=0.5, train_s=0.1)
    assert update.tensors["delta"].tolist() == [0.5, 0.5]
    assert not device.says(Ready), "the leader speaks next"


def test_an_evaluation_is_done_and_its_sums_sent(device: Device) -> None:
    device.hears(work(kind="evaluate", batches=(2,)))
    assert device.does(Evaluate)[0].chunks == (2,)
    device.happens(EvaluationDone(lease=1, examples=100, loss_sum=9.0, correct=80))
    assert device.says(Evaluated) == [
        Evaluated(job="digits", term=1, lease=1, version=0, examples=100, loss_sum=9.0, correct=80)
    ]


def test_a_version_it_holds_needs_no_model(device: Device) -> None:
    device.hears(work(1, version=3))
    device.happens(trained(1))
    device.hears(work(2, version=3, tensors={}))
    assert device.does(Train)[0].tensors == {}


def test_a_version_it_does_not_hold_is_asked_for(device: Device) -> None:
    device.hears(work(1, version=3))
    device.happens(trained(1))
    device.hears(work(2, version=4, tensors={}))
    assert not device.does(Train)
    assert device.says(Ready) == [Ready(job="digits", holds_term=1, holds_version=3)]


def test_a_new_trainer_holds_nothing(device: Device) -> None:
    device.hears(work(1, version=3))
    device.happens(TrainerFailed(lease=1, reason="killed"))
    device.happens(Prepared())
    assert device.says(Ready) == [Ready(job="digits", holds_term=0, holds_version=-1)]


# Credits and refusals ------------------------------------------------------------------------------


def test_without_credit_the_update_is_offered_and_sent_on_go(device: Device) -> None:
    device.hears(work(credit=False))
    device.happens(trained())
    assert device.says(Offer) == [Offer(job="digits", term=1, lease=1, size_bytes=8)]
    assert not device.says(Update)
    device.hears(Go(job="digits", term=2, lease=1))
    assert not device.says(Update), "a go of another term is for another lease"
    device.hears(Go(job="digits", term=1, lease=1))
    assert device.says(Update)
    device.hears(Go(job="digits", term=1, lease=1))
    assert not device.says(Update), "it is sent once"


def test_a_result_of_an_evaluation_needs_no_credit(device: Device) -> None:
    device.hears(work(kind="evaluate", credit=False))
    device.happens(EvaluationDone(lease=1, examples=1, loss_sum=0.0, correct=1))
    assert device.says(Evaluated)


def test_a_refused_offer_is_dropped_and_the_leader_speaks_next(device: Device) -> None:
    device.hears(work(credit=False))
    device.happens(trained())
    device.hears(Refused(job="digits", term=1, lease=1, reason="lease 1 expired"))
    assert device.actions == [Record(kind="refused", reason="lease 1 expired", job="digits")]
    device.hears(Go(job="digits", term=1, lease=1))
    assert device.actions == []
    device.hears(work(2))
    assert device.does(Train)


def test_a_refusal_of_an_older_lease_of_the_same_number_leaves_the_new_one_alone(device: Device) -> None:
    device.hears(work(1, term=2, credit=False))
    device.happens(trained())
    device.hears(Refused(job="digits", term=1, lease=1, reason="made under term 1"))
    device.hears(Go(job="digits", term=2, lease=1))
    assert device.says(Update)


def test_a_refusal_while_the_next_lease_is_trained_changes_nothing(device: Device) -> None:
    device.hears(work(2))
    device.hears(Refused(job="digits", term=1, lease=1, reason="a duplicate"))
    device.happens(trained(2))
    assert device.says(Update)


def test_a_lease_that_was_lost_with_its_session_is_asked_for(device: Device) -> None:
    device.hears(work(1, credit=False))
    device.happens(trained())
    device.happens(Disconnected(node="home", reason="cut"))
    device.happens(Connected(node="home"))
    assert device.says(Offer)
    # Lease 2 was sent on the session that broke: unless the worker says so, both wait for each other.
    device.hears(Refused(job="digits", term=1, lease=1, reason="lease 1 expired", holds=2))
    assert device.says(Ready)
    device.hears(work(2))
    device.hears(Refused(job="digits", term=1, lease=1, reason="a copy", holds=2))
    assert not device.says(Ready), "it has lease 2"


def test_a_reason_to_wait_is_shown(device: Device) -> None:
    device.hears(Wait(job="digits", reason="2 of at least 3 workers are here"))
    assert (device.worker.state, device.worker.reason) == ("waiting", "2 of at least 3 workers are here")


# The trainer fails ---------------------------------------------------------------------------------


def test_a_trainer_that_fails_is_reported_and_started_again(device: Device) -> None:
    device.hears(work())
    device.happens(TrainerFailed(lease=1, reason="KeyError at task.py:9"))
    assert device.says(Failed) == [Failed(job="digits", term=1, lease=1, reason="KeyError at task.py:9")]
    assert device.does(Prepare)
    assert device.worker.state == "failing"
    device.happens(Prepared())
    assert device.says(Ready)


def test_a_trainer_that_keeps_failing_is_started_less_and_less_often(device: Device) -> None:
    waits = []
    for lease in range(1, 9):
        device.hears(work(lease))
        device.happens(TrainerFailed(lease=lease, reason="x"))
        timers = [action.after_s for action in device.does(SetTimer)]
        waits.append(timers[0] if timers else 0.0)
        if timers:
            assert not device.does(Prepare)
            assert device.happens(TimerFired(name="retry")) == [Prepare(spec=device.spec)]
        device.happens(Prepared())
    assert waits == [*RETRY_S, RETRY_S[-1], RETRY_S[-1]]


def test_success_forgives_earlier_failures(device: Device) -> None:
    device.hears(work(1))
    device.happens(TrainerFailed(lease=1, reason="x"))
    device.happens(Prepared())
    device.hears(work(2))
    device.happens(trained(2))
    device.hears(work(3))
    device.happens(TrainerFailed(lease=3, reason="x"))
    assert device.does(Prepare), "at once, as the first time"


def test_what_cannot_be_prepared_is_reported_under_no_lease(device: Device) -> None:
    device.happens(PrepareFailed(reason="no space left on device"))
    assert device.says(Failed) == [Failed(job="digits", term=1, lease=0, reason="no space left on device")]
    device.happens(PrepareFailed(reason="no space left on device"))
    assert device.does(SetTimer) == [SetTimer(name="retry", after_s=1.0)]


def test_a_session_that_returns_ends_the_wait_for_another_try(device: Device) -> None:
    device.happens(Disconnected(node="home", reason="cut"))
    device.happens(TrainerFailed(lease=1, reason="it died"))
    device.happens(PrepareFailed(reason="not connected"))
    assert device.does(SetTimer) == [SetTimer(name="retry", after_s=1.0)]
    assert device.happens(Connected(node="home")) == [CancelTimer(name="retry"), Prepare(spec=device.spec)]
    # It is under way: another session does not begin it anew.
    assert device.happens(Connected(node="home")) == []


def test_a_reason_of_any_length_fits(device: Device) -> None:
    device.hears(work())
    device.happens(TrainerFailed(lease=1, reason="x" * 100_000 + "\0\udce9"))
    assert len(device.says(Failed)[0].reason) == 4096


def test_a_trainer_out_of_time_is_interrupted(device: Device) -> None:
    device.hears(work(deadline_s=7.5))
    device.happens(TimerFired(name="lease-deadline"))
    assert device.actions == [Interrupt(lease=1, reason="no result within the lease's 7.5 s")]
    device.happens(TrainerFailed(lease=1, reason="stuck in loss (task.py:3)"))
    assert device.says(Failed)


def test_a_timer_that_fires_as_the_result_arrives_interrupts_nothing(device: Device) -> None:
    device.hears(work(credit=False))
    device.happens(trained())
    assert device.happens(TimerFired(name="lease-deadline")) == []


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_a_failed_lease_not_a_crash(device: Device, loss: float) -> None:
    device.hears(work(1))
    device.happens(trained(1, loss_sum=loss))
    assert device.says(Failed)[0].reason == "training gave a loss that is not finite: try a lower learning rate"
    assert device.says(Ready), "the trainer lives"
    device.hears(work(2, kind="evaluate"))
    device.happens(EvaluationDone(lease=2, examples=1, loss_sum=loss, correct=0))
    assert device.says(Failed)[0].lease == 2
    assert device.says(Ready)


def test_an_answer_to_a_lease_that_was_replaced_is_dropped(device: Device) -> None:
    device.hears(work(1))
    device.hears(work(2))
    assert device.happens(trained(1)) == []
    device.happens(trained(2))
    assert device.says(Update)[0].lease == 2


# Sessions come and go ------------------------------------------------------------------------------


def test_an_update_made_without_a_session_is_kept_and_delivered(device: Device) -> None:
    device.hears(work())
    device.happens(Disconnected(node="home", reason="reset"))
    device.happens(trained())
    assert not device.does(Send)
    assert device.worker.reason == "the leader is not reachable; the update is kept"
    device.happens(Connected(node="home"))
    assert device.says(Update)
    assert not device.says(Ready)


def test_a_session_that_returns_during_training_is_not_told_ready(device: Device) -> None:
    device.hears(work())
    device.happens(Disconnected(node="home", reason="reset"))
    assert device.happens(Connected(node="home")) == [], "Ready would give up the lease"


def test_an_offer_is_made_again_after_a_break(device: Device) -> None:
    device.hears(work(credit=False))
    device.happens(trained())
    device.happens(Disconnected(node="home", reason="reset"))
    device.happens(Connected(node="home"))
    assert device.says(Offer)


def test_an_update_lost_with_its_session_is_not_sent_again(device: Device) -> None:
    device.hears(work())
    device.happens(trained())
    device.happens(Disconnected(node="home", reason="reset"))
    device.happens(Connected(node="home"))
    assert device.says(Ready), "the leader gives the batch out again"
    assert not device.says(Update)


def test_a_failure_without_a_session_is_not_lost_work(device: Device) -> None:
    device.hears(work())
    device.happens(Disconnected(node="home", reason="reset"))
    device.happens(TrainerFailed(lease=1, reason="x"))
    assert not device.does(Send)
    device.happens(Connected(node="home"))
    assert not device.does(Send), "it has no trainer yet"
    device.happens(Prepared())
    assert device.says(Ready)


def test_a_new_term_voids_what_was_made_for_the_old_one(device: Device) -> None:
    device.hears(work())
    device.happens(Disconnected(node="home", reason="reset"))
    device.happens(trained())
    device.happens(Reassigned(term=2, leader="home"))
    device.happens(Connected(node="home"))
    assert not device.says(Update)
    assert device.says(Ready)


def test_after_a_break_it_claims_no_model(device: Device) -> None:
    device.hears(work(1, version=3))
    device.happens(trained(1))
    device.happens(Disconnected(node="home", reason="reset"))
    device.happens(Connected(node="home"))
    # Half of another may have arrived over it.
    assert device.says(Ready) == [Ready(job="digits", holds_term=0, holds_version=-1)]


def test_training_for_an_old_term_ends_in_ready(device: Device) -> None:
    device.hears(work())
    device.happens(Reassigned(term=2, leader="home"))
    assert not device.does(Send)
    device.happens(trained())
    assert not device.says(Update)
    assert device.says(Ready)


def test_the_same_term_again_asks_again(device: Device) -> None:
    """A node that was thought lost is assigned anew on the connection it always had."""
    device.happens(Reassigned(term=1, leader="home"))
    assert device.says(Ready)


def test_an_older_term_is_ignored(device: Device) -> None:
    device.happens(Reassigned(term=3, leader="home"))
    assert device.happens(Reassigned(term=2, leader="old")) == []
    assert device.worker.leader == "home"
    assert device.hears(work(term=2)) == []
    device.hears(work(term=4))
    assert device.does(Train), "a leader of a newer term is believed before the manager says so"


def test_work_that_comes_before_the_trainer_is_back_is_asked_for_later(device: Device) -> None:
    device.hears(work(1))
    device.happens(TrainerFailed(lease=1, reason="x"))
    assert device.hears(work(2)) == []
    device.happens(Prepared())
    assert device.says(Ready)


# The end -------------------------------------------------------------------------------------------


def test_finished_and_dismissed_end_it(device: Device) -> None:
    device.hears(Finished(job="digits", reason="all 3 epochs are done"))
    assert device.does(End) == [End(reason="all 3 epochs are done")]
    assert device.happens(StopRequested(reason="dismissed")) == [End(reason="dismissed")]


def test_what_is_not_for_a_worker_is_ignored(device: Device) -> None:
    assert device.hears(Ready(job="digits")) == []
    assert device.happens(TimerFired(name="tick")) == []
