"""The mean of each value over devices, without its tenth that is highest and its tenth that is lowest."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import shoal
from baselines.base import Baseline, Mnist


class TrimmedMean(shoal.Algorithm):
    share = 0.1

    def merge(self, updates: np.ndarray, facts: Sequence[Any], state: Any) -> Any:
        cut = int(self.share * len(updates))
        return np.sort(updates, axis=0)[cut : len(updates) - cut].mean(axis=0), state


PAPER = "Yin et al. 2018, arXiv:1803.01498, Algorithm 1"
BASELINE = Baseline(name="trimmed mean", paper=PAPER, task=Mnist, algorithm=TrimmedMean, published="with liars only")
