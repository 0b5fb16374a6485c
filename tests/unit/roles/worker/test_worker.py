"""The worker: prepares, takes leases, delivers, and never leaves its leader waiting for an answer it will not give."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from shoal.errors import PeerViolation
from shoal.learning.metrics import judged_sums
from shoal.roles.actions import (
    Action,
    CancelTimer,
    CountExamples,
    End,
    Evaluate,
    Interrupt,
    Prepare,
    Record,
    Send,
    SetTimer,
    StageModel,
    Train,
)
from shoal.roles.events import (
    Connected,
    Disconnected,
    EvaluationDone,
    Event,
    ExamplesCounted,
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
from shoal.roles.worker.delivery import ASTRAY_S, TAKEN_FIRST_S, TAKEN_LEAST_S, TAKEN_TIMES
from shoal.roles.worker.routes import ROUTE_S, ROUTES_KEPT
from shoal.roles.worker.worker import RETRY_S, VALUES_LEAST_S, Worker
from shoal.states import WorkerPhase
from shoal.wire.messages import (
    DeviceState,
    Evaluated,
    Failed,
    Finished,
    Go,
    Hop,
    JobSpec,
    Message,
    ModelShard,
    Offer,
    Ready,
    Route,
    Routed,
    ShardAck,
    TearDown,
    Update,
    UpdateReady,
    UpdateRefused,
    UpdateShard,
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

    def happens(self, event: Any, now_s: float = 0.0) -> list[Action]:
        self.actions = self.worker.handle(event, now_s)
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


def test_a_lease_is_trained_with_the_rate_it_names(device: Device) -> None:
    device.hears(work(version=7, rate=0.25))
    assert device.does(Train) == [Train(lease=1, epoch=0, batches=(4,), rate=0.25, version=7, deadline_s=60.0)]


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_is_refused(rate: float) -> None:
    with pytest.raises(PeerViolation):
        work(rate=rate)


def test_a_lease_is_trained_and_its_update_sent(device: Device) -> None:
    device.hears(work())
    assert device.actions == [
        SetTimer(name="lease-deadline", after_s=60.0),
        Train(lease=1, epoch=0, batches=(4,), deadline_s=60.0, tensors=MODEL),
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
    sums = judged_sums(examples=100, loss_sum=9.0, correct=80)
    device.happens(EvaluationDone(lease=1, examples=100, metrics=sums))
    assert device.says(Evaluated) == [Evaluated(job="digits", term=1, lease=1, version=0, examples=100, metrics=sums)]


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
    device.happens(EvaluationDone(lease=1, examples=1, metrics=judged_sums(examples=1, loss_sum=0.0, correct=1)))
    assert device.says(Evaluated)


def test_a_refused_offer_is_dropped_and_the_leader_speaks_next(device: Device) -> None:
    device.hears(work(credit=False))
    device.happens(trained())
    device.hears(UpdateRefused(job="digits", term=1, lease=1, reason="lease 1 expired"))
    assert device.actions == [Record(kind="update.rejected", reason="lease 1 expired", job="digits")]
    device.hears(Go(job="digits", term=1, lease=1))
    assert device.actions == []
    device.hears(work(2))
    assert device.does(Train)


def test_a_refusal_of_an_older_lease_of_the_same_number_leaves_the_new_one_alone(device: Device) -> None:
    device.hears(work(1, term=2, credit=False))
    device.happens(trained())
    device.hears(UpdateRefused(job="digits", term=1, lease=1, reason="made under term 1"))
    device.hears(Go(job="digits", term=2, lease=1))
    assert device.says(Update)


def test_a_refusal_while_the_next_lease_is_trained_changes_nothing(device: Device) -> None:
    device.hears(work(2))
    device.hears(UpdateRefused(job="digits", term=1, lease=1, reason="a duplicate"))
    device.happens(trained(2))
    assert device.says(Update)


def test_a_lease_that_was_lost_with_its_session_is_asked_for(device: Device) -> None:
    device.hears(work(1, credit=False))
    device.happens(trained())
    device.happens(Disconnected(node="home", reason="cut"))
    device.happens(Connected(node="home"))
    assert device.says(Offer)
    # Lease 2 was sent on the session that broke: unless the worker says so, both wait for each other.
    device.hears(UpdateRefused(job="digits", term=1, lease=1, reason="lease 1 expired", holds=2))
    assert device.says(Ready)
    device.hears(work(2))
    device.hears(UpdateRefused(job="digits", term=1, lease=1, reason="a copy", holds=2))
    assert not device.says(Ready), "it has lease 2"


def test_a_reason_to_wait_is_shown(device: Device) -> None:
    device.hears(Wait(job="digits", reason="2 of 3 required devices connected"))
    assert (device.worker.state, device.worker.reason) == (WorkerPhase.WAITING, "2 of 3 required devices connected")


# The trainer fails ---------------------------------------------------------------------------------


def test_a_trainer_that_fails_is_reported_and_started_again(device: Device) -> None:
    device.hears(work())
    device.happens(TrainerFailed(lease=1, reason="KeyError at task.py:9", traceback="File task.py"))
    assert device.says(Failed) == [
        Failed(job="digits", term=1, lease=1, reason="KeyError at task.py:9", traceback="File task.py")
    ]
    assert device.does(Prepare)
    assert device.worker.state is WorkerPhase.FAILING
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
    device.happens(PrepareFailed(reason="no space left on device", traceback="File\x1b task.py"))
    assert device.says(Failed) == [
        Failed(job="digits", term=1, lease=0, reason="no space left on device", traceback="File  task.py")
    ]
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
    device.happens(EvaluationDone(lease=2, examples=1, metrics=judged_sums(examples=1, loss_sum=loss, correct=0)))
    assert device.says(Failed)[0].lease == 2
    assert device.says(Failed)[0].reason == "evaluation gave a loss that is not finite: try a lower learning rate"
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
    device.hears(Finished(job="digits", reason="3 of 3 epochs"))
    assert device.does(End) == [End(reason="3 of 3 epochs")]
    assert device.happens(StopRequested(reason="dismissed")) == [End(reason="dismissed")]


def test_what_is_not_for_a_worker_is_ignored(device: Device) -> None:
    assert device.hears(Ready(job="digits")) == []
    assert device.happens(TimerFired(name="tick")) == []


# Aggregators -----------------------------------------------------------------------------------------------


def route(formation: int = 1, *, term: int = 1, hops: str = "ab") -> Route:
    """One value of the model to each."""
    parts = tuple(Hop(node=node, endpoint=f"{node}:7071", start=at, stop=at + 1) for at, node in enumerate(hops))
    return Route(job="digits", term=term, formation=formation, hops=parts)


def values(node: str, version: int, *, formation: int = 1, term: int = 1, **changes: Any) -> Received:
    start = "ab".index(node)
    given: dict[str, Any] = {"start": start, "stop": start + 1, "tensors": {"model": MODEL["model"][start : start + 1]}}
    told = ModelShard(job="digits", term=term, formation=formation, version=version, **given | changes)
    return Received(sender=node, message=told)


def taken(node: str, lease: int = 1, *, formation: int = 1, term: int = 1) -> Received:
    return Received(sender=node, message=ShardAck(job="digits", term=term, formation=formation, lease=lease))


def go(lease: int = 1, *, formation: int) -> Go:
    return Go(job="digits", term=1, lease=lease, formation=formation)


def tear_down(formation: int = 1) -> TearDown:
    return TearDown(job="digits", term=1, formation=formation, reason="over")


def pieces(device: Device) -> dict[str, list[float]]:
    """What it just sent to whom."""
    sent = {action.to: action.message for action in device.does(Send)}
    return {to: piece.tensors["delta"].tolist() for to, piece in sent.items() if isinstance(piece, UpdateShard)}


@pytest.fixture
def routed(device: Device) -> Device:
    """It reaches aggregators a and b of formation 1."""
    device.hears(route())
    for node in ("a", "b"):
        device.happens(Connected(node=node))
    return device


def reported(device: Device, lease: int = 1, **changes: Any) -> Device:
    """A lease is trained and with both aggregators, and its leader knows."""
    device.hears(work(lease, formation=1, **changes))
    device.happens(trained(lease, tensors={"delta": np.array([3, 4], dtype=np.float32)}))
    device.happens(taken("a", lease))
    device.happens(taken("b", lease))
    assert device.says(Update)
    return device


def test_a_route_is_ready_once_every_aggregator_is_reached(device: Device) -> None:
    assert device.hears(route()) == [SetTimer(name="route", after_s=ROUTE_S)]
    assert device.happens(Connected(node="b")) == []
    device.happens(Connected(node="a"))
    assert device.says(Routed) == [Routed(job="digits", term=1, formation=1)]
    assert device.happens(TimerFired(name="route")) == [], "it was said"
    device.hears(route(2))
    assert device.says(Routed) == [Routed(job="digits", term=1, formation=2)], "those are reached already"


def test_aggregators_that_cannot_be_reached_are_named_when_time_is_over(device: Device) -> None:
    device.hears(route(hops="abc"))
    device.happens(Connected(node="b"))
    device.happens(TimerFired(name="route"))
    assert device.says(Routed) == [Routed(job="digits", term=1, formation=1, unreached=("a", "c"))]
    device.happens(Connected(node="a"))
    device.happens(Connected(node="c"))
    assert device.says(Routed)[-1].unreached == (), "better late than never"


def test_attempts_in_vain_do_not_put_off_what_the_leader_hears(routed: Device) -> None:
    """An aggregator whose door is shut refuses each of them, sooner than the time to tell of it is over."""
    lost = Disconnected(node="a", reason="it has no business here")
    later = [SetTimer(name="route", after_s=ROUTE_S)]
    assert routed.happens(lost) == later
    assert routed.happens(lost) == []
    routed.happens(TimerFired(name="route"))
    assert routed.says(Routed) == [Routed(job="digits", term=1, formation=1, unreached=("a",))]
    assert routed.happens(lost) == later, "and it is told of again"
    routed.happens(Connected(node="a"))
    assert routed.happens(lost) == later, "one that was there is waited for anew"


def test_a_route_of_an_older_term_is_not_taken(device: Device) -> None:
    device.happens(Reassigned(term=2, leader="home"))
    assert device.hears(route()) == []
    assert device.happens(TimerFired(name="route")) == []


def test_a_route_in_use_is_kept_however_many_others_are_tried(routed: Device) -> None:
    reported(routed)
    for formation in range(2, 2 + 2 * ROUTES_KEPT):
        routed.hears(route(formation))
    routed.hears(work(2, version=1, formation=1))
    routed.happens(trained(2))
    assert set(pieces(routed)) == {"a", "b"}
    assert len(routed.worker._routes._by_formation) == ROUTES_KEPT + 1


def test_an_update_is_cut_to_the_parts_of_the_aggregators(routed: Device) -> None:
    routed.hears(work(formation=1, credit=False))
    routed.happens(trained(tensors={"delta": np.array([3, 4], dtype=np.float32)}))
    assert pieces(routed) == {"a": [3.0], "b": [4.0]}
    assert not routed.says(Update)
    assert not routed.says(Offer), "there is nothing to make room for"
    piece = next(action.message for action in routed.does(Send) if action.to == "a")
    assert piece == UpdateShard(job="digits", term=1, formation=1, lease=1, version=0)


def test_the_leader_hears_of_it_once_every_aggregator_has_its_piece(routed: Device) -> None:
    routed.hears(work(formation=1))
    routed.happens(trained())
    assert routed.happens(taken("b")) == []
    assert routed.happens(taken("b")) == [], "twice the same"
    assert routed.happens(taken("a", 2)) == [], "of another lease"
    assert routed.happens(taken("a", formation=2)) == [], "of another formation"
    routed.happens(taken("a"))
    (update,) = routed.says(Update)
    assert update == Update(
        job="digits", term=1, lease=1, version=0, examples=1, loss_sum=0.5, train_s=0.1, formation=1
    )
    assert dict(update.tensors) == {}
    assert routed.worker.state is WorkerPhase.WAITING


def test_the_leader_hears_that_an_update_is_made_before_it_goes(routed: Device) -> None:
    routed.hears(work(formation=1))
    routed.happens(trained())
    made = UpdateReady(job="digits", term=1, lease=1)
    told = [(send.to, type(send.message)) for send in routed.does(Send)]
    assert told[0] == ("home", UpdateReady)
    assert sorted(told[1:], key=lambda each: each[0]) == [("a", UpdateShard), ("b", UpdateShard)]
    assert routed.says(UpdateReady) == [made]


def test_one_that_does_not_take_its_piece_is_told_of_until_it_has(routed: Device) -> None:
    routed.hears(work(formation=1))
    routed.happens(trained())
    assert routed.does(SetTimer) == [SetTimer(name="taken", after_s=TAKEN_FIRST_S)], "nobody knows what is usual"
    routed.happens(taken("a"))
    for _ in range(2):
        routed.happens(TimerFired(name="taken"))
        assert routed.says(Routed) == [Routed(job="digits", term=1, formation=1, unreached=("b",))]
        assert routed.does(SetTimer) == [SetTimer(name="taken", after_s=TAKEN_FIRST_S)]
    routed.happens(taken("b"))
    assert routed.says(Routed) == [Routed(job="digits", term=1, formation=1)], "it does answer"
    assert routed.says(Update)
    assert routed.happens(TimerFired(name="taken")) == []


def test_one_that_takes_longer_than_is_usual_is_told_of_sooner(routed: Device) -> None:
    reported(routed)
    routed.hears(work(2, version=1, formation=1))
    routed.happens(trained(2))
    assert routed.does(SetTimer) == [SetTimer(name="taken", after_s=TAKEN_LEAST_S)]
    for node in ("a", "b"):
        routed.happens(taken(node, 2), now_s=0.5)
    assert not routed.says(Routed), "nobody complained"
    routed.hears(work(3, version=2, formation=1))
    routed.happens(trained(3))
    # As long as it took in the median: once no time, once half a second.
    assert routed.does(SetTimer) == [SetTimer(name="taken", after_s=TAKEN_TIMES * 0.25)]


def test_a_piece_goes_when_its_aggregator_is_there_and_again_after_a_break(device: Device) -> None:
    device.hears(route())
    device.happens(Connected(node="a"))
    device.hears(work(formation=1))
    device.happens(trained())
    assert set(pieces(device)) == {"a"}
    device.happens(taken("a"))
    device.happens(Connected(node="b"))
    assert set(pieces(device)) == {"b"}
    device.happens(Disconnected(node="b", reason="cut"))
    device.happens(Connected(node="b"))
    assert set(pieces(device)) == {"b"}, "whether it came is not known"
    device.happens(Disconnected(node="a", reason="cut"))
    device.happens(Connected(node="a"))
    assert pieces(device) == {}, "a has it"
    device.happens(taken("b"))
    assert device.says(Update)


def test_a_report_waits_for_the_leader_to_be_there(routed: Device) -> None:
    routed.hears(work(formation=1))
    routed.happens(trained())
    routed.happens(Disconnected(node="home", reason="cut"))
    routed.happens(taken("a"))
    routed.happens(taken("b"))
    assert not routed.says(Update)
    routed.happens(Connected(node="home"))
    assert [update.formation for update in routed.says(Update)] == [1]
    assert not routed.says(Ready)


def test_a_report_is_said_again_after_a_break_and_no_piece_is_sent_again(routed: Device) -> None:
    reported(routed)
    routed.happens(Disconnected(node="home", reason="cut"))
    routed.happens(Connected(node="home"))
    assert [update.formation for update in routed.says(Update)] == [1]
    assert pieces(routed) == {}


def test_the_next_lease_lets_go_of_an_update_that_was_reported(routed: Device) -> None:
    reported(routed)
    routed.hears(work(2, version=1, formation=1))
    assert routed.does(Train)
    assert routed.hears(go(1, formation=0)) == [], "it is not here any more"


# An update goes another way ----------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["training", "made", "reported"])
def test_an_update_goes_by_another_formation(routed: Device, when: str) -> None:
    routed.hears(route(2, hops="ba"))
    routed.hears(work(formation=1))
    if when != "training":
        routed.happens(trained(tensors={"delta": np.array([3, 4], dtype=np.float32)}))
    if when == "reported":
        routed.happens(taken("a"))
        routed.happens(taken("b"))
    routed.hears(go(formation=2))
    if when == "training":
        assert pieces(routed) == {}
        routed.happens(trained(tensors={"delta": np.array([3, 4], dtype=np.float32)}))
    assert pieces(routed) == {"b": [3.0], "a": [4.0]}, "all of it, whoever had a piece before"
    assert routed.happens(taken("a", formation=1)) == []
    routed.happens(taken("a", formation=2))
    assert not routed.says(Update)
    routed.happens(taken("b", formation=2))
    assert [update.formation for update in routed.says(Update)] == [2]


@pytest.mark.parametrize("when", ["training", "made", "reported"])
def test_an_update_goes_whole_to_the_leader_after_all(routed: Device, when: str) -> None:
    routed.hears(work(formation=1))
    if when != "training":
        routed.happens(trained())
    if when == "reported":
        routed.happens(taken("a"))
        routed.happens(taken("b"))
    routed.hears(go(formation=0))
    if when == "training":
        assert not routed.says(Update)
        routed.happens(trained())
    (update,) = routed.says(Update)
    assert (update.formation, update.tensors["delta"].tolist()) == (0, [0.5, 0.5])
    assert routed.hears(go(formation=0)) == [], "once"


def test_word_of_an_update_that_is_not_here_any_more_makes_it_ready(routed: Device) -> None:
    reported(routed, 5)
    routed.hears(UpdateRefused(job="digits", term=1, lease=5, reason="expired"))
    routed.hears(go(5, formation=2))
    assert routed.says(Ready), "someone else trains it"
    assert routed.hears(go(4, formation=2)) == [], "of an older lease: the leader knows what became of it"


def test_word_of_a_lease_that_was_lost_with_the_last_process_makes_it_ready(routed: Device) -> None:
    """The leader would wait for its update, and lend it nothing."""
    routed.hears(go(7, formation=1))
    assert routed.says(Ready)


def test_an_update_whose_aggregators_are_no_more_is_offered(routed: Device) -> None:
    routed.hears(work(formation=1))
    routed.happens(trained())
    routed.happens(taken("a"))
    assert routed.hears(tear_down()) == [SetTimer(name="astray", after_s=ASTRAY_S)], "the leader speaks first"
    # Its lease may have run out long ago: unless it speaks, nobody does.
    routed.happens(TimerFired(name="astray"))
    assert routed.says(Offer) == [Offer(job="digits", term=1, lease=1, size_bytes=8)]
    routed.hears(go(formation=0))
    assert routed.says(Update)[0].tensors["delta"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("formation", [0, 2])
def test_an_update_of_which_the_leader_spoke_in_time_is_not_offered(routed: Device, formation: int) -> None:
    routed.hears(work(formation=1))
    routed.happens(trained())
    routed.hears(tear_down())
    routed.hears(route(2))
    routed.hears(go(formation=formation))
    assert routed.happens(TimerFired(name="astray")) == []


def test_one_without_an_update_in_hand_has_nothing_to_ask_after_a_formation(routed: Device) -> None:
    assert routed.hears(tear_down()) == []
    routed.hears(work(formation=0))
    assert routed.hears(tear_down(2)) == [], "its update goes to the leader"


def test_an_update_that_is_made_after_its_formation_is_over_is_offered(routed: Device) -> None:
    routed.hears(work(formation=1))
    routed.hears(tear_down())
    assert routed.happens(TimerFired(name="astray")) == [], "there is none yet"
    routed.happens(trained())
    assert routed.says(Offer)
    assert pieces(routed) == {}
    routed.happens(Disconnected(node="home", reason="cut"))
    routed.happens(Connected(node="home"))
    assert routed.says(Offer), "where it goes was lost with the session"


@pytest.mark.parametrize("event", [TimerFired(name="astray"), Connected(node="home")])
def test_the_leader_knows_what_to_do_with_a_reported_update(routed: Device, event: Event) -> None:
    reported(routed)
    routed.hears(tear_down())
    assert not routed.says(Offer)
    routed.happens(event)
    assert routed.says(Offer), "but may have lent its lease anew, or what it said may be lost"


def test_the_end_of_older_formations_leaves_the_one_in_use_alone(routed: Device) -> None:
    routed.hears(route(2))
    routed.hears(tear_down(1))
    routed.hears(work(formation=2))
    routed.happens(trained())
    assert set(pieces(routed)) == {"a", "b"}


# Values come from aggregators -------------------------------------------------------------------------------------


def test_values_are_staged_and_trained_once_they_are_whole(routed: Device) -> None:
    routed.happens(values("b", 3))
    (stage,) = routed.does(StageModel)
    assert (stage.start, stage.tensors["model"].tolist()) == (1, [2.0])
    routed.happens(values("a", 3))
    assert routed.does(StageModel)
    assert not routed.does(Train), "no lease names them yet"
    routed.hears(work(version=3, values_by=1, tensors={}, formation=1))
    assert routed.does(Train) == [Train(lease=1, epoch=0, batches=(4,), version=3, deadline_s=60.0, staged=True)]
    routed.happens(trained())
    routed.hears(work(2, version=3, values_by=1, tensors={}))
    assert routed.does(Train) == [Train(lease=2, epoch=0, batches=(4,), version=3, deadline_s=60.0)], (
        "the trainer holds them"
    )


def test_a_lease_waits_for_its_values(routed: Device) -> None:
    routed.hears(work(version=3, values_by=1, tensors={}, deadline_s=40.0))
    assert routed.actions == [SetTimer(name="lease-deadline", after_s=40.0), SetTimer(name="values", after_s=10.0)]
    assert routed.worker.reason == "values of version 3 are on their way"
    routed.happens(values("a", 3))
    assert not routed.does(Train)
    routed.happens(values("b", 3))
    assert routed.does(CancelTimer) == [CancelTimer(name="values")]
    assert routed.does(Train)[0].staged
    assert routed.happens(TimerFired(name="values")) == []


def test_a_short_lease_waits_for_values_for_a_while_all_the_same(routed: Device) -> None:
    routed.hears(work(version=3, values_by=1, tensors={}, deadline_s=4.0))
    assert SetTimer(name="values", after_s=VALUES_LEAST_S) in routed.actions


def test_an_evaluation_is_done_on_staged_values_too(routed: Device) -> None:
    routed.happens(values("a", 3))
    routed.happens(values("b", 3))
    routed.hears(work(kind="evaluate", version=3, values_by=1, tensors={}))
    assert routed.does(Evaluate)[0].staged


@pytest.mark.parametrize(
    "event",
    [
        values("a", 3, formation=2),
        values("a", 3, term=2),
        values("a", 3, start=1, stop=2),
        values("a", 3, stop=2),
        Received(sender="c", message=values("a", 3).message),
    ],
)
def test_values_that_are_not_of_its_route_are_not_staged(routed: Device, event: Received) -> None:
    assert routed.happens(event) == []


def test_values_of_an_older_version_are_not_staged(routed: Device) -> None:
    routed.happens(values("a", 3))
    assert routed.happens(values("b", 2)) == []
    assert routed.does(StageModel) == []


def test_a_trainer_that_is_not_there_has_no_use_for_values(routed: Device) -> None:
    routed.hears(work(1))
    routed.happens(TrainerFailed(lease=1, reason="x"))
    assert routed.happens(values("a", 3)) == []


def test_values_that_do_not_come_in_time_are_asked_for(routed: Device) -> None:
    routed.hears(work(version=3, values_by=1, tensors={}))
    routed.happens(values("a", 3))
    routed.happens(TimerFired(name="values"))
    assert routed.says(Ready) == [Ready(job="digits", holds_term=0, holds_version=-1)]
    assert CancelTimer(name="lease-deadline") in routed.actions
    routed.happens(values("b", 3))
    assert not routed.does(Train), "its lease is given up"


def test_values_of_one_who_is_lost_are_asked_for_at_once(routed: Device) -> None:
    routed.hears(work(version=3, values_by=1, tensors={}))
    routed.happens(values("a", 3))
    routed.happens(Disconnected(node="a", reason="cut"))
    assert not routed.says(Ready), "its part is here"
    routed.happens(Disconnected(node="b", reason="cut"))
    assert routed.says(Ready)
    routed.hears(work(2, version=3, values_by=1, tensors={}))
    assert routed.says(Ready), "b is not there"
    assert not routed.does(Train)


def test_values_of_a_formation_that_is_over_are_asked_for(routed: Device) -> None:
    routed.hears(work(version=3, values_by=1, tensors={}))
    routed.hears(tear_down())
    assert routed.says(Ready)
    routed.hears(work(2, version=3, values_by=1, tensors={}))
    assert routed.says(Ready), "there is no such route"


def test_what_was_staged_is_the_trainers_once(routed: Device) -> None:
    routed.happens(values("a", 3))
    routed.happens(values("b", 3))
    routed.hears(work(1, version=3, values_by=1, tensors={}))
    assert routed.does(Train)[0].staged
    routed.happens(Disconnected(node="home", reason="cut"))
    routed.happens(Connected(node="home"))
    routed.happens(trained(1))
    routed.hears(UpdateRefused(job="digits", term=1, lease=1, reason="expired"))
    routed.hears(work(2, version=3, values_by=1, tensors={}))
    assert not routed.does(Train), "what the trainer holds is not sure, and what was staged is gone"
    assert routed.says(Ready) == [Ready(job="digits", holds_term=0, holds_version=-1)]


def test_a_model_that_comes_whole_needs_no_values(routed: Device) -> None:
    routed.hears(work(version=3, values_by=1))
    assert routed.does(Train) == [Train(lease=1, epoch=0, batches=(4,), version=3, deadline_s=60.0)]
    assert routed.does(Train)[0].tensors == MODEL


# A newer term ---------------------------------------------------------------------------------------------------


def test_a_newer_term_has_formations_of_its_own(routed: Device) -> None:
    reported(routed)
    routed.happens(Reassigned(term=2, leader="home"))
    assert routed.says(Ready)
    assert routed.happens(values("a", 3)) == []
    routed.hears(route(1, term=2))
    assert routed.says(Routed) == [Routed(job="digits", term=2, formation=1)], "they are reached still"
    routed.hears(work(1, term=2, formation=1))
    routed.happens(trained())
    assert set(pieces(routed)) == {"a", "b"}
    assert routed.happens(taken("a")) == [], "of the term before"
    for node in ("a", "b"):
        routed.happens(taken(node, term=2))
    assert [(update.term, update.formation) for update in routed.says(Update)] == [(2, 1)]


def test_a_newer_term_does_not_wait_for_values_of_the_older(routed: Device) -> None:
    routed.hears(work(version=3, values_by=1, tensors={}))
    routed.happens(Reassigned(term=2, leader="home"))
    assert routed.says(Ready)


def test_the_end_of_a_formation_of_an_older_term_is_not_that_of_the_new(routed: Device) -> None:
    routed.hears(tear_down(9))
    routed.happens(Reassigned(term=2, leader="home"))
    routed.hears(route(1, term=2))
    routed.hears(work(1, term=2, formation=1))
    routed.happens(trained())
    assert set(pieces(routed)) == {"a", "b"}
    assert not routed.says(Offer)


def test_a_trainer_that_fails_after_the_report_fails_no_lease(routed: Device) -> None:
    reported(routed)
    routed.happens(TrainerFailed(lease=1, reason="killed"))
    assert not routed.says(Failed)
    assert routed.does(Prepare)


def test_a_device_without_examples_counts_them_again_before_it_asks_again(make_spec: Callable[..., JobSpec]) -> None:
    device = Device(make_spec(data="local"))
    device.happens(Prepared(state=DeviceState(examples=0)))
    assert device.says(Ready)[-1].state == DeviceState(examples=0)
    device.hears(Wait(job="digits", reason="it has no examples of its own yet", retry_after_s=30.0))
    (timer,) = device.does(SetTimer)
    device.happens(TimerFired(name=timer.name), 30.0)
    assert len(device.does(CountExamples)) == 1
    assert not device.says(Ready), "the number is not known yet"
    device.happens(ExamplesCounted(state=DeviceState(examples=12)), 30.1)
    assert device.says(Ready)[-1].state == DeviceState(examples=12)


def test_with_shared_examples_nothing_is_counted(make_spec: Callable[..., JobSpec]) -> None:
    device = Device(make_spec())
    device.hears(Wait(job="digits", reason="later", retry_after_s=3.0))
    (timer,) = device.does(SetTimer)
    device.happens(TimerFired(name=timer.name), 3.0)
    assert not device.does(CountExamples)
    assert device.says(Ready)


def test_a_count_that_fails_starts_the_trainer_again_unless_a_lease_came_meanwhile(
    make_spec: Callable[..., JobSpec],
) -> None:
    failed = TrainerFailed(lease=0, reason="the folder cannot be read")
    device = Device(make_spec(data="local"))
    device.happens(failed)
    assert device.does(Prepare)
    device = Device(make_spec(data="local"))
    device.hears(work())
    assert not device.happens(failed)
    device.happens(trained())
    assert device.says(Offer) or device.says(Update)
