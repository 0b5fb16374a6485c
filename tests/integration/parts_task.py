"""A task whose devices each have a part of one set, and whose own loop notes which rows it trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import shoal
from shoal.trainer.lease import TaskLease

ROWS, DEVICES = 60, 2
PARTITION = shoal.data.dirichlet(0.5, least=5)


class Noting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 3)
        #: How often each device trained on each row.
        self.register_buffer("noted", torch.zeros(DEVICES, ROWS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x / ROWS)


class Parts(shoal.Task):
    plan = shoal.Plan(data="local", batch_size=20, lease_batches=3, epoch_leases=4, workers_min=2, momentum=0.0)

    def model(self) -> nn.Module:
        return Noting()

    def examples(self, split: str) -> Any:
        if split == "test":
            return None
        labels = np.arange(ROWS) % 3
        rows = PARTITION.here(labels)
        return rows[:, None].astype(np.float32), labels[rows]

    def train(self, model: nn.Module, batches: Iterator[Any], lease: TaskLease) -> None:
        part = shoal.data.part()
        index = part[0] if part is not None else 0
        for x, y in batches:
            loss = self.loss(model(x), y)
            loss.backward()
            model.noted[index, x[:, 0].long()] += 1
            lease.log("loss", loss.item() * len(x), len(x))
