"""A task that declares its rows, so that devices without PyTorch train on their own: signs of eight by eight pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

import shoal
from shoal.data.raw_columns import RawColumn

SIGNS = 6


class OwnSigns(shoal.Task):
    plan = shoal.Plan(data="local", batch_size=16, lease_batches=2, epoch_leases=12, learning_rate=0.1)
    columns: ClassVar[Mapping[str, RawColumn]] = {
        "x": shoal.column("uint8", (8, 8)),
        "y": shoal.column("int64", classes=tuple(f"sign-{number}" for number in range(SIGNS))),
    }

    def __init__(self, own_head: bool = False, held_out: bool = True) -> None:
        self._own_head = own_head
        self._held_out = held_out

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, SIGNS))

    def examples(self, split: str) -> Any:
        if split == "test":
            return signs(120, seed=9) if self._held_out else None
        return signs(0, seed=0)

    def batch(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x.float().flatten(1) - 128) / 64, y

    def placement(self, name: str, tensor: Tensor) -> str | None:
        return "own" if self._own_head and name.startswith("2.") else None


def signs(count: int, *, seed: int, of: tuple[int, ...] = tuple(range(SIGNS))) -> tuple[np.ndarray, np.ndarray]:
    """Return noisy pictures of these signs, no two alike, and which sign each shows."""
    shapes = np.random.default_rng(5).integers(40, 216, (SIGNS, 8, 8))
    rng = np.random.default_rng(seed)
    y = rng.choice(of, count)
    x = np.clip(shapes[y] + rng.normal(scale=35, size=(count, 8, 8)), 0, 255).astype(np.uint8)
    return x, y.astype(np.int64)
