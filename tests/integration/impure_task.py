"""Tasks for `shoal check`: one that a cluster must not get, and one whose examples come while it is looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import shoal


class Growing(shoal.Task):
    """Each look at the device's own examples finds one more."""

    plan = shoal.Plan(data="local", batch_size=8, learning_rate=0.1)

    def __init__(self) -> None:
        self._looked = 0

    def model(self) -> nn.Module:
        return nn.Linear(4, 2)

    def examples(self, split: str) -> Any:
        self._looked += 1
        x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)[: 16 + self._looked]
        return (x, (x[:, 0] > 0).astype(np.int64)) if split == "train" else None


class Counting(shoal.Task):
    """``inner_state`` may be kept: then nothing is claimed."""

    plan = shoal.Plan(batch_size=8, learning_rate=0.1)

    def __init__(self) -> None:
        self._asked = 0

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))

    def examples(self, split: str) -> Any:
        x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
        return x, (x[:, 0] > 0).astype(np.int64)

    def step(self, model: nn.Module, batch: Any, lease: Any) -> Tensor:
        """Weighs the last layer's bias by its own count, so that only this tensor's update differs."""
        x, y = batch
        self._asked += 1
        pull = model[2].bias.sum() * torch.tensor(float(self._asked))
        return nn.functional.cross_entropy(model(x), y) + pull
