"""FedProx: each device's loss pulls towards the model that it was given."""

from typing import Any

import torch
from torch import nn

from baselines.base import Baseline, Mnist


class FedProx(Mnist):
    mu = 0.1

    def step(self, model: nn.Module, batch: Any, lease: Any) -> torch.Tensor:
        loss: torch.Tensor = super().step(model, batch, lease)
        for name, each in model.named_parameters():
            loss = loss + self.mu / 2 * (each - lease.anchor(name)).square().sum()
        return loss


BASELINE = Baseline(
    name="FedProx",
    paper="Li et al. 2020, arXiv:1812.06127, Algorithm 2",
    task=FedProx,
    published="figures only, without a table",
)
