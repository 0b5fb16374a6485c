"""FedDyn: a device's loss is regularised by what it learned before. No server side: the leader's step is linear in the
mean, so each device sends its part of it."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

from baselines.base import Baseline, gradients, move, parameters_to_vector
from baselines.scaffold import Scaffold


class FedDyn(Scaffold):
    alpha = 0.05

    def train(self, model: Any, batches: Iterator[Any], lease: Any) -> None:
        parameters = list(model.net.parameters())
        start = parameters_to_vector(parameters).detach().clone()
        for x, y in batches:
            loss, now = nn.functional.cross_entropy(model(x), y), parameters_to_vector(parameters).detach()
            pull = self.alpha * (now - start) - model.mine
            move(parameters, -lease.rate * (gradients(loss, parameters) + pull))
            lease.log("loss", loss.item() * len(x), len(x))
        with torch.no_grad():
            moved = parameters_to_vector(parameters) - start
            model.mine -= self.alpha * moved
            vector_to_parameters(start + moved * (1 + self.share) - model.shared / self.alpha, parameters)
            model.shared -= self.alpha * self.share * moved


PAPER = "Acar et al. 2021, arXiv:2111.04263, Algorithm 1"
BASELINE = Baseline(name="FedDyn", paper=PAPER, task=FedDyn, plan={"weights": "device"}, published="EMNIST and CIFAR")
