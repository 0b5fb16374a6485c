"""The weight of an update that was made from an older version.

Staleness τ is how many versions were made between the lease and the merge. A rule returns a weight in (0, 1] that never
grows with τ, and is 1 for a fresh update (τ = 0). Two related rules differ there and are not included. FedAsync scales
even τ = 0 by its mixing factor, which here belongs to the leader and not the rule. AdaComp divides by max(1, σ), so
that one step late costs nothing, and counts σ for each parameter, which is another kind of rule.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Protocol

import numpy as np

from shoal.errors import Misuse
from shoal.learning.similarity import boosted

#: How many deviations above the median the tail begins. FLeet's s % = 99.7 % is μ + 3σ of a normal distribution (§3.2).
DEVIATIONS = 3.0

#: σ of a normal distribution over its median absolute deviation.
SIGMA_PER_MAD = 1.4826

#: Staleness is a whole number: where most updates are equally late, the deviation counts as one version.
DEVIATION_MIN = 1.0

#: An update later than this many thresholds is an outlier (FLeet's released code, ``CppNNUpdater.getDampen``).
OUTLIER_THRESHOLDS = 1.5

#: Before this many were seen, nobody knows where the tail begins (FLeet §2.3 begins with the inverse rule).
_ENOUGH = 50


class StalenessRule(Protocol):
    def __call__(self, staleness: int, *, threshold: float) -> float:
        """The weight of an update this many versions late; ``threshold`` is where stragglers begin."""
        ...


def none(staleness: int, *, threshold: float = 0.0) -> float:
    """Return 1: a late update counts like a fresh one (EDDL's asynchronous update)."""
    _check(staleness)
    return 1.0


def inverse(staleness: int, *, threshold: float = 0.0) -> float:
    """1 / (τ + 1)   (DynSGD, as FLeet §2.3 has it)."""
    _check(staleness)
    return 1.0 / (staleness + 1)


def root(staleness: int, *, threshold: float = 0.0) -> float:
    """1 / √(1 + τ)   (FedBuff)."""
    _check(staleness)
    return 1.0 / math.sqrt(1 + staleness)


def exponential(staleness: int, *, threshold: float) -> float:
    """Return Λ(min(τ, T)), where Λ(τ) = e^(-βτ) and β is set so that Λ(T/2) = 1/(T/2 + 1)   (FLeet §2.3).

    Λ meets the inverse at half the threshold: it is milder before that point and harsher after it. The paper prints Λ
    for every τ, by which a straggler counts for nothing (2e-7 at τ = 48 and T = 12). The code that its authors released
    clamps τ at T (``CppNNUpdater.getDampen``, policy 3), so that the least weight is 1/(T/2 + 1)². So does this rule.
    """
    _check(staleness)
    return math.exp(-damping(threshold) * min(staleness, threshold))


def damping(threshold: float) -> float:
    """Return β = ln(T/2 + 1) / (T/2), or its limit, 1, where T = 0   (FLeet §2.3)."""
    if not 0 <= threshold < math.inf:
        raise Misuse(f"the threshold of staleness is a number of versions, not {threshold}")
    half = threshold / 2
    return math.log1p(half) / half if half > 0 else 1.0


def adaptive(staleness: int, *, threshold: float, similarity: float) -> float:
    """Return Λ(min(τ, T)), raised to min(1, Λ / max(0.1, sim)) where τ > 1.5 T: AdaSGD as FLeet's authors released it.

    The paper's eq. 3 raises every update. The released code (``CppNNUpdater.getDampen``, policy 4) raises outliers
    only: an ordinary update is not worth more because its device has few labels.
    """
    damped = exponential(staleness, threshold=threshold)
    return boosted(damped, similarity) if staleness > OUTLIER_THRESHOLDS * threshold else damped


#: The rule that is none of these: it weighs each value of an update separately (``learning.parameter_staleness``), and
#: the update as a whole by 1.
PER_PARAMETER = "parameter"

#: FLeet's AdaSGD (``adaptive``), which also needs the similarity of an update's labels.
SIMILAR = "similar"

#: By the name a plan gives them.
STALENESS: dict[str, StalenessRule] = {"none": none, "inverse": inverse, "root": root, "exponential": exponential}


def tail_begins(past: Sequence[int]) -> float:
    """Return T, where the tail of staleness begins: the median + 3 σ, with σ = 1.4826 MAD and at least one version.

    FLeet §2.3 wants T "at the beginning of the tail", and sets it to μ + 3σ of those who are not stragglers (§3.2).
    A high quantile of all updates is not that: with 20 % of stragglers it is the stragglers' own staleness. Median and
    MAD are those of the others while stragglers are fewer than half.
    """
    if not past:
        raise Misuse("a threshold of no past updates: use the inverse rule until some came")
    values = np.asarray(past, dtype=np.float64)
    middle = float(np.median(values))
    deviation = SIGMA_PER_MAD * float(np.median(np.abs(values - middle)))
    return middle + DEVIATIONS * max(DEVIATION_MIN, deviation)


class Lateness:
    """Remembers how stale recent updates were, and returns where stragglers begin.

    A new leader begins with an empty one: how late updates are follows from where the leader is, how fast it is and
    who works for it, and all of that may have changed. Until it has seen enough, the exponential is the inverse.
    """

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=1000)

    def seen(self, staleness: int) -> None:
        _check(staleness)
        self._recent.append(staleness)

    @property
    def threshold(self) -> float | None:
        """Where the tail begins, or None while too few came: until then the inverse rule stands in for Λ."""
        return tail_begins(self._recent) if len(self._recent) >= _ENOUGH else None

    @property
    def typical(self) -> float:
        """The median; 0 while nothing came."""
        return median(self._recent) if self._recent else 0.0

    @property
    def worst(self) -> int:
        return max(self._recent, default=0)

    def weight(self, rule: str, staleness: int, *, similarity: float = 1.0) -> float:
        """Return what an update counts for under the rule of this name. ``similarity``: how much its labels are like
        those seen before, which changes weights only under ``similar``."""
        if rule == PER_PARAMETER:
            return 1.0
        if rule not in (*STALENESS, SIMILAR):
            raise Misuse(f"no rule of staleness is called {rule!r}: use one of {', '.join((*STALENESS, SIMILAR))}")
        threshold = self.threshold if rule in ("exponential", SIMILAR) else 0.0
        if threshold is None:
            return inverse(staleness)
        if rule == SIMILAR:
            return adaptive(staleness, threshold=threshold, similarity=similarity)
        return STALENESS[rule](staleness, threshold=threshold)


def _check(staleness: int) -> None:
    if staleness < 0:
        raise Misuse(f"an update cannot be made against a version to come: staleness {staleness}")
