"""Training that can be worked out on paper: every batch draws the model towards a point of its own. And the same once
more, from recorded history and without a leader: what a simulated job must come to."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from shoal.learning.layout import Layout
from shoal.learning.outer import momentum_step
from shoal.sim.jobs import EvaluationResult, TrainingResult, examples_to_judge, examples_to_train
from shoal.wire.messages import JobSpec
from shoal.workload.ledger import Applied

LAYOUT = Layout.of([("weight", (2, 2), "parameter"), ("mean", (1,), "buffer")])
FIRST_MODEL = np.arange(LAYOUT.size, dtype=np.float32)
FIRST_MODEL.flags.writeable = False


def toy_update(model: np.ndarray, epoch: int, batches: tuple[int, ...]) -> np.ndarray:
    """A tenth of the way towards each batch's point, one batch after the other."""
    new = model.astype(np.float64)
    for batch in batches:
        new += 0.1 * (np.sin(np.arange(model.size) + 7 * epoch + 3 * batch) - new)
    update: np.ndarray = (new - model).astype(np.float32)
    return update


class Toy:
    def train(self, spec: JobSpec, model: np.ndarray, epoch: int, batches: tuple[int, ...]) -> TrainingResult:
        examples = examples_to_train(spec, batches)
        return TrainingResult(examples, float(examples), toy_update(model, epoch, batches))

    def evaluate(self, spec: JobSpec, model: np.ndarray, chunks: tuple[int, ...]) -> EvaluationResult:
        examples = examples_to_judge(spec, chunks)
        return EvaluationResult(examples, float(examples), examples // 2)


def recomputed(spec: JobSpec, history: Sequence[Applied]) -> np.ndarray:
    """The model that a history implies."""
    model, velocity = FIRST_MODEL, np.zeros(LAYOUT.parameters_size, dtype=np.float32)
    for _, rows in itertools.groupby(history, key=lambda row: row.version):
        leases: dict[int, list[Applied]] = {}
        for row in rows:
            leases.setdefault(row.lease, []).append(row)
        total, weight = np.zeros(LAYOUT.size), 0
        for lent in leases.values():
            batches = tuple(row.batch for row in lent)
            examples = examples_to_train(spec, batches)
            total += examples * toy_update(model, lent[0].epoch, batches).astype(np.float64)
            weight += examples
        mean = (total / weight).astype(np.float32)
        size = LAYOUT.parameters_size
        model, velocity = momentum_step(model, velocity, mean, momentum=spec.plan.momentum, parameters_size=size)
    return model
