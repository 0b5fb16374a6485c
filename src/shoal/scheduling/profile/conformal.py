"""A margin that keeps a chosen share of tasks within budget, whatever the process. Wraps any profiler.

A task is bounded by α̂ · e^(q · spread), where spread is the profiler's own uncertainty. After each task

    q ← q + step · (1{over the bound} - α)                        (Gibbs and Candès 2021, on the score itself)

so that over a long run the share of tasks over the bound approaches α, even if devices drift and nothing is normally
distributed. The reason: each task over the bound adds (1 - α) steps to q and each other task subtracts α, and q
stays bounded. There is one q for all devices, since one device has too few tasks; devices differ in their spread. First
tasks of devices have a separate q with more room: they depend on a regression, whose uncertainty is of another kind.
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

#: Share of all tasks within budget. A larger share would leave more of the budget unused.
WITHIN = 0.84
STEP = 0.1
#: Limits of q, and of a margin: beyond them devices would get nearly nothing, or far too much.
Q_LEAST, Q_MOST = -40.0, 40.0
MARGIN_LEAST, MARGIN_MOST = -1.0, 3.0

#: Share of first tasks within budget, at least: a task that is too small costs little, one too large cannot be undone.
COLD_WITHIN = 0.9

#: Devices whose task may still be running.
PROMISES_KEPT = 100_000

#: The spread for a profiler that has none.
PLAIN_SPREAD = 0.1


class Margin:
    """q itself."""

    def __init__(self, *, within: float, step: float = STEP) -> None:
        if not 0.5 <= within < 1:
            raise Misuse(f"the share of tasks within budget is {within}; it must be from 0.5 to below 1")
        self.over_wanted = 1 - within
        self._step = step
        # The right value if the profiler's uncertainty were correct and errors normally distributed.
        self.q = NormalDist().inv_cdf(within)

    def observed(self, *, is_over: bool) -> None:
        moved = self.q + self._step * ((1.0 if is_over else 0.0) - self.over_wanted)
        self.q = min(Q_MOST, max(Q_LEAST, moved))


class WithMargin(Profiler):
    """A profiler with a margin, so that a share ``within`` of the tasks stays within budget."""

    def __init__(self, profiler: Profiler, *, within: float = WITHIN, step: float = STEP) -> None:
        super().__init__(unit=profiler.unit)
        self._profiler = profiler
        self.margin = Margin(within=within, step=step)
        self.cold_margin = Margin(within=max(within, COLD_WITHIN), step=step)
        #: Device -> the most that an example of its last task may take, and the margin that this used.
        self._promised: OrderedDict[str, tuple[float, Margin]] = OrderedDict()

    def predict(self, features: Features) -> CostPrediction | None:
        return self._profiler.predict(features)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return the state without the running tasks: their outcome will not be known after a restore."""
        learned = self._profiler.snapshot()
        return {**learned, "margins": np.array([self.margin.q, self.cold_margin.q])} if learned else {}

    def restore(self, learned: Mapping[str, np.ndarray]) -> None:
        if not learned:
            return
        margins = learned.get("margins", np.empty(0))
        if margins.shape != (2,) or not ((margins >= Q_LEAST) & (margins <= Q_MOST)).all():
            raise Misuse("the snapshot's margins are out of range")
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
        """Learn what a task took, and adjust the margin. The task is compared with its bound and not with the budget: a
        device that had fewer examples than it was asked for, or that cannot train even one in time, would otherwise
        distort the margin. A task that was not sized here, such as those that measure a new fleet, changes no
        margin."""
        promised = self._promised.pop(features.device, None)
        if promised is not None and promised[0] > 0:
            bound, own = promised
            own.observed(is_over=spent > examples * bound)
        self._profiler.observed(features, examples, spent)
