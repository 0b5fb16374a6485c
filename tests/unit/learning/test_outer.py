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


def test_looking_ahead_and_a_rate_are_what_torch_does_with_them() -> None:
    """torch.optim.SGD(nesterov=True) on the same mean updates, as plain arithmetic: w' = w + η(ū + μv')."""
    model, velocity, rate, momentum = vector(1, 2, 3), np.zeros(2, np.float32), 0.7, 0.9
    expected, kept = np.array([1.0, 2.0, 3.0]), np.zeros(2)
    for update in (vector(1, -1, 2), vector(0.5, 0.25, -1), vector(-2, 0, 0)):
        model, velocity = momentum_step(
            model, velocity, update, momentum=momentum, parameters_size=2, rate=rate, nesterov=True
        )
        kept = momentum * kept + update[:2]
        expected[:2] += rate * (update[:2] + momentum * kept)
        expected[2] += update[2]
    assert np.allclose(model, expected, atol=1e-6)


def test_a_rate_without_momentum_scales_parameters_and_leaves_buffers() -> None:
    model, _ = momentum_step(
        vector(0, 0), np.zeros(1, np.float32), vector(2, 2), momentum=0, parameters_size=1, rate=0.5
    )
    assert model.tolist() == [1, 2]
