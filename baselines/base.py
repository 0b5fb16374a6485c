"""What baselines share: the task that most of them change, and the modules that carry more than a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

import shoal

__all__ = ["Baseline", "Controlled", "Mnist", "Scalar", "gradients", "parameters_to_vector", "plain_steps"]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    name: str
    #: Authors, year and where to find it.
    paper: str
    task: type[Mnist]
    algorithm: type[shoal.Algorithm] | None = None
    #: The figure that is compared.
    metric: str = "accuracy"
    #: Keys of the plan that differ from the other baselines'.
    plan: Mapping[str, Any] = field(default_factory=dict)
    #: The paper's figures that are measured again, or why there are none to compare with.
    published: str = ""


class Mnist(shoal.Task):
    """Logistic regression on handwritten digits. ``rows`` takes the first examples only, for a quick look."""

    def __init__(self, rows: int = 60_000) -> None:
        self.rows = rows

    def model(self) -> nn.Module:
        return nn.Linear(784, 10)

    def examples(self, split: str) -> Any:
        x, y = shoal.data.mnist(split)
        return np.asarray(x)[: self.rows].reshape(-1, 784), np.asarray(y)[: self.rows].astype(np.int64)

    def batch(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return x.float() / 255, y

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, y = batch
        output = model(x)
        right = int((output.argmax(1) == y).sum())
        loss = nn.functional.cross_entropy(output, y, reduction="sum").item()
        return {"loss": shoal.mean(loss, len(y)), "accuracy": shoal.mean(right, len(y))}


class Controlled(nn.Module):
    """A network with a control vector that devices share, and one that each device keeps."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        size = sum(each.numel() for each in net.parameters())
        self.register_buffer("shared", torch.zeros(size))
        self.register_buffer("mine", torch.zeros(size))

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)


class Scalar(nn.Module):
    """A network with one number that travels with each update, so that the leader gets its mean over devices."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("scalar", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)


def gradients(loss: torch.Tensor, parameters: list[nn.Parameter]) -> torch.Tensor:
    """Return the gradients of a loss as one vector."""
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters)])


def plain_steps(net: nn.Module, batches: Iterator[Any], lease: Any) -> tuple[int, float]:
    """Train by plain gradient descent. Return the number of steps and the loss of the first batch."""
    parameters, first, count = list(net.parameters()), 0.0, 0
    for x, y in batches:
        loss = nn.functional.cross_entropy(net(x), y)
        first = loss.item() if count == 0 else first
        move(parameters, -lease.rate * gradients(loss, parameters))
        lease.log("loss", loss.item() * len(x), len(x))
        count += 1
    return count, first


def move(parameters: list[nn.Parameter], step: torch.Tensor) -> None:
    """Add a vector to parameters."""
    with torch.no_grad():
        start = 0
        for each in parameters:
            each.add_(step[start : start + each.numel()].view_as(each))
            start += each.numel()
