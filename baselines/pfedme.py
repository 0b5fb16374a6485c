"""pFedMe: a device trains a model of its own, which is pulled towards the shared one, and moves that one towards it.
The own model begins anew in each lease. The paper's beta is ``outer_rate`` of the plan."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from baselines.base import Baseline, Mnist

#: Defaults of the authors' code, which their commands leave out: steps of the own model per batch, and its decay.
OWN_STEPS, DECAY = 5, 0.001


def envelope_steps(net: nn.Module, batches: Iterator[Any], lease: Any, *, pull: float, own_rate: float) -> None:
    own = list(net.parameters())
    shared = [each.detach().clone() for each in own]
    for x, y in batches:
        for number in range(OWN_STEPS):
            loss = nn.functional.cross_entropy(net(x), y)
            if number == 0:
                lease.log("loss", loss.item() * len(x), len(x))
            with torch.no_grad():
                for each, slope, anchor in zip(own, torch.autograd.grad(loss, own), shared, strict=True):
                    each.sub_(own_rate * (slope + pull * (each - anchor) + DECAY * each))
        for each, anchor in zip(own, shared, strict=True):
            anchor -= lease.rate * pull * (anchor - each.detach())
    with torch.no_grad():
        for each, anchor in zip(own, shared, strict=True):
            each.copy_(anchor)


class PFedMe(Mnist):
    def train(self, model: Any, batches: Iterator[Any], lease: Any) -> None:
        envelope_steps(model, batches, lease, pull=15.0, own_rate=0.1)


PAPER = "Dinh et al. 2020, arXiv:2006.08848, Algorithm 1"
BASELINE = Baseline(name="pFedMe", paper=PAPER, task=PFedMe, published="Table 1: shared models")
