"""The tasks of ``benchmarks.research``: two plain models on MNIST."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import shoal


class Logistic(shoal.Task):
    def model(self) -> nn.Module:
        return nn.Linear(784, 10)

    def examples(self, split: str) -> Any:
        x, y = shoal.data.mnist(split)
        return np.asarray(x).reshape(-1, 784), np.asarray(y).astype(np.int64)

    def batch(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.float().div_(255), y


class Mlp(Logistic):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
