"""The requests of an agent to its trainer and the answers, as values. No torch, no processes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.errors import Misuse, PeerViolation, ShoalError
from shoal.learning.layout import Layout
from shoal.learning.metrics import METRICS_MAX, SUMS_MAX, MetricSum, judged_sums, shape_problem
from shoal.plan import Plan
from shoal.trainer.channel import Message
from shoal.wire.limits import LABELS_MAX

_T = TypeVar("_T")


#: Fields that a trainer takes from the plan as they are.
_OF_PLAN = (
    "seed",
    "batch_size",
    "learning_rate",
    "inner",
    "inner_state",
    "lease_batches",
    "passes",
    "clip_gradient",
    "accumulate",
    "precision",
    "compile",
    "share_labels",
    "labels_epsilon",
)


class TrainerError(ShoalError):
    """The trainer could not do what was asked: the task's code failed, or its process died or hung."""

    def __init__(self, reason: str, where: str = "", traceback: str = "") -> None:
        super().__init__(f"{reason}, at {where}" if where else reason)
        self.reason = reason
        #: The place in the task's own code, such as ``Digits.loss (task.py:17)``. Empty if not known.
        self.where = where
        #: Python's complete traceback. Empty if not known.
        self.traceback = traceback


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerSettings:
    """Everything a trainer needs to know before its first batch."""

    bundle_dir: str
    entry: str
    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    train: tuple[str, ...]
    test: tuple[str, ...] = ()
    #: The files of the frozen base, where the model has one.
    base: tuple[str, ...] = ()
    layout: Layout
    #: For a trainer without PyTorch: the files of the job's graphs and of its first model.
    graphs: str = ""
    initial: str = ""
    #: How many shards a window has if examples are mixed in windows, else 0. With windows, ``train`` is empty, and the
    #: agent opens and shuts shards by number, as leases need them. ``train_rows`` then has the rows of each shard.
    window: int = 0
    train_rows: tuple[int, ...] = ()
    #: This device's own part of the model, or `None` if there is none.
    own: Layout | None = None
    seed: int
    batch_size: int
    learning_rate: float
    weight_decay: float = 0.0
    #: The optimiser of a lease and its settings (see ``plan``).
    inner: str = "sgd"
    inner_state: str = "fresh"
    lease_batches: int = 1
    #: How often a lease on the device's own examples goes over them.
    passes: int = 1
    clip_gradient: float = 0.0
    accumulate: int = 1
    precision: str = "float32"
    compile: bool = False
    #: ``auto``, ``cpu``, ``cuda:N`` or ``mps``.
    device: str = "cpu"
    torch_threads: int = 1
    #: The cores that the trainer runs on: the big ones if the processor also has little ones. Empty for all that the
    #: agent may use.
    cores: tuple[int, ...] = ()
    #: Address space that the trainer may take; 0 sets no limit. PyTorch itself maps about 2 GB.
    memory_max_bytes: int = 0
    #: Added to the trainer's niceness, so that a device's own work comes first.
    nice: int = 0
    #: Whether the job trains on the device's own examples, which ``Task.examples`` gives here.
    is_local: bool = False
    #: The folder of the device's own examples, for tasks that ask (``shoal.data.local_folder``).
    local_folder: str = ""
    #: The device's part of a divided set, for tasks that ask (``shoal.data.part``).
    local_part: str = ""
    #: How many of the device's own examples an earlier process trained on: they are not new.
    local_seen: int = 0
    share_labels: bool = False
    labels_epsilon: float = 0.0
    #: The pause that replaces the training of one batch in the echo trainer. Other trainers ignore it.
    pace_s: float = 0.0

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.torch_threads < 1:
            raise Misuse(f"batch_size {self.batch_size} and torch_threads {self.torch_threads} are at least 1")

    @classmethod
    def of_plan(cls, plan: Plan, **rest: Any) -> TrainerSettings:
        """Take a trainer's settings from a plan, and the rest from ``rest``."""
        taken = {name: getattr(plan, name) for name in _OF_PLAN}
        return cls(**taken, weight_decay=plan.worker_weight_decay, **rest)

    @property
    def own_size(self) -> int:
        return self.own.size if self.own is not None else 0

    def to_message(self) -> Message:
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        own = self.own.to_json() if self.own is not None else ""
        return plain | {"kind": "load", "layout": self.layout.to_json(), "own": own}

    @classmethod
    def from_message(cls, message: Message) -> TrainerSettings:
        plain = {name: value for name, value in message.items() if name not in ("kind", "seq")}
        plain |= {name: tuple(plain[name]) for name in ("train", "test", "base", "train_rows", "cores")}
        own = Layout.from_json(plain["own"]) if plain["own"] else None
        return cls(**plain | {"layout": Layout.from_json(plain["layout"]), "own": own})


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskLoaded:
    """The task is built and its data opened."""

    train_examples: int
    test_examples: int
    seconds: float
    engine: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainResult:
    """The result of a lease. The update itself is in shared memory."""

    examples: int
    #: Sum over examples; NaN if the loss was not finite.
    loss_sum: float
    seconds: float
    #: False if the update or the loss holds NaN or infinity: it must not be merged.
    finite: bool
    #: How many examples of its own the device has now, how many new ones were evaluated before they were trained on,
    #: and the results on those.
    held: int = 0
    fresh: int = 0
    fresh_metrics: tuple[MetricSum, ...] = ()
    #: How many examples of each label were trained on, if the plan reports labels.
    labels: tuple[int, ...] = ()
    #: Processor time.
    cpu_s: float = 0.0
    #: Figures besides the loss that the task's training code logged.
    logged: tuple[MetricSum, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalResult:
    """How the model does on a range of held-out examples."""

    examples: int
    metrics: tuple[MetricSum, ...]
    seconds: float


def judged(*, examples: int, loss_sum: float, correct: int, seconds: float) -> EvalResult:
    """Make the result of a trainer that only has a loss and the number of correct examples."""
    metrics = judged_sums(examples=examples, loss_sum=loss_sum, correct=correct)
    return EvalResult(examples=examples, metrics=metrics, seconds=seconds)


def answer(kind: str, value: TaskLoaded | TrainResult | EvalResult) -> Message:
    """Return the message for a result. NaN becomes None, since JSON has no NaN."""
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, TrainResult):
        fields |= {"labels": list(value.labels), "fresh_metrics": _plain(value.fresh_metrics)}
        fields["logged"] = _plain(value.logged)
    elif isinstance(value, EvalResult):
        fields["metrics"] = _plain(value.metrics)
    for name, number in fields.items():
        if isinstance(number, float) and not math.isfinite(number):
            fields[name] = None
    return fields | {"kind": kind}


