"""Ditto: beside the shared model each device trains one of its own, which is pulled towards it. The figure is the own
model's accuracy on a device's batches before each step."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from baselines.base import Baseline, Mnist, gradients, move


class Ditto(Mnist):
    pull = 0.1

    def model(self) -> nn.Module:
        return nn.ModuleDict({"shared": super().model(), "mine": super().model()})

    def placement(self, name: str, tensor: torch.Tensor) -> str | None:
        return "own" if name.startswith("mine.") else None

    def train(self, model: Any, batches: Iterator[Any], lease: Any) -> None:
        parameters = list(model.parameters())
        for x, y in batches:
            own = model["mine"].named_parameters()
            apart = sum((each - lease.anchor(f"shared.{name}")).square().sum() for name, each in own)
            output = model["mine"](x)
            shared, mine = nn.functional.cross_entropy(model["shared"](x), y), nn.functional.cross_entropy(output, y)
            move(parameters, -lease.rate * gradients(shared + mine + self.pull / 2 * apart, parameters))
            lease.log("loss", shared.item() * len(x), len(x))
            lease.log("mine", int((output.argmax(1) == y).sum()), len(y))

    def metrics(self, model: Any, batch: Any) -> dict[str, Any]:
        return super().metrics(model["shared"], batch)


PAPER = "Li et al. 2021, arXiv:2012.04221, Algorithm 1"
BASELINE = Baseline(name="Ditto", paper=PAPER, task=Ditto, metric="train/mine", published="no MNIST without attacks")
