"""From a prediction to a number of examples, with the reason. What every profiler is to its callers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse
from shoal.scheduling.profile.features import Features

#: No task is larger; also what stands for "infinite" where a slope is nearly zero.
EXAMPLES_MAX = 2**31 - 1

#: While nothing is known of any device, a task is this small: it is there to be measured.
FIRST_EXAMPLES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class CostPrediction:
    """What one example is expected to take, in the unit of the budget."""

    per_example: float
    #: The deviation of its logarithm, so about a share: 0.1 is ten per cent. 0: the profiler does not say.
    spread: float = 0.0
    #: From other devices alone.
    is_cold: bool
    #: On what it rests, in words.
    basis: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizing:
    """How many examples, and why."""

    examples: int
    reason: str


def examples_within(budget: float, per_example: float) -> int:
    """n = max(1, t_SLO / α)   (FLeet eq. 1), as a whole number. A slope of zero asks for all there is."""
    if per_example <= 0:
        return EXAMPLES_MAX if per_example == 0 else 1
    return int(min(max(1.0, budget / per_example), EXAMPLES_MAX))


def check_budget(budget: float) -> None:
    if not (math.isfinite(budget) and budget > 0):
        raise Misuse(f"a budget is more than 0, not {budget}")


def slope_of(examples: int, spent: float) -> float:
    """α = spent / n, of a task that was done."""
    if examples < 1 or not (math.isfinite(spent) and spent > 0):
        raise Misuse(f"a task of {examples} examples that took {spent}: give 1 or more, and what it really took")
    return spent / examples


class Profiler(ABC):
    """Sizes tasks by what earlier ones took. One for seconds, another for joules: the same code."""

    def __init__(self, *, unit: str = "s") -> None:
        #: For reasons only.
        self.unit = unit

    @abstractmethod
    def predict(self, features: Features) -> CostPrediction | None:
        """None while nothing is known of any device."""

    @abstractmethod
    def observed(self, features: Features, examples: int, spent: float) -> None:
        """A task took this much. ``features`` are those that it was sized by."""

    def snapshot(self) -> dict[str, np.ndarray]:
        """What it has learned, as arrays without a gap or an infinity; empty: nothing that would last."""
        return {}

    def restore(self, learned: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Go on from a snapshot; raises Misuse where it is none, and is then as it was."""

    def decide(self, features: Features, budget: float) -> Sizing:
        check_budget(budget)
        prediction = self.predict(features)
        if prediction is None:
            return Sizing(examples=FIRST_EXAMPLES, reason=f"no device was measured yet: {FIRST_EXAMPLES} to begin with")
        return self.sized(prediction, budget, margin=0.0)

    def size_for(self, features: Features, budget: float) -> int:
        return self.decide(features, budget).examples

    def sized(self, prediction: CostPrediction, budget: float, *, margin: float) -> Sizing:
        """``margin``: how much longer an example may take than is predicted, as a logarithm."""
        bound = prediction.per_example * math.exp(margin)
        how = f"{'cold' if prediction.is_cold else 'warm'}: {prediction.basis}"
        share = f", {100 * math.expm1(margin):+.0f} % margin" if margin else ""
        reason = f"{prediction.per_example:.3g} {self.unit} an example{share} ({how})"
        return Sizing(examples=examples_within(budget, bound), reason=reason)
