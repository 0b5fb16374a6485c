"""A margin that keeps a chosen share of tasks within budget, whatever the process. Wraps any profiler.

A task is bounded by α̂ · e^(q · spread), where spread is what the profiler says of its own doubt. After each task

    q ← q + step · (1{over the bound} - α)                        (Gibbs and Candès 2021, on the score itself)

so that over a long run the share over the bound comes to α, even if devices drift and nothing is normal: the sum of
(1 - α) for those over and -α for the rest is the way that q went, and q does not go far. One q for all devices, since a
device alone has too few tasks; what differs between them is their spread. First tasks of devices have a q of their own:
they rest on a regression, whose doubt is of another kind, and they are given more room.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from shoal.errors import Misuse
from shoal.workload.profile.features import Features
from shoal.workload.profile.sizing import Prediction, Profiler, Sizing, check_budget

STEP = 0.05
#: Where q stays: beyond, nothing would be asked of anyone, or ten times too much.
Q_LEAST, Q_MOST = -2.0, 8.0

#: Of first tasks, at least: one too small costs little, and nobody can take back one too large.
COLD_WITHIN = 0.9

#: For a profiler that says nothing of its doubt.
PLAIN_SPREAD = 0.1


class Margin:
    """q itself."""

    def __init__(self, *, within: float, step: float = STEP) -> None:
        if not 0.5 <= within < 1:
            raise Misuse(f"a share of tasks within budget is from 0.5 to below 1, not {within}")
        self.over_wanted = 1 - within
        self._step = step
        #: Where it would be if what profilers say of their doubt were true, and normal.
        self.q = NormalDist().inv_cdf(within)

    def observed(self, *, is_over: bool) -> None:
        moved = self.q + self._step * ((1.0 if is_over else 0.0) - self.over_wanted)
        self.q = min(Q_MOST, max(Q_LEAST, moved))


class WithMargin(Profiler):
    """A profiler, sized so that ``within`` of the tasks stay within their budget."""

    def __init__(self, profiler: Profiler, *, within: float = 0.82, step: float = STEP) -> None:
        super().__init__(unit=profiler.unit)
        self._profiler = profiler
        self.margin = Margin(within=within, step=step)
        self.cold_margin = Margin(within=max(within, COLD_WITHIN), step=step)

    def predict(self, features: Features) -> Prediction | None:
        return self._profiler.predict(features)

    def decide(self, features: Features, budget: float) -> Sizing:
        check_budget(budget)
        prediction = self._profiler.predict(features)
        if prediction is None:
            return self._profiler.decide(features, budget)
        return self.sized(prediction, budget, margin=self._margin(prediction))

    def observed(self, features: Features, examples: int, spent: float) -> None:
        """Whether it was over is asked of the bound, not of the budget: a device that had fewer examples than it was
        asked for, or cannot do even one in time, says nothing about the margin otherwise."""
        prediction = self._profiler.predict(features)
        if prediction is not None and prediction.per_example > 0:
            bound = examples * prediction.per_example * math.exp(self._margin(prediction))
            self._of(prediction).observed(is_over=spent > bound)
        self._profiler.observed(features, examples, spent)

    def _of(self, prediction: Prediction) -> Margin:
        return self.cold_margin if prediction.is_cold else self.margin

    def _margin(self, prediction: Prediction) -> float:
        return self._of(prediction).q * (prediction.spread or PLAIN_SPREAD)
