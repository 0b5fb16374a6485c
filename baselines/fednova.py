"""FedNova: updates are divided by their number of steps, and the mean is multiplied by the mean number."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

import shoal
from baselines.base import Baseline, Mnist, Scalar, parameters_to_vector, plain_steps


class FedNova(Mnist):
    def model(self) -> nn.Module:
        return Scalar(super().model())

    def train(self, model: Any, batches: Iterator[Any], lease: Any) -> None:
        parameters = list(model.net.parameters())
        start = parameters_to_vector(parameters).detach().clone()
        steps, _ = plain_steps(model.net, batches, lease)
        with torch.no_grad():
            vector_to_parameters(start + (parameters_to_vector(parameters) - start) / steps, parameters)
            model.scalar += steps


class TimesSteps(shoal.Algorithm):
    def finish(self, mean: Mapping[str, np.ndarray], state: Any) -> Any:
        return {name: each * mean["scalar"] for name, each in mean.items() if name != "scalar"}, state


PAPER = "Wang et al. 2020, arXiv:2007.07481, equation 7"
BASELINE = Baseline(name="FedNova", paper=PAPER, task=FedNova, algorithm=TimesSteps, published="CIFAR only")
