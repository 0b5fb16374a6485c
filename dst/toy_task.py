"""Training that can be worked out on paper: every batch draws the model towards a point of its own."""

from __future__ import annotations

import numpy as np

from shoal.learning.layout import Layout
from shoal.learning.metrics import judged_sums
from shoal.roles.actions import Evaluate, Train
from shoal.roles.leader.evaluation import EVALUATION_CHUNK
from shoal.sim.jobs import (
    EvaluationResult,
    LearningResult,
    TrainingResult,
    examples_to_judge,
    examples_to_train,
    judged,
    ranges_to_judge,
)
from shoal.wire.messages import JobSpec

LAYOUT = Layout.of([("weight", (4, 4), "parameter"), ("bias", (3,), "parameter"), ("mean", (1,), "buffer")])
FIRST_MODEL = np.arange(LAYOUT.size, dtype=np.float32) / 4
FIRST_MODEL.flags.writeable = False

_ONE_RIGHT = judged_sums(examples=1, loss_sum=0.0, correct=1)


def toy_update(model: np.ndarray, epoch: int, batches: tuple[int, ...], *, factor: float = 1.0) -> np.ndarray:
    """A tenth of the way towards each batch's point, one batch after the other; or such a part of it as a schedule
    leaves of the rate."""
    new = model.astype(np.float64)
    for batch in batches:
        new += 0.1 * factor * (np.sin(np.arange(model.size) + 7 * epoch + 3 * batch) - new)
    update: np.ndarray = (new - model).astype(np.float32)
    return update


def judge(spec: JobSpec, model: np.ndarray) -> int:
    """How many held-out examples this model gets right: another number for another model."""
    return _right_before(spec.test.examples, model)


def judge_range(model: np.ndarray, start: int, stop: int) -> int:
    """Of the examples from ``start`` to ``stop``: ranges add up, however the set is cut."""
    return _right_before(stop, model) - _right_before(start, model)


def _right_before(stop: int, model: np.ndarray) -> int:
    """Of the examples before ``stop``. Every thousand has a share of its own."""
    whole, rest = divmod(stop, EVALUATION_CHUNK)
    value = 1e3 * model.astype(np.float64).sum()
    counts = [(chunk, EVALUATION_CHUNK) for chunk in range(whole)] + [(whole, rest)]
    return sum(int((0.5 + 0.5 * float(np.sin(value + chunk))) * count) for chunk, count in counts)


class Toy:
    def train(self, spec: JobSpec, model: np.ndarray, lease: Train) -> TrainingResult:
        examples = examples_to_train(spec, lease.batches)
        return TrainingResult(examples, float(examples), _update(spec, model, lease))

    def learn(self, spec: JobSpec, model: np.ndarray, node: str, lease: Train) -> LearningResult:
        trained = TrainingResult(lease.examples, float(lease.examples), _update(spec, model, lease))
        return LearningResult(trained, held=1000, fresh=1, fresh_metrics=_ONE_RIGHT, labels=(lease.examples,))

    def evaluate(self, spec: JobSpec, model: np.ndarray, lease: Evaluate) -> EvaluationResult:
        examples = examples_to_judge(spec, lease)
        right = sum(judge_range(model, start, stop) for start, stop in ranges_to_judge(spec, lease))
        return judged(examples, float(examples), right)


def _update(spec: JobSpec, model: np.ndarray, lease: Train) -> np.ndarray:
    factor = lease.rate / spec.plan.learning_rate if lease.rate else 1.0
    return toy_update(model, lease.epoch, lease.batches, factor=factor)
