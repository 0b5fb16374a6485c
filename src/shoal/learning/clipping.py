"""How long an update is, and how much of it may leave. Numpy only."""

from __future__ import annotations

import math

import numpy as np

#: An update that was cut is summed up in another order on its way: it may seem longer by this share.
CLIP_ROUNDING = 1e-4


def clipped(update: np.ndarray, *, clip: float) -> np.ndarray:
    """The update, or as much of it as is ``clip`` long   (McMahan et al. 2018, arXiv 1710.06963, section 3)."""
    norm = length_of(update)
    if norm <= clip:
        return update
    # A little less, since float32 rounds: what leaves is never longer than it is said to be.
    cut: np.ndarray = update * np.float32(clip / norm * (1 - 1e-6))
    return cut


def length_of(update: np.ndarray) -> float:
    """In float64: squares of many float32 values lose digits that decide whether an update is too long."""
    values = update.astype(np.float64)
    return math.sqrt(float(np.dot(values, values)))
