"""The leader's step: from the mean update of a round to the next version. Pure numpy."""

from __future__ import annotations

import numpy as np


def outer_change(
    velocity: np.ndarray,
    mean_update: np.ndarray,
    *,
    momentum: float,
    parameters_size: int,
    rate: float = 1.0,
    nesterov: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """v' = μ·v + ū;  Δ = η·v', or with Nesterov's look ahead Δ = η·(ū + μ·v'). Buffers (running means) take Δ = ū.

    A worker's update for one batch is -η·g, so with one batch a lease and η = 1 this is exactly SGD with momentum on
    the examples of the whole round (Polyak's heavy ball, as torch.optim.SGD with a constant rate). With many batches a
    lease ū is an average of what they came to together, and the look ahead with η = 0.7 and μ = 0.9 is DiLoCo's outer
    step. Returns the change and the new velocity; ``mean_update`` itself where nothing is done to it.
    """
    if momentum == 0.0 and rate == 1.0:
        return mean_update, velocity
    steps = mean_update[:parameters_size]
    new_velocity = velocity
    if momentum != 0.0:
        new_velocity = velocity * np.float32(momentum)
        new_velocity += steps
        steps = steps + new_velocity * np.float32(momentum) if nesterov else new_velocity
    if rate != 1.0:
        steps = steps * np.float32(rate)
    if parameters_size == mean_update.size:
        return steps, new_velocity
    return np.concatenate((steps, mean_update[parameters_size:])), new_velocity


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
