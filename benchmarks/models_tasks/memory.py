"""Tasks whose size is the point: ``benchmarks.memory``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import shoal


class Wide(shoal.Task):
    """A network of about ``width`` squared values."""

    plan = shoal.Plan(batch_size=4, learning_rate=1e-3, momentum=0.9)

    def __init__(self, width: int = 5000, batches: int = 20) -> None:
        self.width, self.batches = width, batches

    def model(self) -> nn.Module:
        width = self.width
        return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))

    def examples(self, split: shoal.task.Split) -> Any:
        rng = np.random.default_rng(0)
        count = 4 * self.batches if split == "train" else 8
        return rng.standard_normal((count, 16)).astype(np.float32), rng.integers(0, 4, count)


class Embedded(nn.Module):
    """A frozen embedding with the shape of Gemma 3 4B's in bfloat16, and a head that is trained on it."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(rows, width, dtype=torch.bfloat16).requires_grad_(False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(tokens).float())
        return out


class LargeFrozen(shoal.Task):
    plan = shoal.Plan(batch_size=4, learning_rate=1e-3, lease_batches=1)

    def __init__(self, rows: int = 262_144, width: int = 2560) -> None:
        self.rows, self.width = rows, width

    def model(self) -> nn.Module:
        return Embedded(self.rows, self.width)

    def examples(self, split: shoal.task.Split) -> Any:
        # The same few tokens in both: what is learned of them shows that the embedding was read.
        tokens = np.random.default_rng(1).integers(0, self.rows, 32)
        return tokens, np.arange(32) % 2
