"""Rows of Dinh et al. 2020 (arXiv:2006.08848, Table 1) that are measured again: the best accuracy of FedAvg's model on
the synthetic set of Li et al. 2020 (arXiv:1812.06127), with alpha = beta = 0.5 and 100 devices.

The set is drawn as in the code that the authors released, which seeds NumPy with 0, so it is the same set. They divided
it into nine tenths to train on and one to test without a seed. Here the seed of the run divides it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

import shoal
from baselines.base import Mnist, Scalar, parameters_to_vector, plain_steps
from baselines.published import PublishedFigure

DEVICES, DIMENSION, CLASSES = 100, 60, 10
STEPS, BATCH, VERSIONS = 20, 20, 600


@functools.cache
def devices_rows(spread: float, devices: int = DEVICES, times: int = 5) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the examples of each device. A device has a model of its own, drawn around a mean of its own, and inputs
    around another; ``spread`` is the deviation of these means between devices, alpha and beta of the papers."""
    # The order of draws is part of the definition, and only the old generator has the old numbers.
    rng = np.random.RandomState(0)
    counts = (rng.lognormal(4, 2, devices).astype(int) + 50) * times
    model_means, input_means = rng.normal(0, spread, devices), rng.normal(0, spread, devices)
    centres = [rng.normal(mean, 1, DIMENSION) for mean in input_means]
    deviations = np.diag(np.arange(1, DIMENSION + 1) ** -1.2)
    rows = []
    for count, mean, centre in zip(counts, model_means, centres, strict=True):
        weights, bias = rng.normal(mean, 1, (DIMENSION, CLASSES)), rng.normal(mean, 1, CLASSES)
        x = rng.multivariate_normal(centre, deviations, count)
        rows.append((x.astype(np.float32), np.argmax(x @ weights + bias, axis=1)))
    return rows


class Synthetic(Mnist):
    """FedAvg with a fixed number of steps on a device, which counts by how many examples it has."""

    def __init__(self, seed: int = 0, hidden: int = 0) -> None:
        self.seed, self.hidden = seed, hidden

    def model(self) -> nn.Module:
        if not self.hidden:
            return Scalar(nn.Linear(DIMENSION, CLASSES))
        layers = (nn.Linear(DIMENSION, self.hidden), nn.ReLU(), nn.Linear(self.hidden, CLASSES))
        return Scalar(nn.Sequential(*layers))

    def examples(self, split: str) -> Any:
        rng = np.random.default_rng(self.seed)
        columns: dict[str, list[np.ndarray]] = {"x": [], "y": [], "device": [], "share": []}
        sets = devices_rows(0.5)
        usual = np.mean([len(labels) for _, labels in sets])
        for number, (inputs, labels) in enumerate(sets):
            order, edge = rng.permutation(len(labels)), int(0.9 * len(labels))
            chosen = order[:edge] if split == "train" else order[edge:]
            columns["x"].append(inputs[chosen])
            columns["y"].append(labels[chosen])
            columns["device"].append(np.full(len(chosen), number))
            columns["share"].append(np.full(len(chosen), edge / usual, dtype=np.float32))
        return {name: np.concatenate(parts) for name, parts in columns.items()}

    def collate(self, rows: Any, *, training: bool) -> Any:
        return tuple(torch.as_tensor(rows[name]) for name in ("x", "y", "share"))

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        return super().metrics(model, batch[:2])

    def train(self, model: Any, batches: Iterator[Any], lease: Any) -> None:
        taken = list(batches)
        share = float(taken[0][2][0])
        parameters = list(model.net.parameters())
        start = parameters_to_vector(parameters).detach().clone()
        # A device with fewer batches begins again.
        plain_steps(model.net, (taken[number % len(taken)][:2] for number in range(STEPS)), lease)
        with torch.no_grad():
            vector_to_parameters(start + share * (parameters_to_vector(parameters) - start), parameters)
            model.scalar += share


class ByShare(shoal.Algorithm):
    """The mean by shares: devices send their change times their share, and the share."""

    def finish(self, mean: Mapping[str, np.ndarray], state: Any) -> Any:
        return {name: each / mean["scalar"] for name, each in mean.items() if name != "scalar"}, state


def row(*, hidden: int, accuracy: float, rate: float) -> PublishedFigure:
    kind = f"a network with {hidden} hidden units" if hidden else "logistic regression"
    return PublishedFigure(
        name=f"dinh-synthetic-{'dnn' if hidden else 'mlr'}",
        of=f"FedAvg, {kind}, Synthetic(0.5, 0.5): best accuracy of {VERSIONS} versions. Table 1 of arXiv:2006.08848",
        paper=accuracy,
        task=lambda seed: Synthetic(seed=seed, hidden=hidden),
        partition='by("device")',
        devices=DEVICES,
        algorithm=ByShare,
        plan={
            "cohort": 10,
            "sampling": "uniform",
            "epoch_leases": 10,
            "lease_batches": STEPS,
            "weights": "device",
            # A device with many examples sends a long change.
            "accept_unusual": True,
            "batch_size": BATCH,
            "learning_rate": rate,
            "until": shoal.epochs(VERSIONS),
        },
    )


#: The rates are those of the commands that the authors published.
FIGURES = (row(hidden=0, accuracy=0.7762, rate=0.02), row(hidden=20, accuracy=0.8364, rate=0.03))
