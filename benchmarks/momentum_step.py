"""The next model in one step, for measurements that need no residual."""

from __future__ import annotations

import numpy as np

from shoal.learning.outer import outer_change


def momentum_step(
    model: np.ndarray,
    velocity: np.ndarray,
    mean_update: np.ndarray,
    *,
    momentum: float,
    parameters_size: int,
    rate: float = 1.0,
    nesterov: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """w' = w + Δ, and v'. New arrays: a published version never changes while another part sends or saves it."""
    change, new_velocity = outer_change(
        velocity, mean_update, momentum=momentum, parameters_size=parameters_size, rate=rate, nesterov=nesterov
    )
    return model + change, new_velocity
