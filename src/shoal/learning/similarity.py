"""How much an update's labels are like those seen before, and what that makes it worth. Counts only; knows no examples.

FLeet §2.3: a late update is damped, but the update of a straggler whose labels the model has hardly seen is raised
again, since it brings what nobody else brings. The leader needs the counts of labels behind an update for that, and no
example.

**Label counts reveal something about a person** (which digits they write, which illness they have). So they are sent
only if a plan allows it, and may be sent with noise (``noisy_counts``). Without counts the similarity is 1, and the
weight is only the damping.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.errors import Misuse

#: The factor by which every update shrinks earlier counts. 1 forgets nothing, as in the paper.
NOTHING_FORGOTTEN = 1.0

#: The least similarity that an update is divided by, so that none is raised more than tenfold (FLeet's released code,
#: ``CppNNUpdater.getDampen``; the paper has no floor).
SIMILARITY_MIN = 0.1


def distribution(counts: np.ndarray) -> np.ndarray:
    """LD: the share of each class (FLeet §2.3: one of class 0 and two of class 1 are [1/3, 2/3, 0, 0])."""
    _check(counts)
    total = float(counts.sum())
    if not total > 0:
        raise Misuse("the label distribution of no examples: ask for the similarity, which is 1 then")
    return np.asarray(counts, dtype=np.float64) / total


def overlap(first: np.ndarray, second: np.ndarray) -> float:
    """BC(p, q) = Σ √(p·q), the Bhattacharyya coefficient of two distributions: 0 apart, 1 alike   (FLeet eq. 4)."""
    if first.shape != second.shape:
        raise Misuse(f"distributions over {first.size} and {second.size} classes cannot be compared")
    # Rounding alone may lift it over 1.
    return min(1.0, float(np.sqrt(first * second).sum()))


def boosted(damping: float, similarity: float) -> float:
    """Return min(1, Λ(τ) / max(0.1, sim)), the weight of an update   (FLeet eq. 3, with the released code's floor)."""
    if not 0 <= damping <= 1:
        raise Misuse(f"a damping is between 0 and 1, not {damping}")
    if not 0 <= similarity <= 1:
        raise Misuse(f"a similarity is between 0 and 1, not {similarity}")
    return min(1.0, damping / max(SIMILARITY_MIN, similarity))


class LabelMemory:
    """The labels of the updates so far: LD_global, which older updates leave bit by bit.

    The paper sums over all time. If the data drifts, a label that was common last month may be rare today: with
    ``decay`` below 1 an update from u updates ago counts decay^u. The next leader may begin with an empty memory.
    """

    def __init__(self, *, classes: int, decay: float = NOTHING_FORGOTTEN) -> None:
        if classes < 1:
            raise Misuse(f"there is at least one class, not {classes}")
        if not 0 < decay <= 1:
            raise Misuse(f"a decay is above 0 and at most 1, not {decay}")
        self._decay = decay
        self._counts = np.zeros(classes, dtype=np.float64)

    @property
    def counts(self) -> np.ndarray:
        """A copy."""
        return self._counts.copy()

    def seen(self, counts: np.ndarray) -> None:
        """An update of these labels was merged."""
        self._check_classes(counts)
        self._counts *= self._decay
        self._counts += counts

    def similarity(self, counts: np.ndarray) -> float:
        """sim(x) = BC(LD(x), LD_global)   (FLeet eq. 4); 1 while nothing was seen, and for an update of no counts."""
        self._check_classes(counts)
        if not self._counts.sum() > 0 or not counts.sum() > 0:
            return 1.0
        return overlap(distribution(counts), distribution(self._counts))

    def _check_classes(self, counts: np.ndarray) -> None:
        _check(counts)
        if counts.shape != self._counts.shape:
            raise Misuse(f"counts of {counts.size} classes, where {self._counts.size} are remembered")


def noisy_counts(counts: np.ndarray, *, epsilon: float, generator: np.random.Generator) -> np.ndarray:
    """The counts, each with discrete Laplace noise: Pr(k) ∝ e^(-ε·|k|). Below 0 becomes 0.

    One example more or less changes one count by 1, so that each report is ε-differentially private in whether an
    example is there (2ε in which label it has). Reports add up: n of the same examples are nε. The noise is the
    difference of two geometric ones (Ghosh, Roughgarden and Sundararajan 2009), made on the device before anything
    is sent; a deviation of about √2/ε examples a class.
    """
    _check(counts)
    if not 0 < epsilon < math.inf:
        raise Misuse(f"an epsilon is a number above 0, not {epsilon}")
    stop = -math.expm1(-epsilon)
    noise = generator.geometric(stop, counts.shape) - generator.geometric(stop, counts.shape)
    return np.asarray(np.maximum(0, counts + noise))


def capped_counts(counts: np.ndarray, *, most: int) -> np.ndarray:
    """The counts, scaled down where noise made them more than the examples, whose number is told anyway."""
    total = float(counts.sum())
    return np.floor(counts * (most / total)) if total > most else counts


def _check(counts: np.ndarray) -> None:
    if not counts.size or not bool(np.isfinite(counts).all()) or float(counts.min()) < 0:
        raise Misuse("label counts are numbers of examples, one for each class and none below 0")
