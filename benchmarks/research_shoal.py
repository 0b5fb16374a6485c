"""Federated averaging by ``shoal.simulate``, for ``benchmarks.research``."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch

import shoal
from benchmarks.research_tasks import Logistic, Mlp
from benchmarks.research_work import BATCH, CLIENTS, COHORT, RATE, ROWS, STEPS
from shoal.data.partition import Partition
from shoal.trainer.stacked import ModelStack

TASKS: dict[str, type[Logistic]] = {"logistic": Logistic, "mlp": Mlp}


@dataclass(frozen=True, slots=True)
class Repeated(Partition):
    """Another partition, whose devices have as many rows each: their own, repeated."""

    inner: Partition

    def rows(self, values: Any, devices: int, *, seed: int = 0) -> list[Any]:
        return [np.resize(each, ROWS) for each in self.inner.rows(values, devices, seed=seed)]

    def owners(self, values: np.ndarray[Any, Any], devices: int, *, seed: int) -> Any:
        return self.inner.owners(values, devices, seed=seed)

    def __str__(self) -> str:
        return str(self.inner)


def divided(labels: Any, seed: int) -> np.ndarray[Any, Any]:
    """Return the rows of every client."""
    return np.stack(Repeated(shoal.data.dirichlet(0.1)).rows(labels, CLIENTS, seed=seed))


def simulated(model: str, seed: int, versions: int) -> Any:
    plan = shoal.Plan(
        data="local",
        pace="sync",
        workers_min=CLIENTS,
        workers_max=CLIENTS,
        cohort=COHORT,
        sampling="uniform",
        epoch_leases=COHORT,
        lease_batches=STEPS,
        batch_size=BATCH,
        learning_rate=RATE,
        momentum=0.0,
        evaluate_every_epochs=versions,
        until=shoal.epochs(versions),
    )
    partition = Repeated(shoal.data.dirichlet(0.1))
    return shoal.simulate(
        TASKS[model](), devices=CLIENTS, partition=partition, plan=plan, seeds=(seed,), progress=False
    )


def main(how: str, model: str, seed: str, short: str, long: str) -> None:
    torch.set_num_threads(1)
    one_by_one = mock.patch.object(ModelStack, "of", return_value=None) if how == "one_by_one" else nullcontext()
    with tempfile.TemporaryDirectory(prefix="shoal-research-") as home, mock.patch.dict(os.environ, SHOAL_HOME=home):
        spent, series = [], None
        with one_by_one:
            # The first is not counted: it prepares the task.
            for versions in (1, int(short), int(long)):
                began_s = time.process_time()
                series = simulated(model, int(seed), versions)
                spent.append(time.process_time() - began_s)
        cpu_ms = 1000 * (spent[2] - spent[1]) / ((int(long) - int(short)) * COHORT)
        assert series is not None
        told = {"cpu_ms": cpu_ms, "accuracy": series.finals("accuracy")[0], "hash": series.to_plain()["hash"]}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
