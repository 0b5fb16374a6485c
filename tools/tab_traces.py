"""Records what the role ``Worker`` is told and decides, for jobs that a browser's tab may work for.

Each line is one life of a worker as JSON: every event, what followed, and what it says of itself then. The role of the
tab (``tab/src/worker_role.ts``) plays them again and has to decide the same: ``node tab/test/traces.mjs FILE``.

Lives are drawn from a seed. Around the worker are a leader that lends, waits, refuses, is replaced and dies, sessions
that break, a trainer that fails and hangs, and messages that come late, twice and out of order. Models of half of the
jobs on devices' own rows have a part that is each device's own: their leaders begin from earlier versions, say which
ones are durable, and refuse what they took before.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from shoal.learning.metrics import MetricSum, judged_sums
from shoal.plan import Plan, Until
from shoal.roles.actions import (
    Action,
    CancelTimer,
    CountExamples,
    End,
    Evaluate,
    Interrupt,
    Participate,
    Prepare,
    Record,
    Send,
    SetTimer,
    SettleOwn,
    Train,
    UndoOwn,
)
from shoal.roles.events import (
    Connected,
    Disconnected,
    EvaluationDone,
    Event,
    ExamplesCounted,
    NotParticipated,
    Participated,
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
from shoal.roles.worker.worker import Worker
from shoal.wire.encoding import to_json
from shoal.wire.messages import Dataset, DeviceState, Finished, Go, JobSpec, Message, UpdateRefused, Wait, Work

JOB = "job-1"
EVENTS_MOST = 40
_SHA = "0" * 64
#: Noise for few versions, which a device may not take part in one after the other.
_PRIVATE = Plan(
    data="local",
    trust="private(8, 1e-4)",
    clip_update=4.0,
    cohort=2,
    workers_min=4,
    epoch_leases=12,
    participations=5,
    until=Until(epochs=4),
)
_REASONS = (
    "the disk is full",
    "a\x1b[31mred\x1b[0m line\nand another\x7f",
    "Gerät 7: kein Speicher",
    "x" * 5000,
    "",
)


def spec(plan: Plan) -> JobSpec:
    data = Dataset(manifest=_SHA, examples=1000)
    train = data if plan.data == "shared" else Dataset()
    made = JobSpec(
        job=JOB, name="digits", entry="t:T", bundle=_SHA, initial=_SHA, train=train, test=data, plan=plan, graphs=_SHA
    )
    assert made.suits_tabs
    return made


class Life:
    """One worker and what happens to it."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.Generator(np.random.PCG64(seed))
        # A tab works for leaders at the manager's alone, and has sessions with no other node.
        self._leader, self._term = "manager", int(self._draw.integers(1, 4))
        #: Half of the jobs train on the device's own rows.
        self._is_local = bool(self._draw.random() < 0.5)
        self._is_private = self._is_local and bool(self._draw.random() < 0.5)
        #: Whether a part of the model is the device's own. What becomes of it takes several leases in a row to show, so
        #: less goes wrong in these lives.
        self._has_own = self._is_local and bool(self._draw.random() < 0.5)
        #: How seldom anything goes wrong in such a life. In some a leader takes more than a device can take back.
        self._calm = float(self._draw.choice([0.6, 0.6, 0.95]))
        pace = str(self._draw.choice(["auto", "sync", "buffered"]))
        plan = _PRIVATE if self._is_private else Plan(data="local", pace=pace) if self._is_local else Plan()
        self._plan = plan
        self._worker = Worker(spec=spec(plan), leader=self._leader, term=self._term)
        self._lease, self._version = 0, 0
        #: Term -> the version that its leader began from.
        self._began: dict[int, int] = {}
        #: What the trainer is at, and timers that run.
        self._under_way: list[Action] = []
        self._timers: list[str] = []
        self._is_connected = False
        self._heard: list[Message] = []
        self._is_over = False

    def lines(self) -> dict[str, Any]:
        """The whole life, from its start."""
        head = {"job": JOB, "leader": self._leader, "term": self._term, "plan": to_json(self._plan)}
        steps = [self._step(Started())]
        for _ in range(int(self._draw.integers(4, EVENTS_MOST * (1 + self._has_own)))):
            if self._is_over and self._draw.random() < 0.7:
                break
            steps.append(self._step(self._next()))
        return {**head, "steps": steps}

    def _step(self, event: Event) -> dict[str, Any]:
        actions = self._worker.handle(event, 0.0)
        for action in actions:
            match action:
                case Prepare() | Train() | Evaluate() | Participate() | CountExamples():
                    self._under_way.append(action)
                case SetTimer():
                    self._timers.append(action.name)
                case End():
                    self._is_over = True
                case _:
                    pass
        return {
            "event": plain_event(event),
            "actions": [plain_action(action) for action in actions],
            "phase": str(self._worker.state),
            "reason": self._worker.reason,
        }

    def _next(self) -> Event:
        """What happens next: mostly what is due, at times anything."""
        if self._under_way and self._draw.random() < (0.7 if self._has_own else 0.4):
            return self._trainer_says(self._under_way.pop(0))
        if not self._is_connected and self._draw.random() < 0.6:
            self._is_connected = True
            return Connected(node=self._leader)
        roll = self._draw.random()
        if self._has_own and self._draw.random() < self._calm:
            # Mostly a leader that goes on, or one that is lost.
            roll *= 0.62 if roll < 0.85 else 0.8
        if roll < 0.55:
            return Received(sender=self._leader, message=self._leader_says())
        if roll < 0.65:
            self._is_connected = False
            return Disconnected(node=self._leader, reason="connection closed")
        if roll < 0.72 and self._timers:
            return TimerFired(name=self._timers[int(self._draw.integers(len(self._timers)))])
        if roll < 0.80:
            return self._reassigned()
        if roll < 0.85:
            return Connected(node=self._leader)
        if roll < 0.87:
            return StopRequested(reason="dismissed")
        if roll < 0.92:
            # A result that nobody waits for any more, or the trainer dies with an update in hand.
            if self._has_own and self._draw.random() < 0.7:
                return TrainerFailed(lease=self._some_lease(), reason=_REASONS[0])
            return self._trainer_says(Train(lease=self._some_lease(), epoch=0, batches=(1,)))
        return TimerFired(name=str(self._draw.choice(["lease-deadline", "retry", "ask-again", "values"])))

    def _reassigned(self) -> Reassigned:
        self._term = max(0, self._term + int(self._draw.integers(-1, 3)))
        return Reassigned(term=self._term, leader=self._leader)

    def _leader_says(self) -> Message:
        if self._heard and self._draw.random() < 0.1:
            return self._heard[int(self._draw.integers(len(self._heard)))]
        said = self._new_message()
        self._heard.append(said)
        return said

    def _new_message(self) -> Message:
        roll = self._draw.random()
        near = [-1, *(0,) * (20 if self._has_own else 5), 1]
        term = self._term + int(self._draw.choice(near))
        if roll < 0.6:
            return self._work(term)
        if roll < 0.72:
            after_s = 0.0 if self._draw.random() < 0.5 else float(self._draw.integers(1, 60)) / 4
            return Wait(job=JOB, reason="every batch is lent", retry_after_s=after_s)
        if roll < 0.85:
            return Go(job=JOB, term=term, lease=self._some_lease())
        if roll < 0.96:
            holds = self._some_lease() if self._draw.random() < 0.5 else 0
            lease = max(1, self._lease) if self._has_own and self._draw.random() < 0.5 else self._some_lease()
            is_copy = bool(self._draw.random() < 0.3)
            told = "it was merged before" if is_copy else "the lease ran out"
            return UpdateRefused(job=JOB, term=term, lease=lease, reason=told, holds=holds, is_copy=is_copy)
        if self._has_own and self._draw.random() < 0.7:
            return Wait(job=JOB, reason="others train")
        return Finished(job=JOB, reason="3 of 3 epochs")

    def _work(self, term: int) -> Work:
        self._lease += 1
        if term not in self._began:
            # A leader that is new goes on from what was durable. That may have more than this device was told of.
            back = int(self._draw.integers(-2, 4)) if self._has_own else 0
            self._version = max(0, self._version - back)
            self._began[term] = self._version
        self._version += int(self._draw.integers(0, 3 if self._is_private else 2))
        has_model = self._draw.random() < (0.9 if self._has_own else 0.6)
        return Work(
            job=JOB,
            term=term,
            lease=self._lease if self._draw.random() < 0.9 else self._some_lease(),
            kind="train" if self._draw.random() < (0.95 if self._has_own else 0.8) else "evaluate",
            version=self._version,
            began=self._began[term],
            durable_version=max(0, self._version - int(self._draw.integers(0, 20))),
            epoch=int(self._draw.integers(0, 5)),
            batches=tuple(int(each) for each in self._draw.integers(0, 32, int(self._draw.integers(1, 4)))),
            deadline_s=float(self._draw.integers(1, 4000)) / 40,
            credit=bool(self._draw.random() < 0.7),
            examples=int(self._draw.choice([0, 250])),
            rate=float(self._draw.choice([0.0, 0.05])),
            tensors={"model": self._values()} if has_model else {},
        )

    def _trainer_says(self, action: Action) -> Event:
        fails = self._draw.random() < (0.04 if self._has_own else 0.12)
        reason = _REASONS[int(self._draw.integers(len(_REASONS)))]
        if isinstance(action, Prepare):
            if fails:
                return PrepareFailed(reason=reason, traceback="x" * 9000 if self._draw.random() < 0.3 else "")
            taken = ((1, 0), (1, 3)) if self._is_private and self._draw.random() < 0.3 else ()
            has_own = self._has_own and bool(self._draw.random() < 0.95)
            return Prepared(sizes=(3,), parameters=3, state=self._state(), participations=taken, has_own=has_own)
        if isinstance(action, CountExamples):
            return TrainerFailed(lease=0, reason=reason) if fails else ExamplesCounted(state=self._state())
        if isinstance(action, Participate):
            told = {"term": action.term, "lease": action.lease}
            return NotParticipated(**told, reason=reason) if fails else Participated(**told, version=action.version)
        assert isinstance(action, Train | Evaluate)
        if fails:
            return TrainerFailed(lease=action.lease, reason=reason)
        examples = int(self._draw.integers(1, 64))
        odd = self._odd()
        if isinstance(action, Train):
            loss = float("nan") if odd < 0.05 else float("inf") if odd < 0.1 else float(self._draw.random() * examples)
            update = {"delta": self._values()}
            trained = Trained(lease=action.lease, examples=examples, loss_sum=loss, seconds=0.25, tensors=update)
            return self._of_own_rows(trained) if self._is_local else trained
        return EvaluationDone(lease=action.lease, examples=examples, metrics=self._metrics(examples, odd))

    def _state(self) -> DeviceState | None:
        """Return the device's state in a job that trains on its rows. It may have none yet."""
        return DeviceState(kind="Node 20", examples=int(self._draw.integers(0, 90))) if self._is_local else None

    def _of_own_rows(self, trained: Trained) -> Trained:
        fresh = int(self._draw.integers(0, trained.examples + 1))
        metrics = self._metrics(fresh, self._odd()) if fresh else ()
        labels = (
            tuple(int(each) for each in self._draw.integers(0, trained.examples // 3 + 1, 3))
            if self._draw.random() < 0.3
            else ()
        )
        return replace(trained, fresh=fresh, fresh_metrics=metrics, labels=labels, state=self._state())

    def _odd(self) -> float:
        """Draw what is odd about a result. Below 0.25 something may be."""
        return float(self._draw.random() ** (0.2 if self._has_own else 1.0))

    def _metrics(self, examples: int, odd: float) -> tuple[MetricSum, ...]:
        right = examples + 1 if odd < 0.05 else -1 if odd < 0.1 else int(self._draw.integers(0, examples + 1))
        loss = float("nan") if 0.1 <= odd < 0.15 else float(self._draw.random() * examples)
        found = judged_sums(examples=-1 if 0.15 <= odd < 0.2 else examples, loss_sum=loss, correct=right)
        counts = (1.0, -2.0 if 0.2 <= odd < 0.25 else 2.0, 3.0)
        return (*found, MetricSum(name="f1", kind="f1", sums=counts)) if self._draw.random() < 0.5 else found

    def _values(self) -> np.ndarray:
        return self._draw.integers(-8, 8, 3).astype(np.float32)

    def _some_lease(self) -> int:
        return int(self._draw.integers(max(1, self._lease - 1), self._lease + 2))


# As JSON ----------------------------------------------------------------------------------------------------


def plain_event(event: Event) -> dict[str, Any]:
    match event:
        case Received():
            return {"event": "Received", **_message(event.message)}
        case Prepared():
            taken = [list(pair) for pair in event.participations]
            own = {"has_own": True} if event.has_own else {}
            return {"event": "Prepared", **_plain_state(event.state), "participations": taken, **own}
        case Trained():
            told = ("lease", "examples", "loss_sum", "seconds", "fresh")
            values = {name: _number(getattr(event, name)) for name in told}
            of_rows = {"fresh_metrics": _plain_metrics(event.fresh_metrics), "labels": list(event.labels)}
            return {
                "event": "Trained",
                **values,
                **of_rows,
                **_plain_state(event.state),
                "tensors": _tensors(event.tensors),
            }
        case ExamplesCounted():
            return {"event": "ExamplesCounted", **_plain_state(event.state)}
        case EvaluationDone():
            metrics = _plain_metrics(event.metrics)
            return {"event": "EvaluationDone", "lease": event.lease, "examples": event.examples, "metrics": metrics}
        case _:
            return {"event": type(event).__name__, **_fields(event, leave_out=("late_s", "group"))}


def plain_action(action: Action) -> dict[str, Any]:
    match action:
        case Send():
            return {"action": "Send", "to": action.to, **_message(action.message)}
        case Prepare() | CountExamples():
            return {"action": type(action).__name__}
        case Train() | Evaluate():
            told = _fields(action, leave_out=("tensors", "changes", "staged", "deadline_s"))
            return {"action": type(action).__name__, **told, "tensors": _tensors(action.tensors)}
        case Participate():
            return {"action": "Participate", **_fields(action, leave_out=("group",))}
        case Record():
            return {"action": "Record", "kind": action.kind, "reason": action.reason}
        case SetTimer() | CancelTimer() | Interrupt() | End() | SettleOwn() | UndoOwn():
            return {"action": type(action).__name__, **_fields(action)}
        case _:
            raise TypeError(f"a tab's worker does not ask for {type(action).__name__}")


def _plain_state(state: DeviceState | None) -> dict[str, Any]:
    return {"state": to_json(state)} if state is not None else {}


def _plain_metrics(metrics: tuple[MetricSum, ...]) -> list[dict[str, Any]]:
    return [{**to_json(metric), "sums": list(map(_number, metric.sums))} for metric in metrics]


def _fields(value: Any, *, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    found = {each.name: getattr(value, each.name) for each in fields(value) if each.name not in leave_out}
    return {name: list(each) if isinstance(each, tuple) else each for name, each in found.items()}


def _message(message: Message) -> dict[str, Any]:
    tensors = getattr(message, "tensors", {})
    return {"kind": type(message).__name__, "body": to_json(message), "tensors": _tensors(tensors)}


def _tensors(tensors: Any) -> dict[str, list[float]]:
    return {name: array.tolist() for name, array in tensors.items()}


def _number(value: float) -> float | str:
    """JSON has no word for what is not finite."""
    return value if np.isfinite(value) else str(float(value))


def lives(*, seed: int, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield Life(seed * 1_000_003 + number).lines()


def lines(*, seed: int, count: int) -> Iterator[str]:
    """Yield the lives of a file, as it has them."""
    for life in lives(seed=seed, count=count):
        yield json.dumps(life, separators=(",", ":")) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=12_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    sys.stdout.writelines(lines(seed=given.seed, count=given.count))
    return 0


if __name__ == "__main__":
    sys.exit(main())
