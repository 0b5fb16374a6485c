"""From a prediction to a number of examples, with the reason. The interface of every profiler."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse
from shoal.scheduling.profile.features import Features

#: The largest task. Also stands for "infinite" if a slope is nearly zero.
EXAMPLES_MAX = 2**31 - 1

#: The size of a task before any device was measured: small, since it only serves to measure.
FIRST_EXAMPLES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class CostPrediction:
    """The expected cost of one example, in the unit of the budget."""

    per_example: float
    #: Standard deviation of the logarithm, so about a relative error: 0.1 is ten per cent. 0 if the profiler has none.
    spread: float = 0.0
    #: Whether the prediction uses only other devices.
    is_cold: bool
    #: What the prediction is based on, as text.
    basis: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizing:
    """A number of examples, with the reason."""

    examples: int
    reason: str


def examples_within(budget: float, per_example: float) -> int:
    """n = max(1, t_SLO / α)   (FLeet eq. 1), as an integer. A slope of zero gives the largest task."""
    if per_example <= 0:
        return EXAMPLES_MAX if per_example == 0 else 1
    return int(min(max(1.0, budget / per_example), EXAMPLES_MAX))


def check_budget(budget: float) -> None:
    if not (math.isfinite(budget) and budget > 0):
        raise Misuse(f"the budget is {budget}; it must be more than 0")


def slope_of(examples: int, spent: float) -> float:
    """α = spent / n, for a finished task."""
    if examples < 1 or not (math.isfinite(spent) and spent > 0):
        raise Misuse(f"a task had {examples} examples and took {spent}: give 1 or more examples, and the measured cost")
    return spent / examples


class Profiler(ABC):
    """Sizes tasks by the cost of earlier ones. The same code serves for seconds and for joules."""

    def __init__(self, *, unit: str = "s") -> None:
        #: Used only in reasons.
        self.unit = unit

    @abstractmethod
    def predict(self, features: Features) -> CostPrediction | None:
        """Return the expected cost, or None before any device was measured."""

    @abstractmethod
    def observed(self, features: Features, examples: int, spent: float) -> None:
        """Learn what a task took. ``features`` are those with which it was sized."""

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return the learned state as arrays without NaN or infinity. Empty if there is nothing to keep."""
        return {}

    def restore(self, learned: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Restore a snapshot. Raises Misuse if it is invalid, and then changes nothing."""

    def decide(self, features: Features, budget: float) -> Sizing:
        check_budget(budget)
        prediction = self.predict(features)
        if prediction is None:
            return Sizing(examples=FIRST_EXAMPLES, reason=f"no device was measured yet: {FIRST_EXAMPLES} to begin with")
        return self.sized(prediction, budget, margin=0.0)

    def sized(self, prediction: CostPrediction, budget: float, *, margin: float) -> Sizing:
        """``margin``: the logarithm of how many times the predicted cost an example may take."""
        bound = prediction.per_example * math.exp(margin)
        how = f"{'cold' if prediction.is_cold else 'warm'}: {prediction.basis}"
        share = f", {100 * math.expm1(margin):+.0f} % margin" if margin else ""
        reason = f"{prediction.per_example:.3g} {self.unit} per example{share} ({how})"
        return Sizing(examples=examples_within(budget, bound), reason=reason)
