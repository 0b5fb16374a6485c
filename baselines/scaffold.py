"""SCAFFOLD: control vectors take the drift of a device's own data out of its steps. No server side: the shared control
vector is a buffer, whose mean over devices every version has."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from baselines.base import Baseline, Controlled, Mnist, gradients, move, parameters_to_vector


class Scaffold(Mnist):
    #: The cohort's part of all devices.
    share = 0.1

    def model(self) -> nn.Module:
        return Controlled(super().model())

    def placement(self, name: str, tensor: torch.Tensor) -> str | None:
        return "own" if name == "mine" else None

    def train(self, model: Any, batches: Iterator[Any], lease: Any) -> None:
        parameters, steps = list(model.net.parameters()), 0
        start = parameters_to_vector(parameters).detach().clone()
        for x, y in batches:
            loss = nn.functional.cross_entropy(model(x), y)
            move(parameters, -lease.rate * (gradients(loss, parameters) + model.shared - model.mine))
            lease.log("loss", loss.item() * len(x), len(x))
            steps += 1
        with torch.no_grad():
            new = model.mine - model.shared + (start - parameters_to_vector(parameters)) / (steps * lease.rate)
            model.shared += self.share * (new - model.mine)
            model.mine.copy_(new)


PAPER = "Karimireddy et al. 2020, arXiv:1910.06378, Algorithm 1, option II"
BASELINE = Baseline(name="SCAFFOLD", paper=PAPER, task=Scaffold, plan={"weights": "device"}, published="EMNIST only")
