"""A task whose examples are on the devices: what each has, in a file of its folder that may grow."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from torch import nn

import shoal


class Readings(shoal.Task):
    """Which of three places a noisy reading comes from."""

    plan = shoal.Plan(data="local", batch_size=16, lease_batches=4, epoch_leases=12, learning_rate=0.2)

    def __init__(self, pause_s: float = 0.0, hidden: int = 0) -> None:
        """``pause_s``: what a batch takes; ``hidden``: units of a model that is larger than it has to be."""
        self._pause_s = pause_s
        self._hidden = hidden

    def model(self) -> nn.Module:
        if not self._hidden:
            return nn.Linear(2, 3)
        return nn.Sequential(nn.Linear(2, self._hidden), nn.ReLU(), nn.Linear(self._hidden, 3))

    def collate(self, rows: Any, *, training: bool) -> Any:
        time.sleep(self._pause_s if training else 0.0)
        return super().collate(rows, training=training)

    def examples(self, split: str) -> Any:
        if split == "test":
            return None
        rows = np.loadtxt(shoal.data.local_folder() / "readings.csv", delimiter=",", ndmin=2, dtype=np.float32)
        return rows[:, :2], rows[:, 2].astype(np.int64)


def readings(count: int, *, seed: int, labels: tuple[int, ...] = (0, 1, 2)) -> str:
    """So many lines of such a file."""
    rng = np.random.default_rng(seed)
    y = rng.choice(labels, count)
    centres = np.array([[0.0, 3.0], [3.0, -2.0], [-3.0, -2.0]])
    x = centres[y] + rng.normal(size=(count, 2))
    return "".join(f"{a:.4f},{b:.4f},{label}\n" for (a, b), label in zip(x, y, strict=True))
