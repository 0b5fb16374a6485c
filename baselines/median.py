"""The median of each value over devices."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import shoal
from baselines.base import Baseline, Mnist


class Median(shoal.Algorithm):
    def merge(self, updates: np.ndarray, facts: Sequence[Any], state: Any) -> Any:
        return np.median(updates, axis=0), state


PAPER = "Yin et al. 2018, arXiv:1803.01498, Algorithm 1"
BASELINE = Baseline(name="median", paper=PAPER, task=Mnist, algorithm=Median, published="with liars only")
