"""FedPer: the last layer is each device's own. The figure is its accuracy on a device's batches before each step."""

from typing import Any

import torch
from torch import nn

from baselines.base import Baseline, Mnist


class FedPer(Mnist):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))

    def placement(self, name: str, tensor: torch.Tensor) -> str | None:
        return "own" if name.startswith("2.") else None

    def step(self, model: nn.Module, batch: Any, lease: Any) -> torch.Tensor:
        x, y = batch
        output = model(x)
        lease.log("mine", int((output.argmax(1) == y).sum()), len(y))
        return nn.functional.cross_entropy(output, y)


PAPER = "Arivazhagan et al. 2019, arXiv:1912.00818"
BASELINE = Baseline(name="FedPer", paper=PAPER, task=FedPer, metric="train/mine", published="CIFAR and FLICKR")
