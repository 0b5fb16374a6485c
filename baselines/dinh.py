"""Rows of Dinh et al. 2020 (arXiv:2006.08848, Table 1) that are measured again: the best accuracy of the model that
devices share, by FedAvg and by pFedMe, on MNIST and on the synthetic set of Li et al. 2020 (arXiv:1812.06127), with
alpha = beta = 0.5 and 100 devices.

Both sets are drawn as in the code that the authors released, which has seeds, so they are the same sets. The synthetic
one was divided into nine tenths to train on and one to test without a seed. Here the seed of the run divides it.
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
from baselines.dinh_mnist import DEVICES, Rows
from baselines.dinh_mnist import devices_rows as two_digits
from baselines.pfedme import envelope_steps
from baselines.published import PublishedFigure

SYNTHETIC_DEVICES, DIMENSION, CLASSES = 100, 60, 10
STEPS, BATCH = 20, 20
#: How far pFedMe's leader goes along the mean change, in all four rows.
BETA = 2.0
WHY = (
    "a device of the authors' code goes through its rows in one order and continues there in the next version; here"
    " each lease draws from all of them"
)


@functools.cache
def synthetic_rows(spread: float, devices: int = SYNTHETIC_DEVICES, times: int = 5) -> list[Rows]:
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


class Shares(Mnist):
    """A fixed number of batches on a device, which counts by how many examples it has. It is pFedMe if a device's own
    model is pulled to the shared one, else FedAvg."""

    inputs: int

    def __init__(self, seed: int = 0, hidden: int = 0, pull: float = 0.0, own_rate: float = 0.0) -> None:
        self.seed, self.hidden, self.pull, self.own_rate = seed, hidden, pull, own_rate

    def _rows_by_device(self) -> list[tuple[Rows, Rows]]:
        """Return the examples to train on and to test with, by device."""
        raise NotImplementedError

    def model(self) -> nn.Module:
        if not self.hidden:
            return Scalar(nn.Linear(self.inputs, CLASSES))
        layers = (nn.Linear(self.inputs, self.hidden), nn.ReLU(), nn.Linear(self.hidden, CLASSES))
        return Scalar(nn.Sequential(*layers))

    def examples(self, split: str) -> Any:
        sets = self._rows_by_device()
        counts = [len(y) for (_, y), _ in sets]
        chosen = [train if split == "train" else test for train, test in sets]
        lengths = [len(y) for _, y in chosen]
        shares = np.array(counts) / np.mean(counts)
        return {
            "x": np.concatenate([x for x, _ in chosen]),
            "y": np.concatenate([y for _, y in chosen]),
            "device": np.repeat(np.arange(len(sets)), lengths),
            "share": np.repeat(shares.astype(np.float32), lengths),
        }

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
        again = (taken[number % len(taken)][:2] for number in range(STEPS))
        if self.pull:
            envelope_steps(model.net, again, lease, pull=self.pull, own_rate=self.own_rate)
        else:
            plain_steps(model.net, again, lease)
        with torch.no_grad():
            vector_to_parameters(start + share * (parameters_to_vector(parameters) - start), parameters)
            model.scalar += share


class Synthetic(Shares):
    """A set in which each device has a rule of its own."""

    inputs = DIMENSION

    def _rows_by_device(self) -> list[tuple[Rows, Rows]]:
        rng, found = np.random.default_rng(self.seed), []
        for x, y in synthetic_rows(0.5):
            order, edge = rng.permutation(len(y)), int(0.9 * len(y))
            found.append(((x[order[:edge]], y[order[:edge]]), (x[order[edge:]], y[order[edge:]])))
        return found


class TwoDigits(Shares):
    """MNIST, of which each device has two digits."""

    inputs = 784

    def _rows_by_device(self) -> list[tuple[Rows, Rows]]:
        return two_digits()


class ByShare(shoal.Algorithm):
    """The mean by shares: devices send their change times their share, and the share."""

    def finish(self, mean: Mapping[str, np.ndarray], state: Any) -> Any:
        return {name: each / mean["scalar"] for name, each in mean.items() if name != "scalar"}, state


def row(
    task: type[Shares],
    name: str,
    of: str,
    *,
    devices: int,
    cohort: int,
    versions: int,
    hidden: int,
    accuracy: float,
    rate: float,
    pull: float = 0.0,
    own_rate: float = 0.0,
) -> PublishedFigure:
    kind = f"a network with {hidden} hidden units" if hidden else "logistic regression"
    method = "pFedMe's shared model" if pull else "FedAvg"
    return PublishedFigure(
        name=f"dinh-{name}-{'dnn' if hidden else 'mlr'}{'-pfedme' if pull else ''}",
        of=f"{method}, {kind}, {of}: best accuracy of {versions} versions. Table 1 of arXiv:2006.08848",
        paper=accuracy,
        why=WHY,
        task=lambda seed: task(seed=seed, hidden=hidden, pull=pull, own_rate=own_rate),
        partition='by("device")',
        devices=devices,
        algorithm=ByShare,
        plan={
            "cohort": cohort,
            "sampling": "uniform",
            "epoch_leases": cohort,
            "lease_batches": STEPS,
            "weights": "device",
            # A device with many examples sends a long change.
            "accept_unusual": True,
            "batch_size": BATCH,
            "learning_rate": rate,
            "until": shoal.epochs(versions),
            **({"outer_rate": BETA} if pull else {}),
        },
    )


synthetic = functools.partial(
    row, Synthetic, "synthetic", "Synthetic(0.5, 0.5)", devices=SYNTHETIC_DEVICES, cohort=10, versions=600
)
digits = functools.partial(row, TwoDigits, "mnist", "MNIST, two digits each", devices=DEVICES, cohort=5, versions=800)
#: All settings are those of the commands that the authors published for this table (README of
#: github.com/CharlieDinh/pFedMe, "Fine-tuned Parameters", unchanged since 2020-06-09).
FIGURES = (
    synthetic(hidden=0, accuracy=0.7762, rate=0.02),
    synthetic(hidden=20, accuracy=0.8364, rate=0.03),
    digits(hidden=0, accuracy=0.9396, rate=0.02),
    digits(hidden=100, accuracy=0.9879, rate=0.02),
    synthetic(hidden=0, accuracy=0.7865, rate=0.01, pull=20, own_rate=0.01),
    synthetic(hidden=20, accuracy=0.8417, rate=0.01, pull=30, own_rate=0.01),
    digits(hidden=0, accuracy=0.9418, rate=0.01, pull=15, own_rate=0.1),
    digits(hidden=100, accuracy=0.9916, rate=0.01, pull=30, own_rate=0.05),
)
