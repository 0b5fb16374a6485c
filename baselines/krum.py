"""Krum: the update that is nearest to its neighbours."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import shoal
from baselines.base import Baseline, Mnist


class Krum(shoal.Algorithm):
    #: The part of a cohort that may lie.
    liars = 0.2

    def merge(self, updates: np.ndarray, facts: Sequence[Any], state: Any) -> Any:
        products = updates @ updates.T
        squares = np.diag(products)
        apart = np.sort(squares[:, None] + squares - 2 * products, axis=1)
        neighbours = max(1, len(updates) - int(self.liars * len(updates)) - 2)
        return updates[apart[:, 1 : 1 + neighbours].sum(axis=1).argmin()], state


PAPER = "Blanchard et al. 2017, NeurIPS, section 4"
BASELINE = Baseline(name="Krum", paper=PAPER, task=Mnist, algorithm=Krum, published="with liars only")
