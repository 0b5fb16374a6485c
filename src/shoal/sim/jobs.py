"""A job to simulate: its description for the cluster, and the result and cost of its training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shoal.learning.algorithm import Algorithm
from shoal.learning.layout import Layout
from shoal.learning.metrics import MetricSum, judged_sums
from shoal.plan import Plan
from shoal.roles.actions import Evaluate, Train
from shoal.roles.leader.evaluation import chunk_ranges
from shoal.scheduling.batches import examples_in
from shoal.wire.messages import Dataset, JobSpec

_NOTHING = "0" * 64


#: The evaluation of one new example if nothing is trained.
_NOTHING_LEARNED = judged_sums(examples=1, loss_sum=0.0, correct=0)

#: How many examples of its own a device has if nothing is trained.
EXAMPLES_HELD = 100_000


@dataclass(frozen=True, slots=True)
class TrainingResult:
    examples: int
    loss_sum: float
    delta: np.ndarray


@dataclass(frozen=True, slots=True)
class LearningResult:
    """The result of training on a device's own examples: also the evaluation of the new ones, and how many it has."""

    trained: TrainingResult
    held: int
    fresh: int = 0
    fresh_metrics: tuple[MetricSum, ...] = ()
    labels: tuple[int, ...] = ()
    logged: tuple[MetricSum, ...] = ()
    #: The device's own part of the model after it, if the model has one.
    own: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    examples: int
    metrics: tuple[MetricSum, ...]


def judged(examples: int, loss_sum: float, correct: int) -> EvaluationResult:
    """Make the result of a training that only has a loss and the number of correct examples."""
    return EvaluationResult(examples, judged_sums(examples=examples, loss_sum=loss_sum, correct=correct))


class Training(Protocol):
    """Computes a trainer's answers: a function of the model and the lease, the same on every device."""

    def train(self, spec: JobSpec, model: np.ndarray, lease: Train) -> TrainingResult: ...

    def evaluate(self, spec: JobSpec, model: np.ndarray, lease: Evaluate) -> EvaluationResult: ...

    def learn(self, spec: JobSpec, model: np.ndarray, node: str, lease: Train) -> LearningResult:
        """Train like ``train``, but on this device's own examples."""
        ...


class LocalDevices(Protocol):
    """Trains devices that each have examples of their own, and keeps what their trainers keep from lease to lease."""

    @property
    def devices(self) -> int:
        """Return the number of devices with examples: ``w1`` and so on."""
        ...

    @property
    def first_own(self) -> np.ndarray | None:
        """Return what a device's own part of the model begins with, or None if the model has none."""
        ...

    def held(self, node: str) -> int:
        """Return how many examples a device has."""
        ...

    def begin(self, node: str, *, seen: int) -> None:
        """Start a trainer on a device that has trained on ``seen`` of its examples before."""
        ...

    def end(self, node: str) -> None:
        """End the trainer of a device, if it has one. Leases that it promised are still trained."""
        ...

    def promise(self, model: np.ndarray, node: str, lease: Train) -> Callable[[], LearningResult] | None:
        """Return a function that trains the lease when its result is due, or None if it has to be trained at once.
        Leases that wait for the same model are trained together."""
        ...

    def learn_own(self, model: np.ndarray, node: str, lease: Train, own: np.ndarray | None) -> LearningResult:
        """Train like ``Training.learn``, from these values of the device's own part of the model."""
        ...


class SystemOnly:
    """A training that learns nothing: every update is the same. For questions of time, bytes and devices.

    Updates are zeros, or values of all sizes if a codec leaves zeros out, so that as many are sent as in a real one.
    """

    def __init__(self, size: int, plan: Plan | None = None) -> None:
        self._delta = np.zeros(size, dtype=np.float32)
        if plan is not None and plan.codec != "dense":
            self._delta += 1e-3 * np.sin(1.0 + np.arange(size, dtype=np.float32))
        self._delta.flags.writeable = False

    def train(self, spec: JobSpec, model: np.ndarray, lease: Train) -> TrainingResult:
        examples = examples_to_train(spec, lease.batches)
        return TrainingResult(examples, float(examples), self._delta)

    def evaluate(self, spec: JobSpec, model: np.ndarray, lease: Evaluate) -> EvaluationResult:
        examples = examples_to_judge(spec, lease)
        return judged(examples, float(examples), 0)

    def learn(self, spec: JobSpec, model: np.ndarray, node: str, lease: Train) -> LearningResult:
        trained = TrainingResult(lease.examples, float(lease.examples), self._delta)
        return LearningResult(trained, EXAMPLES_HELD, fresh=1, fresh_metrics=_NOTHING_LEARNED)


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedJob:
    spec: JobSpec
    layout: Layout
    model: np.ndarray
    training: Training
    #: Multiply-adds of one example's forward pass, in billions.
    gmacs_per_example: float
    #: Code, data and first model, which every device fetches once.
    fetch_bytes: int = 0
    #: Seconds to start a trainer (importing torch, opening the data).
    start_s: float = 3.0
    submit_s: float = 0.0
    #: Devices on which preparing raises because a file that the task opens is missing.
    unable: frozenset[str] = frozenset()
    #: The devices' own examples, if they are trained on for real.
    local: LocalDevices | None = None
    #: What leaders ask, if the job has an algorithm of its own.
    algorithm: Algorithm | None = None


def bare_spec(job: str, plan: Plan, *, examples: int, test_examples: int = 0) -> JobSpec:
    """Return a job without a task: nobody fetches its code and data, so their names are made up."""
    return JobSpec(
        job=job,
        name=job,
        entry="task:Any",
        bundle=_NOTHING,
        initial=_NOTHING,
        train=Dataset(manifest=_NOTHING, examples=examples),
        test=Dataset(manifest=_NOTHING, examples=test_examples),
        plan=plan,
    )


def system_job(
    plan: Plan,
    layout: Layout,
    *,
    examples: int,
    job: str = "job",
    gmacs_per_example: float = 0.0,
    fetch_bytes: int = 0,
    start_s: float = 3.0,
) -> SimulatedJob:
    """Return a job that only takes time, bytes and devices: its model has this layout and learns nothing."""
    model = np.zeros(layout.size, dtype=np.float32)
    model.flags.writeable = False
    return SimulatedJob(
        spec=bare_spec(job, plan, examples=examples),
        layout=layout,
        model=model,
        training=SystemOnly(layout.size, plan),
        gmacs_per_example=gmacs_per_example,
        fetch_bytes=fetch_bytes,
        start_s=start_s,
    )


def examples_to_train(spec: JobSpec, batches: tuple[int, ...]) -> int:
    return examples_in(batches, examples=spec.train.examples, batch_size=spec.plan.batch_size)


def ranges_to_judge(spec: JobSpec, lease: Evaluate) -> list[tuple[int, int]]:
    return chunk_ranges(lease.chunks, examples=spec.test.examples, size=lease.size)


def examples_to_judge(spec: JobSpec, lease: Evaluate) -> int:
    return sum(stop - start for start, stop in ranges_to_judge(spec, lease))
