"""What the devices of the contest train: a network of two layers on MNIST, from a folder that each has of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

import shoal


class Strokes(shoal.Task):
    plan = shoal.Plan(data="local", batch_size=16, learning_rate=0.05, momentum=0.0)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))

    def examples(self, split: str) -> Any:
        if split == "test":
            return None
        folder = shoal.data.local_folder()
        # Mapped: to read them all for each lease would take longer than the lease.
        return np.load(folder / "images.npy", mmap_mode="r"), np.load(folder / "labels.npy", mmap_mode="r")

    def batch(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.float() / 255, y
