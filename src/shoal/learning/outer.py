"""The leader's step: from the mean update of a round to the next version. Pure numpy."""

from __future__ import annotations

import numpy as np


def momentum_step(
    model: np.ndarray,
    velocity: np.ndarray,
    mean_update: np.ndarray,
    *,
    momentum: float,
    parameters_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """v' = μ·v + ū;  w' = w + v', on the parameters; buffers (running means) take w' = w + ū.

    A worker's update for one batch is -η·g, so with one batch a lease this is exactly SGD with momentum on the
    examples of the whole round (Polyak's heavy ball, as torch.optim.SGD with a constant rate). Returns new arrays:
    a version, once published, never changes under those who are sending or saving it.
    """
    if momentum == 0.0:
        return model + mean_update, velocity
    new_velocity = velocity * np.float32(momentum)
    new_velocity += mean_update[:parameters_size]
    new_model = np.empty_like(model)
    np.add(model[:parameters_size], new_velocity, out=new_model[:parameters_size])
    np.add(model[parameters_size:], mean_update[parameters_size:], out=new_model[parameters_size:])
    return new_model, new_velocity
