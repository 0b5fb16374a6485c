"""Federated averaging by pfl-research, for ``benchmarks.research``. Runs in an environment that has ``pfl``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["PFL_PYTORCH_DEVICE"] = "cpu"

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from research_work import BATCH, CLIENTS, COHORT, RATE, Work, cpu_s, tell


class Clock(TrainingProcessCallback):
    """Notes the processor time after a version."""

    def __init__(self, work: Work, short: int) -> None:
        self.version, self.began_s = 0, 0.0
        self._short = short

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.version = central_iteration + 1
        if self.version == self._short:
            self.began_s = cpu_s()
        return False, Metrics()


def main(folder: str, model: str, seed: str, short: str, long: str) -> None:
    work = Work(Path(folder), model, int(seed))
    clock = Clock(work, int(short))
    np.random.seed(int(seed))
    kind = type("Net", (type(work.net),), {})
    work.net.__class__ = kind
    kind.loss = lambda self, x, y, eval=False: nn.functional.cross_entropy(self(x), y)
    kind.metrics = lambda self, x, y, eval=False: {}

    def rows_of(client: int) -> Dataset:
        order = work.order(client, clock.version)
        return Dataset(raw_data=[work.x[order], work.y[order]], user_id=str(client))

    clients = FederatedDataset(rows_of, get_user_sampler("random", list(range(CLIENTS))))
    central = torch.optim.SGD(work.net.parameters(), lr=1.0)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=int(long), evaluation_frequency=10**9, train_cohort_size=COHORT, val_cohort_size=0
        ),
        backend=SimulatedBackend(training_data=clients, val_data=clients),
        model=PyTorchModel(model=work.net, local_optimizer_create=torch.optim.SGD, central_optimizer=central),
        model_train_params=NNTrainHyperParams(local_learning_rate=RATE, local_num_epochs=1, local_batch_size=BATCH),
        model_eval_params=NNEvalHyperParams(local_batch_size=1000),
        callbacks=[clock],
    )
    ended_s = cpu_s()
    tell(clock.began_s, ended_s, int(long) - int(short), work.accuracy())


if __name__ == "__main__":
    main(*sys.argv[1:])
