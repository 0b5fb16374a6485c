"""What an update is worth that was made against an older version. Pure rules; knows no updates and no clock.

Staleness τ is how many versions the model moved on between the lease and the merge. A rule gives a weight in (0, 1]
that never grows with τ, and a fresh update (τ = 0) weighs 1 under each. Two relatives differ there and are not here:
FedAsync scales even τ = 0 by its mixing factor, which with us is the leader's, not the rule's; AdaComp divides by
max(1, σ), so that one step late costs nothing, and counts σ for each parameter, which is another kind of rule.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Protocol

import numpy as np

from shoal.errors import Misuse

#: The share of updates that are not stragglers, s % (FLeet §3.2): of a normal distribution, all up to μ + 3σ.
NOT_STRAGGLERS = 0.997

#: A partial refuses an update of no weight, and an exponential of a large τ rounds to nothing.
WEIGHT_MIN = 1e-12

#: Before so many were seen, a percentile of staleness means nothing (FLeet §2.3 begins with the inverse rule).
_ENOUGH = 50


class StalenessRule(Protocol):
    def __call__(self, staleness: int, *, threshold: float) -> float:
        """The weight of an update this many versions late; ``threshold`` is where stragglers begin."""
        ...


def none(staleness: int, *, threshold: float = 0.0) -> float:
    """1: late is as good as fresh (EDDL's asynchronous update)."""
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
    """Λ(τ) = e^(-βτ), with β set so that Λ(T/2) = 1/(T/2 + 1): it meets the inverse at half the threshold (FLeet §2.3).

    Milder than the inverse before that point, harsher after it. The similarity of label distributions, by which FLeet
    raises the weight of a rare update, is left out.
    """
    _check(staleness)
    return max(WEIGHT_MIN, math.exp(-damping(threshold) * staleness))


def damping(threshold: float) -> float:
    """β = ln(T/2 + 1) / (T/2); 1 in the limit of T = 0, where nobody was ever late."""
    if not 0 <= threshold < math.inf:
        raise Misuse(f"the threshold of staleness is a number of versions, not {threshold}")
    half = threshold / 2
    return math.log1p(half) / half if half > 0 else 1.0


#: The rule that is none of these: it weighs each value of an update by itself (``learning.touches``), and the update as
#: a whole for what it is.
PER_PARAMETER = "parameter"

#: The exponential rule, by which an update of rare labels is raised again (``learning.similarity``). FLeet's AdaSGD.
SIMILAR = "similar"

#: By the name a plan gives them.
STALENESS: dict[str, StalenessRule] = {"none": none, "inverse": inverse, "root": root, "exponential": exponential}


def threshold_of(past: Sequence[int], *, share: float = NOT_STRAGGLERS) -> float:
    """T: the staleness that this share of past updates did not exceed (FLeet §2.3)."""
    if not past:
        raise Misuse("a threshold of no past updates: use the inverse rule until some came")
    if not 0 < share <= 1:
        raise Misuse(f"the share of updates that are not stragglers is above 0 and at most 1, not {share}")
    return float(np.quantile(np.asarray(past, dtype=np.float64), share))


class Lateness:
    """Remembers how stale recent updates were, and says where stragglers begin.

    A new leader begins with an empty one: how late updates are follows from where the leader is, how fast it is and
    who works for it, and all of that may have changed. Until it has seen enough, the exponential is the inverse.
    """

    def __init__(self, *, share: float = NOT_STRAGGLERS) -> None:
        self._share = share
        self._recent: deque[int] = deque(maxlen=1000)

    def seen(self, staleness: int) -> None:
        _check(staleness)
        self._recent.append(staleness)

    @property
    def threshold(self) -> float | None:
        """None while too few came: until then the exponential rule gives way to the inverse."""
        return threshold_of(self._recent, share=self._share) if len(self._recent) >= _ENOUGH else None

    @property
    def typical(self) -> float:
        """The median; 0 while nothing came."""
        return median(self._recent) if self._recent else 0.0

    @property
    def worst(self) -> int:
        return max(self._recent, default=0)

    def weight(self, rule: str, staleness: int) -> float:
        """What an update counts for under the rule of this name."""
        if rule == PER_PARAMETER:
            return 1.0
        rule = "exponential" if rule == SIMILAR else rule
        if rule not in STALENESS:
            raise Misuse(f"no rule of staleness is called {rule!r}: use one of {', '.join(STALENESS)}")
        threshold = self.threshold if rule == "exponential" else 0.0
        return inverse(staleness) if threshold is None else STALENESS[rule](staleness, threshold=threshold)


def _check(staleness: int) -> None:
    if staleness < 0:
        raise Misuse(f"an update cannot be made against a version to come: staleness {staleness}")
