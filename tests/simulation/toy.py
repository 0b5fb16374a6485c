"""Toy training, and the same worked out from recorded history: what a simulated job should come to. No leader here."""

from __future__ import annotations

import itertools

import numpy as np

from shoal.learning.layout import Layout
from shoal.learning.outer import momentum_step
from shoal.roles.actions import Evaluate, Train
from shoal.roles.events import EvaluationDone, Trained
from shoal.roles.exam import chunk_range
from shoal.wire.messages import JobSpec
from shoal.workload.ledger import Applied

LAYOUT = Layout.of([("weight", (2, 2), "parameter"), ("mean", (1,), "buffer")])
FIRST_MODEL = np.arange(LAYOUT.size, dtype=np.float32)
SHA = "0" * 64


def toy_update(model: np.ndarray, epoch: int, batches: tuple[int, ...]) -> np.ndarray:
    """Every batch draws the model a tenth of the way towards a point of its own."""
    new = model.astype(np.float64)
    for batch in batches:
        new += 0.1 * (np.sin(np.arange(model.size) + 7 * epoch + 3 * batch) - new)
    return (new - model).astype(np.float32)


def examples_of(spec: JobSpec, batches: tuple[int, ...]) -> int:
    size = spec.plan.batch_size
    return sum(min(size, spec.train.examples - batch * size) for batch in batches)


def recomputed(spec: JobSpec, history: list[Applied]) -> np.ndarray:
    """The model that the recorded history implies, worked out without a leader."""
    model, velocity = FIRST_MODEL, np.zeros(LAYOUT.parameters_size, dtype=np.float32)
    for _, rows in itertools.groupby(history, key=lambda row: row.version):
        leases: dict[int, list[Applied]] = {}
        for row in rows:
            leases.setdefault(row.lease, []).append(row)
        total, weight = np.zeros(LAYOUT.size), 0
        for lent in leases.values():
            batches = tuple(row.batch for row in lent)
            total += examples_of(spec, batches) * toy_update(model, lent[0].epoch, batches).astype(np.float64)
            weight += examples_of(spec, batches)
        mean = (total / weight).astype(np.float32)
        size = LAYOUT.parameters_size
        model, velocity = momentum_step(model, velocity, mean, momentum=spec.plan.momentum, parameters_size=size)
    return model


def answer(spec: JobSpec, model: np.ndarray, action: Train | Evaluate) -> Trained | EvaluationDone:
    if isinstance(action, Train):
        delta = {"delta": toy_update(model, action.epoch, action.batches)}
        examples = examples_of(spec, action.batches)
        return Trained(lease=action.lease, examples=examples, loss_sum=1.0, seconds=0.1, tensors=delta)
    ranges = [chunk_range(chunk, examples=spec.test.examples) for chunk in action.chunks]
    examples = sum(stop - start for start, stop in ranges)
    return EvaluationDone(lease=action.lease, examples=examples, loss_sum=1.0, correct=examples // 2)
