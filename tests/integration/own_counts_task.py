"""A model that counts: each lease takes the same from the shared value and from the device's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import shoal
from shoal.data.raw_columns import RawColumn

#: What one lease takes from both values: two steps at this rate, where the gradient is 1 whatever the values are.
RATE = 0.125
BY_A_LEASE = 2 * RATE


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Parameter(torch.zeros(1))
        self.kept = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * 0 + self.shared + self.kept


class Counting(shoal.Task):
    plan = shoal.Plan(
        data="local", batch_size=4, lease_batches=2, epoch_leases=12, learning_rate=RATE, momentum=0.0, pace="sync"
    )
    columns: ClassVar[Mapping[str, RawColumn]] = {"x": shoal.column("float32"), "y": shoal.column("int64")}

    def model(self) -> nn.Module:
        return Counts()

    def examples(self, split: str) -> Any:
        return None

    @staticmethod
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return output.mean()

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, _ = batch
        return {"loss": shoal.mean(model(x).sum(), len(x))}

    def placement(self, name: str, tensor: Tensor) -> str | None:
        return "own" if name == "kept" else None
