"""Two halves of a plane, told apart by a line: the smallest task with a model, data and a loss that falls."""

from typing import Any

import torch
from torch import nn

import shoal


class Halves(shoal.Task):
    plan = shoal.Plan(batch_size=32, learning_rate=0.1, momentum=0.9, until=shoal.epochs(2))

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

    def examples(self, split: str) -> Any:
        chance = torch.Generator().manual_seed(1 if split == "train" else 2)
        points = torch.randn(512 if split == "train" else 128, 2, generator=chance)
        return points, (points[:, 0] > points[:, 1]).long()
