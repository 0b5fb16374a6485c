"""Power of choice: of some devices drawn by their examples, those with the highest loss train."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import shoal
from baselines.base import Baseline, Mnist


class PowerOfChoice(shoal.Algorithm):
    #: As many times as many devices are drawn as train.
    times = 2

    def choose(self, candidates: Sequence[Any], count: int, rng: np.random.Generator) -> Sequence[str]:
        examples = np.array([each.examples for each in candidates], dtype=float)
        drawn = rng.choice(
            len(candidates), min(self.times * count, len(candidates)), replace=False, p=examples / examples.sum()
        )
        loss = {place: candidates[place].loss for place in drawn}
        order = sorted(drawn, key=lambda place: -math.inf if loss[place] is None else -loss[place])
        return [candidates[place].node for place in order[:count]]


PLAN = {"sampling": ""}
PAPER = "Cho et al. 2020, arXiv:2010.01243, section 3"
BASELINE = Baseline(
    name="power of choice", paper=PAPER, task=Mnist, algorithm=PowerOfChoice, plan=PLAN, published="other sets"
)
