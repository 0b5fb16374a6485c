"""The leader's step, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.learning.outer import momentum_step


def vector(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_momentum_moves_parameters_and_not_buffers() -> None:
    model, velocity = vector(1, 1, 10), vector(0.5, 0)
    model, velocity = momentum_step(model, velocity, vector(1, -1, 2), momentum=0.5, parameters_size=2)
    # v' = 0.5·0.5 + 1 = 1.25 and 0.5·0 - 1 = -1; w' = w + v'; the buffer takes the update as it is.
    assert velocity.tolist() == [1.25, -1.0]
    assert model.tolist() == [2.25, 0.0, 12.0]
    assert model.dtype == velocity.dtype == np.float32


def test_without_momentum_the_step_is_the_mean_update() -> None:
    velocity = vector(3)
    model, after = momentum_step(vector(1, 2), velocity, vector(1, 1), momentum=0.0, parameters_size=1)
    assert model.tolist() == [2.0, 3.0]
    assert after is velocity


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_published_version_never_changes(momentum: float) -> None:
    model, velocity, update = vector(1, 2), vector(1, 1), vector(1, 1)
    for array in (model, velocity, update):
        array.flags.writeable = False
    new, _ = momentum_step(model, velocity, update, momentum=momentum, parameters_size=2)
    assert not np.shares_memory(new, model)
    assert model.tolist() == [1.0, 2.0]


def test_it_is_the_heavy_ball_of_sgd_with_momentum() -> None:
    """As torch.optim.SGD(lr=0.1, momentum=0.9) does it: b = 0.9·b + g; w = w - 0.1·b."""
    model, velocity = vector(1), vector(0)
    seen = []
    for gradient in (1.0, 0.5, -3.0):
        update = vector(-0.1 * gradient)
        model, velocity = momentum_step(model, velocity, update, momentum=0.9, parameters_size=1)
        seen.append(float(model[0]))
    # b = 1, then 0.9 + 0.5 = 1.4, then 1.26 - 3 = -1.74.
    assert seen == pytest.approx([0.9, 0.76, 0.934])
