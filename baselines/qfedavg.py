"""q-FedAvg: devices with a higher loss count for more, and the step is as long as the loss's curvature allows."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

import shoal
from baselines.base import Baseline, Mnist, Scalar, parameters_to_vector, plain_steps


class QFedAvg(Mnist):
    q = 1.0

    def model(self) -> nn.Module:
        return Scalar(super().model())

    def train(self, model: Any, batches: Iterator[Any], lease: Any) -> None:
        parameters = list(model.net.parameters())
        start = parameters_to_vector(parameters).detach().clone()
        _, loss = plain_steps(model.net, batches, lease)
        with torch.no_grad():
            # Both sides of the quotient are times the rate, so that an update has its usual length.
            moved, loss = parameters_to_vector(parameters) - start, max(loss, 1e-10)
            vector_to_parameters(start + loss**self.q * moved, parameters)
            model.scalar += self.q * loss ** (self.q - 1) * moved.square().sum() / lease.rate + loss**self.q


class Quotient(shoal.Algorithm):
    def finish(self, mean: Mapping[str, np.ndarray], state: Any) -> Any:
        return {name: each / mean["scalar"] for name, each in mean.items() if name != "scalar"}, state


PLAN = {"weights": "device", "accept_unusual": True}
PAPER = "Li et al. 2020, arXiv:1905.10497, Algorithm 2"
BASELINE = Baseline(name="q-FedAvg", paper=PAPER, task=QFedAvg, algorithm=Quotient, plan=PLAN, published="no MNIST")
