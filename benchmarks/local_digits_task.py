"""Digits of which every device has a part of its own, by a Dirichlet partition. User code, as anyone would write it."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor, nn

import shoal
from shoal.data.made_up_digits import made_up_digits

#: Everybody has enough for a whole lease, so that devices differ in their classes and not in their times.
PARTITION = shoal.data.dirichlet(0.3, least=300)


@functools.cache
def digits(split: str) -> Any:
    return made_up_digits(split)


class LocalDigits(shoal.Task):
    plan = shoal.Plan(data="local", batch_size=64, lease_batches=4, learning_rate=0.05)

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    def examples(self, split: str) -> Any:
        x, y = digits(split)
        if split == "test":
            return x, y
        rows = PARTITION.here(y)
        return x[rows], y[rows]

    def batch(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.float().div_(255), y
