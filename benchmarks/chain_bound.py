"""A lower bound of the end of a chain of pairs, for any plan. Pure formulas; knows no rule.

Give a partial that is ready at t the size 2^(t/d). A merge of x and y is ready at max(x, y) + d, so its size is twice
the larger: at least the sum of both. Sizes therefore never shrink, and the last is at least the sum of the first:

    OPT ≥ d · log2 Σ 2^(r_i/d),        and by Kraft's inequality        OPT < that + d

(Golumbic 1976, Parker 1980): at T = that + d every r_i can wait for the next of T - d, T - 2d, ...; sizes less than
double by it, and a binary tree has room for them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.errors import Misuse


def lower_bound_s(ready_s: Sequence[float], *, merge_s: float) -> float:
    """d · log2 Σ 2^(r_i/d). Taken from the latest, so that late devices do not overflow."""
    ready = _checked(ready_s)
    if not 0 <= merge_s < np.inf:
        raise Misuse(f"a merge takes 0 s or more, not {merge_s}")
    latest = float(ready.max())
    if merge_s == 0 or len(ready) == 1:
        return latest
    return latest + merge_s * float(np.log2(np.sum(np.exp2((ready - latest) / merge_s))))


def lower_bound_unequal_s(ready_s: Sequence[float], *, merge_s: np.ndarray) -> float:
    """The same with the shortest merge of all; and no device is done before its own shortest. Not tight.

    ``merge_s[i, j]`` is from i to j.
    """
    ready = _checked(ready_s)
    if len(ready) == 1:
        return float(ready[0])
    apart = np.where(np.eye(len(ready), dtype=bool), np.inf, merge_s)
    shortest = np.minimum(apart.min(axis=0), apart.min(axis=1))
    return max(lower_bound_s(ready_s, merge_s=float(shortest.min())), float((ready + shortest).max()))


def _checked(ready_s: Sequence[float]) -> np.ndarray:
    ready = np.asarray(ready_s, dtype=np.float64)
    if not len(ready) or not np.isfinite(ready).all():
        raise Misuse("a bound is for devices that come: give when each is ready, at least one")
    return ready
