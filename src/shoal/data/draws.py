"""Chance for partitions: uniform and gamma numbers from splitmix64, the same under every version of numpy. Numpy only.

Whole numbers are the same on every platform. Logarithms may differ in their last bit: that changes a row of a
partition with a chance of less than one in a million.
"""

from __future__ import annotations

import itertools
from typing import Any, TypeAlias

import numpy as np

from shoal.scheduling.batches import mix, outputs

Reals: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

_UNIT = 2.0**-53


def uniforms(count: int, *, seed: int) -> Reals:
    """Draw numbers between 0 and 1, both excluded."""
    whole = (outputs(count, seed=seed) >> np.uint64(11)).astype(np.float64)
    return (whole + 0.5) * _UNIT


def log_gammas(shape: float, count: int, *, seed: int) -> Reals:
    """Draw gamma numbers of this shape and scale 1, and return their logarithms: with a small shape, most of the
    numbers themselves are too small for a float.

    By Marsaglia and Tsang (2000), with normal numbers by Box and Muller. A shape below 1 goes by shape + 1, times
    u ** (1 / shape), as they say.
    """
    boost = np.log(uniforms(count, seed=mix(seed, 0))) / shape if shape < 1 else np.zeros(count)
    d = (shape + 1 if shape < 1 else shape) - 1 / 3
    c = 1 / np.sqrt(9 * d)
    drawn = np.zeros(count)
    missing = np.ones(count, dtype=bool)
    for attempt in itertools.count(1):
        # Each attempt draws for all shares: a rejected one does not shift the numbers of the others.
        u, first, second = (uniforms(count, seed=mix(seed, attempt, which)) for which in range(3))
        x = np.sqrt(-2 * np.log(first)) * np.cos(2 * np.pi * second)
        v = (1 + c * x) ** 3
        log_v = np.log(np.where(v > 0, v, 1.0))
        fits = missing & (v > 0) & (np.log(u) < 0.5 * x * x + d - d * v + d * log_v)
        drawn[fits] = np.log(d) + log_v[fits] + boost[fits]
        missing &= ~fits
        if not missing.any():
            break
    return drawn


def dirichlet_shares(alpha: float, count: int, *, seed: int) -> Reals:
    """Draw ``count`` shares by a symmetric Dirichlet distribution, and return where each of them ends between 0 and
    1."""
    logs = log_gammas(alpha, count, seed=seed)
    # Added from left to right: numpy's sum has another order on another processor.
    ends = np.cumsum(np.exp(logs - logs.max()))
    shares: Reals = ends / ends[-1]
    return shares
