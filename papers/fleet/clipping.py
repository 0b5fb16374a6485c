"""No update is longer than a bound, so that no one's part in a model is. Pure."""

from __future__ import annotations

import math

import numpy as np

from shoal.errors import Misuse


def clipped(update: np.ndarray, *, bound: float) -> np.ndarray:
    """u · min(1, C / ‖u‖): the same direction, at most C long (Abadi et al. 2016). The same array if it is short."""
    _check(bound)
    length = float(np.linalg.norm(np.asarray(update, dtype=np.float64)))
    if not math.isfinite(length):
        raise Misuse("an update with infinite values has no length: refuse it instead of clipping it")
    return update if length <= bound else (update * (bound / length)).astype(update.dtype, copy=False)


def clipped_rows(rows: np.ndarray, *, bound: float) -> np.ndarray:
    """Each row clipped by itself: the gradients of single examples."""
    _check(bound)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    if not np.isfinite(lengths).all():
        raise Misuse("a gradient with infinite values has no length: leave its example out")
    factors = np.minimum(1.0, bound / np.maximum(lengths, np.finfo(np.float64).tiny))
    return np.asarray(rows * factors[:, None], dtype=rows.dtype)


def _check(bound: float) -> None:
    if not 0 < bound < math.inf:
        raise Misuse(f"an update is clipped to a length above 0, not {bound}")
