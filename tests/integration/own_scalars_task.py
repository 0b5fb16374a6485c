"""A task whose rows a person can write into a form: three values each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

import shoal
from shoal.data.raw_columns import RawColumn


class Comfort(shoal.Task):
    """Whether a room is comfortable, by its heat and the number of people in it."""

    plan = shoal.Plan(data="local", batch_size=4, lease_batches=1, epoch_leases=4, learning_rate=0.05)
    columns: ClassVar[Mapping[str, RawColumn]] = {
        "heat": shoal.column("float32"),
        "people": shoal.column("int32"),
        "y": shoal.column("bool"),
    }

    def model(self) -> nn.Module:
        return nn.Linear(2, 2)

    def examples(self, split: str) -> Any:
        return None

    def collate(self, rows: Any, *, training: bool) -> Any:
        return torch.stack([rows["heat"] / 30, rows["people"].float() / 10], 1), rows["y"].long()
