"""A small classifier with BatchNorm on labels of which a fifth are wrong: its accuracy jumps with each version."""

from __future__ import annotations

import numpy as np
from torch import nn

import shoal

CLASSES, WIDTH = 6, 12
WRONG_SHARE = 0.2


class Noisy(shoal.Task):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, CLASSES))

    def examples(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        chance = np.random.default_rng(1 if split == "train" else 2)
        count = 1280 if split == "train" else 2000
        y = chance.integers(0, CLASSES, count)
        # The centres are the same for both splits.
        centres = np.random.default_rng(0).normal(size=(CLASSES, WIDTH))
        x = centres[y] + 1.5 * chance.normal(size=(count, WIDTH))
        is_wrong = chance.random(count) < (WRONG_SHARE if split == "train" else 0.0)
        return x.astype(np.float32), np.where(is_wrong, chance.integers(0, CLASSES, count), y)