def read_loaded(message: Message) -> TaskLoaded:
    return TaskLoaded(
        train_examples=_number(message, "train_examples"),
        test_examples=_number(message, "test_examples"),
        seconds=_real(message, "seconds"),
        engine=_read(message, "engine", str),
    )


def read_trained(message: Message) -> TrainResult:
    return TrainResult(
        examples=_number(message, "examples"),
        loss_sum=_real(message, "loss_sum"),
        seconds=_real(message, "seconds"),
        finite=_read(message, "finite", bool),
        held=_number(message, "held"),
        fresh=_number(message, "fresh"),
        fresh_metrics=_metrics(message, "fresh_metrics"),
        labels=_numbers(message, "labels"),
        cpu_s=_real(message, "cpu_s"),
        logged=_metrics(message, "logged"),
    )


def read_evaluated(message: Message) -> EvalResult:
    return EvalResult(
        examples=_number(message, "examples"),
        metrics=_metrics(message, "metrics"),
        seconds=_real(message, "seconds"),
    )


def _plain(metrics: Sequence[MetricSum]) -> list[list[Any]]:
    """Return metrics as plain values for JSON. A sum that is not finite becomes None."""
    return [
        [each.name, each.kind, [number if math.isfinite(number) else None for number in each.sums], each.lower]
        for each in metrics
    ]


def _metrics(message: Message, name: str) -> tuple[MetricSum, ...]:
    """Read metrics, checked like a peer's, since the task's code wrote them. The worker handles sums that are not
    finite."""
    rows = _read(message, name, list)
    if not rows:
        return ()
    unsound = PeerViolation(f"the trainer answered {message.get('kind')} without a sound {name!r}")
    if len(rows) > METRICS_MAX:
        raise PeerViolation(f"the trainer answered with {len(rows)} metrics, at most {METRICS_MAX}")
    metrics = []
    for row in rows:
        if not isinstance(row, list) or list(map(type, row)) != [str, str, list, bool]:
            raise unsound
        label, kind, sums, lower = row
        if len(sums) > SUMS_MAX or any(type(number) not in (int, float, type(None)) for number in sums):
            raise unsound
        numbers = tuple(math.nan if number is None else _finite(number) for number in sums)
        metric = MetricSum(name=label, kind=kind, sums=numbers, lower=lower)
        if (found := shape_problem(metric)) is not None:
            raise PeerViolation(f"the trainer answered {message.get('kind')}: {found}")
        metrics.append(metric)
    if len({metric.name for metric in metrics}) != len(metrics):
        raise unsound
    return tuple(metrics)


def _finite(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.nan


def _read(message: Message, name: str, kind: type[_T]) -> _T:
    value = message.get(name)
    if type(value) is not kind:
        raise PeerViolation(f"the trainer answered {message.get('kind')} without a sound {name!r}")
    return value


def _number(message: Message, name: str) -> int:
    return _read(message, name, int)


def _numbers(message: Message, name: str) -> tuple[int, ...]:
    values = _read(message, name, list)
    if len(values) > LABELS_MAX or any(type(value) is not int for value in values):
        raise PeerViolation(f"the trainer answered {message.get('kind')} without a sound {name!r}")
    return tuple(values)


def _real(message: Message, name: str) -> float:
    if message.get(name, 0) is None:
        return math.nan
    return float(_read(message, name, float))
