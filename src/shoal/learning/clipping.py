"""How long an update is, and how much of it may leave. Numpy only."""

from __future__ import annotations

import math

import numpy as np

#: An update that was cut is summed up in another order on its way: it may seem longer by this share.
CLIP_ROUNDING = 1e-4

#: What torch adds to a norm before it divides by it.
_CLIP_EPSILON = 1e-6

#: Values whose length is worked out at a time, so that a leader needs no copy of the model in float64.
_BLOCK = 1 << 20


def clipped(update: np.ndarray, *, clip: float) -> np.ndarray:
    """The update, or as much of it as is ``clip`` long   (McMahan et al. 2018, arXiv 1710.06963, section 3)."""
    norm = length_of(update)
    if norm <= clip:
        return update
    # A little less, since float32 rounds: what leaves is never longer than it is said to be.
    cut: np.ndarray = update * np.float32(clip / norm * (1 - 1e-6))
    return cut


def clipped_mean(mean_update: np.ndarray, *, clip: float, rate: float, parameters_size: int) -> np.ndarray:
    """Scale the parameters' part of a mean update so that its gradient, -ū / rate, is at most ``clip`` long.

    As ``torch.nn.utils.clip_grad_norm_`` has it: ū · min(1, clip / (‖ū‖ / rate + 1e-6)). Buffers come last, and stay.
    """
    blocks = range(0, parameters_size, _BLOCK)
    norm = math.hypot(*(length_of(mean_update[at : min(at + _BLOCK, parameters_size)]) for at in blocks)) / rate
    if norm + _CLIP_EPSILON <= clip:
        return mean_update
    cut = mean_update.copy()
    cut[:parameters_size] *= np.float32(clip / (norm + _CLIP_EPSILON))
    return cut


def length_of(update: np.ndarray) -> float:
    """In float64: squares of many float32 values lose digits that decide whether an update is too long."""
    values = update.astype(np.float64)
    return math.sqrt(float(np.dot(values, values)))
