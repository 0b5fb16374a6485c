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
from collections import OrderedDict
from collections.abc import Mapping
from statistics import NormalDist

import numpy as np

from shoal.errors import Misuse
from shoal.scheduling.profile.features import Features
from shoal.scheduling.profile.sizing import CostPrediction, Profiler, Sizing, check_budget

#: Of all tasks. More would stay within the budget, but leave more of it unused too.
WITHIN = 0.84
STEP = 0.1
#: Where q stays, and where a margin does: beyond, nearly nothing would be asked of anyone, or far too much.
Q_LEAST, Q_MOST = -40.0, 40.0
MARGIN_LEAST, MARGIN_MOST = -1.0, 3.0

#: Of first tasks, at least: one too small costs little, and nobody can take back one too large.
COLD_WITHIN = 0.9

#: Devices whose task may still be under way.
PROMISES_KEPT = 100_000

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

    def __init__(self, profiler: Profiler, *, within: float = WITHIN, step: float = STEP) -> None:
        super().__init__(unit=profiler.unit)
        self._profiler = profiler
        self.margin = Margin(within=within, step=step)
        self.cold_margin = Margin(within=max(within, COLD_WITHIN), step=step)
        #: Device -> what an example of its last task may take, and the margin that answers for it.
        self._promised: OrderedDict[str, tuple[float, Margin]] = OrderedDict()

    def predict(self, features: Features) -> CostPrediction | None:
        return self._profiler.predict(features)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Without what was promised of tasks that are under way: nobody hears what became of those."""
        learned = self._profiler.snapshot()
        return {**learned, "margins": np.array([self.margin.q, self.cold_margin.q])} if learned else {}

    def restore(self, learned: Mapping[str, np.ndarray]) -> None:
        if not learned:
            return
        margins = learned.get("margins", np.empty(0))
        if margins.shape != (2,) or not ((margins >= Q_LEAST) & (margins <= Q_MOST)).all():
            raise Misuse("margins that cannot be")
        self._profiler.restore(learned)
        self.margin.q, self.cold_margin.q = float(margins[0]), float(margins[1])
        self._promised.clear()

    def decide(self, features: Features, budget: float) -> Sizing:
        check_budget(budget)
        prediction = self._profiler.predict(features)
        if prediction is None:
            return self._profiler.decide(features, budget)
        own = self.cold_margin if prediction.is_cold else self.margin
        margin = min(MARGIN_MOST, max(MARGIN_LEAST, own.q * (prediction.spread or PLAIN_SPREAD)))
        self._promised[features.device] = (prediction.per_example * math.exp(margin), own)
        self._promised.move_to_end(features.device)
        while len(self._promised) > PROMISES_KEPT:
            self._promised.popitem(last=False)
        return self.sized(prediction, budget, margin=margin)

    def observed(self, features: Features, examples: int, spent: float) -> None:
        """Whether it was over is asked of the bound, not of the budget: a device that had fewer examples than it was
        asked for, or cannot do even one in time, says nothing about the margin otherwise. A task that nobody decided
        on, as those that a new fleet is measured with, moves no margin at all."""
        promised = self._promised.pop(features.device, None)
        if promised is not None and promised[0] > 0:
            bound, own = promised
            own.observed(is_over=spent > examples * bound)
        self._profiler.observed(features, examples, spent)
