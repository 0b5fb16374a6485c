"""Digits that devices of any kind read from their own files. User code, as anyone would write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

import shoal
from shoal.data.made_up_digits import made_up_digits
from shoal.data.raw_columns import RawColumn


class OwnDigits(shoal.Task):
    plan = shoal.Plan(data="local", batch_size=32, lease_batches=4, epoch_leases=40, learning_rate=0.05, momentum=0.9)
    columns: ClassVar[Mapping[str, RawColumn]] = {
        "x": shoal.column("uint8", (28, 28)),
        "y": shoal.column("int64", classes=tuple("0123456789")),
    }

    def __init__(self, made_up: bool = False) -> None:
        self._made_up = made_up

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))

    def examples(self, split: str) -> Any:
        x, y = made_up_digits(split) if self._made_up else shoal.data.mnist(split)
        return x[:, 0], y

    def batch(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.float() / 255, y
