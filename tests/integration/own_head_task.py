"""A task whose devices each have a head of their own: they disagree on the names of the classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

import shoal

CENTRES = np.array([[0.0, 3.0], [3.0, -2.0], [-3.0, -2.0]])


class Named(shoal.Task):
    plan = shoal.Plan(data="local", batch_size=16, lease_batches=4, epoch_leases=12, learning_rate=0.1)

    def __init__(self, own: bool = True) -> None:
        self.own = own

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 3))

    def examples(self, split: str) -> Any:
        if split == "test":
            return None
        rows = np.loadtxt(shoal.data.local_folder() / "readings.csv", delimiter=",", ndmin=2, dtype=np.float32)
        return rows[:, :2], rows[:, 2].astype(np.int64)

    def placement(self, name: str, tensor: Tensor) -> str | None:
        return "own" if self.own and name.startswith("2.") else None


def named(count: int, *, seed: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """Readings, and what a device calls the place of each: the names are shifted."""
    rng = np.random.default_rng(seed)
    place = rng.integers(0, 3, count)
    return (CENTRES[place] + rng.normal(size=(count, 2))).astype(np.float32), (place + shift) % 3


def lines(x: np.ndarray, y: np.ndarray) -> str:
    return "".join(f"{a:.4f},{b:.4f},{label}\n" for (a, b), label in zip(x, y, strict=True))
