"""SCAFFOLD (Karimireddy et al. 2020) on blobs of points that each device sees other ones of."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

import shoal

ROWS = 300


class Controlled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 3)
        #: The control vector that all devices share, and this device's own.
        self.register_buffer("shared", torch.zeros(9))
        self.register_buffer("mine", torch.zeros(9))

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)


class Scaffold(shoal.Task):
    def model(self) -> nn.Module:
        return Controlled()

    def placement(self, name: str, tensor: torch.Tensor) -> str | None:
        return "own" if name == "mine" else None

    def examples(self, split: str) -> Any:
        rng = np.random.default_rng(0 if split == "train" else 1)
        labels = np.arange(ROWS) % 3
        points = rng.normal(size=(ROWS, 2)) + 3 * np.stack([np.cos(2.1 * labels), np.sin(2.1 * labels)], axis=1)
        rows = shoal.data.dirichlet(0.3, least=20).here(labels) if split == "train" else np.arange(ROWS)
        return points[rows].astype(np.float32), labels[rows]

    def train(self, model: Any, batches: Iterator[Any], lease: Any) -> None:
        parameters, steps = list(model.net.parameters()), 0
        start = parameters_to_vector(parameters).detach().clone()
        for x, y in batches:
            loss = nn.functional.cross_entropy(model(x), y)
            changes = torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters)])
            step = lease.rate * (changes + model.shared - model.mine)
            with torch.no_grad():
                at = 0
                for each in parameters:
                    each -= step[at : at + each.numel()].view_as(each)
                    at += each.numel()
            lease.log("loss", loss.item() * len(x), len(x))
            steps += 1
            time.sleep(0.02)
        with torch.no_grad():
            new = model.mine - model.shared + (start - parameters_to_vector(parameters)) / (steps * lease.rate)
            # Every device takes part in every version.
            model.shared += new - model.mine
            model.mine.copy_(new)

    def metrics(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        x, y = batch
        right = int((model(x).argmax(1) == y).sum())
        return {"accuracy": shoal.mean(right, len(y))}
