"""Lies of liars that know the rule they are weighed by (``robust(nearest)``). A part of ``benchmarks.trust``.

Liars work together and know what honest devices send. A rule is a function from the Gram matrix of all updates, liars
first, to a weight for each: these lies hold for any such rule.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shoal.learning.robust import gram

#: From the Gram matrix of the updates of a version to their weights, 1 together.
Rule = Callable[[np.ndarray], np.ndarray]

#: How far against the mean the line search tries to push, in lengths of the mean: at 1 a liar sends nothing.
LENGTHS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)


def norm_limited(updates: np.ndarray, honest: np.ndarray) -> np.ndarray:
    """Return these updates, each shortened to the median length of the honest ones if it is longer."""
    usual = float(np.median(np.linalg.norm(honest, axis=1)))
    lengths = np.linalg.norm(updates, axis=1, keepdims=True)
    return np.asarray(updates * np.minimum(1.0, usual / np.maximum(lengths, 1e-30)), dtype=np.float32)


def against_mean(honest: np.ndarray, *, liars: int, rule: Rule) -> np.ndarray:
    """Return the update that moves the version furthest against the honest mean if each liar sends it: a search over
    ``LENGTHS`` with the leader's own rule.

    Every update that is tried is a multiple of the honest mean, so its products follow from those of honest updates.
    """
    mean, products = honest.mean(0), gram(np.ascontiguousarray(honest))

    def moved(length: float) -> float:
        """Return how far the version goes along the mean, in lengths of it, if liars push this far against it."""
        weights = rule(_with_liars(products, liars=liars, times=1.0 - length))
        along = weights[:liars].sum() * (1.0 - length) * products.mean() + weights[liars:] @ products.mean(1)
        return float(along / max(float(products.mean()), 1e-30))

    return np.asarray((1.0 - min(LENGTHS, key=moved)) * mean, dtype=np.float32)


def _with_liars(products: np.ndarray, *, liars: int, times: float) -> np.ndarray:
    """Return the Gram matrix of this many copies of ``times`` the honest mean, then of the honest updates."""
    with_mean = np.tile(times * products.mean(1), (liars, 1))
    among_liars = np.full((liars, liars), times**2 * products.mean())
    return np.block([[among_liars, with_mean], [with_mean.T, products]])
