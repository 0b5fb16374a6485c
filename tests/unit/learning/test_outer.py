"""The leader's step, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.momentum_step import momentum_step
from shoal.errors import Misuse
from shoal.learning.outer import OuterState, outer_change, outer_step
from shoal.learning.outer_rule import ADAPTIVE, OuterRule


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


# By the papers, against torch -------------------------------------------------------------------------------

BETA1, BETA2, EPSILON, RATE, INNER = 0.9, 0.99, 1e-8, 0.01, 0.05


def rule(kind: str, **changes: float) -> OuterRule:
    numbers = {"rate": RATE, "momentum": BETA1, "beta2": BETA2, "epsilon": EPSILON, "inner_rate": INNER} | changes
    return OuterRule(kind=kind, **numbers)


def gradients(steps: int, size: int = 7) -> list[np.ndarray]:
    chance = np.random.default_rng(3)
    # Of very different sizes, and some are 0 at times: that is what the squares are kept for.
    scale = 10.0 ** np.arange(-3, size - 3)
    return [(chance.normal(size=size) * scale * (chance.random(size) > 0.2)).astype(np.float32) for _ in range(steps)]


def walk(
    rule: OuterRule, model: np.ndarray, steps: list[np.ndarray], rates: list[float] | None = None
) -> tuple[np.ndarray, OuterState]:
    """Where a model comes to by mean updates that are minus the learning rate times these gradients."""
    state = OuterState.zeros(rule, model.size)
    for number, gradient in enumerate(steps):
        rate = rates[number] if rates else 0.0
        change, state = outer_step(rule, state, np.float32(-rule.inner_rate) * gradient, rate=rate, weights=model)
        model = model + change
    return model, state


def torch_walk(
    make: Callable[[list[Any]], Any], model: np.ndarray, steps: list[np.ndarray], rates: list[float] | None = None
) -> np.ndarray:
    torch = pytest.importorskip("torch")
    weights = torch.nn.Parameter(torch.from_numpy(model.copy()))
    optimiser = make([weights])
    for number, gradient in enumerate(steps):
        if rates:
            optimiser.param_groups[0]["lr"] = rates[number]
        weights.grad = torch.from_numpy(gradient)
        optimiser.step()
    found: np.ndarray = weights.detach().numpy()
    return found


MODEL = np.linspace(-1, 1, 7, dtype=np.float32)


@pytest.mark.parametrize("momentum", [BETA1, 0.0])
def test_adam_is_that_of_torch(momentum: float) -> None:
    found, _ = walk(rule("adam", momentum=momentum), MODEL, gradients(30))
    expected = torch_walk(lambda w: _torch().Adam(w, lr=RATE, betas=(momentum, BETA2)), MODEL, gradients(30))
    assert np.abs(found - expected).max() < 1e-6
    assert np.abs(found - MODEL).max() > 10 * RATE


def test_adamw_is_that_of_torch_and_decays_at_the_leader() -> None:
    found, _ = walk(rule("adamw", weight_decay=0.3), MODEL, gradients(30))

    def make(weights: list[Any]) -> Any:
        return _torch().AdamW(weights, lr=RATE, betas=(BETA1, BETA2), weight_decay=0.3)

    assert np.abs(found - torch_walk(make, MODEL, gradients(30))).max() < 1e-6
    assert np.abs(found - walk(rule("adam"), MODEL, gradients(30))[0]).max() > 1e-2


def test_adamw_follows_a_schedule_as_torch_does() -> None:
    rates = [RATE * (1 + number) / 30 for number in range(30)]
    found, _ = walk(rule("adamw", weight_decay=0.3), MODEL, gradients(30), rates)

    def make(weights: list[Any]) -> Any:
        return _torch().AdamW(weights, lr=RATE, betas=(BETA1, BETA2), weight_decay=0.3)

    assert np.abs(found - torch_walk(make, MODEL, gradients(30), rates)).max() < 1e-6


def test_adagrad_is_that_of_torch() -> None:
    found, state = walk(rule("adagrad", momentum=0.0, epsilon=1e-10), MODEL, gradients(30))
    expected = torch_walk(lambda w: _torch().Adagrad(w, lr=RATE), MODEL, gradients(30))
    assert np.abs(found - expected).max() < 1e-6
    assert np.allclose(state.second, sum(g.astype(np.float64) ** 2 for g in gradients(30)), rtol=1e-5)


def test_yogi_is_its_formula() -> None:
    found, state = walk(rule("yogi"), MODEL, gradients(30))
    model, m, v = MODEL.astype(np.float64), np.zeros(7), np.zeros(7)
    for number, gradient in enumerate(gradients(30), start=1):
        g = gradient.astype(np.float64)
        m = BETA1 * m + (1 - BETA1) * g
        v = v - (1 - BETA2) * np.sign(v - g**2) * g**2
        model = model - RATE * (m / (1 - BETA1**number)) / (np.sqrt(v / (1 - BETA2**number)) + EPSILON)
    assert np.abs(found - model).max() < 1e-5
    assert np.allclose(state.second, v, rtol=1e-4)
    assert state.steps == 30


def test_yogi_forgets_large_squares_more_slowly_than_adam() -> None:
    steps = [vector(10.0), *[vector(0.1)] * 50]
    yogi, adam = (walk(rule(kind), vector(0), steps)[1].second for kind in ("yogi", "adam"))
    assert float(yogi[0]) > 1.5 * float(adam[0])


@pytest.mark.parametrize("kind", ADAPTIVE)
def test_an_adaptive_step_leaves_buffers_to_the_mean_update(kind: str) -> None:
    chosen = rule(kind, weight_decay=0.1)
    model, update = vector(1, 1, 5), vector(-0.05, 0.05, 2)
    change, state = outer_step(chosen, OuterState.zeros(chosen, 2), update, weights=model[:2])
    assert change[2] == 2
    assert change[0] < 0 < change[1] + 0.01
    assert state.velocity.size == state.second.size == 2
    assert change.dtype == state.velocity.dtype == state.second.dtype == np.float32


@pytest.mark.parametrize("kind", ADAPTIVE)
def test_what_never_moves_is_never_divided_by_nothing(kind: str) -> None:
    found, _ = walk(rule(kind), MODEL, [np.zeros(7, np.float32)] * 3)
    assert np.array_equal(found, MODEL)


def test_adamw_must_be_given_what_it_decays() -> None:
    chosen = rule("adamw", weight_decay=0.1)
    with pytest.raises(Misuse, match="takes a share of the parameters away"):
        outer_step(chosen, OuterState.zeros(chosen, 1), vector(1))


@pytest.mark.parametrize("kind", ["sgd", "nesterov"])
def test_rules_of_before_give_the_bits_of_before(kind: str) -> None:
    chosen = OuterRule(kind=kind, rate=0.7, momentum=0.9)
    state, velocity = OuterState.zeros(chosen, 6), np.zeros(6, np.float32)
    for gradient in gradients(5):
        change, state = outer_step(chosen, state, gradient)
        old, velocity = outer_change(
            velocity, gradient, momentum=0.9, parameters_size=6, rate=0.7, nesterov=kind == "nesterov"
        )
        assert change.tobytes() == old.tobytes()
        assert state.velocity.tobytes() == velocity.tobytes()
    assert state.second.size == 0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"kind": "lion"}, "outer = 'lion' is not a choice.*there is: sgd, nesterov, adam, adamw, yogi, adagrad"),
        ({"rate": 0.0}, "outer_rate is positive"),
        ({"beta2": 1.0}, r"outer_beta2 is in \[0, 1\)"),
        ({"epsilon": 0.0}, "outer_epsilon is positive"),
        ({"weight_decay": -1.0}, "weight_decay is a number from 0"),
        ({"inner_rate": 0.0}, "learning_rate is positive"),
    ],
)
def test_a_rule_that_cannot_work_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(Misuse, match=told):
        OuterRule(**wrong)


def _torch() -> Any:
    return pytest.importorskip("torch").optim
