"""Three arms of a spiral, and a small network that tells them apart."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


def spirals(count: int, *, seed: int) -> TensorDataset:
    """Points of the plane with the number of their arm."""
    chance = torch.Generator().manual_seed(seed)
    arm = torch.randint(3, (count,), generator=chance)
    radius = torch.rand(count, generator=chance).sqrt()
    angle = 2 * math.pi * (radius + arm / 3) + 0.2 * torch.randn(count, generator=chance)
    return TensorDataset(torch.stack((radius * angle.cos(), radius * angle.sin()), 1), arm)


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))


def counted(model: nn.Module) -> tuple[Tensor, int]:
    """How many held-out points are right, of how many."""
    x, y = spirals(1000, seed=2).tensors
    with torch.no_grad():
        return (model(x).argmax(1) == y).sum(), len(y)


def accuracy(model: nn.Module) -> float:
    right, count = counted(model)
    return right.item() / count
