"""A convolutional network whose batch is large enough for two cores: ``benchmarks.threads``."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

import shoal


class Wide(shoal.Task):
    plan = shoal.Plan(batch_size=32, learning_rate=0.01, until=shoal.endless())

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(1024, 10),
        )

    def examples(self, split: shoal.task.Split) -> Any:
        chance = np.random.default_rng(0)
        count = 1024 if split == "train" else 32
        return chance.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8), chance.integers(0, 10, count)
