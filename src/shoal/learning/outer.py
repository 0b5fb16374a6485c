"""The leader's step: from the mean update of a round to the next version. Pure numpy.

Every rule works on each value by itself, so that a star, a tree and the parts of a shard come to the same values, bit
for bit: no power or cosine of a C library is in it, since those differ between platforms in their last bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse
from shoal.learning.outer_rule import OuterRule


@dataclass(frozen=True, slots=True)
class OuterState:
    """What a rule keeps from step to step, of the parameters. No array of it changes later."""

    #: The velocity; of an adaptive rule the mean of gradients (m).
    velocity: np.ndarray
    #: The squares of gradients (v); empty where the rule is not adaptive.
    second: np.ndarray
    #: Steps taken so far.
    steps: int = 0

    @classmethod
    def zeros(cls, rule: OuterRule, size: int) -> OuterState:
        """Before the first step."""
        return cls(np.zeros(size, dtype=np.float32), np.zeros(size if rule.is_adaptive else 0, dtype=np.float32))


def outer_step(
    rule: OuterRule,
    state: OuterState,
    mean_update: np.ndarray,
    *,
    rate: float = 0.0,
    weights: np.ndarray | None = None,
    decayed: Sequence[slice] = (slice(None),),
) -> tuple[np.ndarray, OuterState]:
    """Return the change of a version by a rule, and the rule's new state. Buffers, which come last, take the mean
    update.

    ``rate`` is this step's outer rate, or 0 for the rule's own. ``weights`` are the parameters, for a rule that decays
    them, in the parts that ``decayed`` names.
    """
    size = state.velocity.size
    if not rule.is_adaptive:
        change, velocity = outer_change(
            state.velocity,
            mean_update,
            momentum=rule.momentum,
            parameters_size=size,
            rate=rate or rule.rate,
            nesterov=rule.kind == "nesterov",
        )
        return change, OuterState(velocity, state.second, state.steps + 1)
    # An update of one batch is minus the learning rate times the gradient.
    gradient = mean_update[:size] * np.float32(-1.0 / rule.inner_rate)
    step, new = _adaptive_step(rule, state, gradient, rate=rate or rule.rate)
    if rule.decays:
        if weights is None:
            raise Misuse("adamw takes a share of the parameters away: it has to be given them")
        for part in decayed:
            step[part] -= weights[part] * np.float32((rate or rule.rate) * rule.weight_decay)
    return (step if size == mean_update.size else np.concatenate((step, mean_update[size:]))), new


def _adaptive_step(
    rule: OuterRule, state: OuterState, gradient: np.ndarray, *, rate: float
) -> tuple[np.ndarray, OuterState]:
    """Δ = -η·m̂ / (√v̂ + ε), with m̂ = m / (1 - β₁ᵗ) and v̂ = v / (1 - β₂ᵗ); for Adagrad m and v as they are.

    With one batch a lease ``gradient`` is that of the whole round, and this is what one torch.optim.Adam, AdamW or
    Adagrad would do with it. With many it is the pseudo-gradient of Reddi et al. 2021 (Adaptive Federated Optimization,
    Algorithm 2), times a constant, which all of these undo again but for ε.
    """
    steps = state.steps + 1
    first = state.velocity
    if rule.momentum:
        first = gradient - state.velocity
        first *= np.float32(1.0 - rule.momentum)
        first += state.velocity
    second = _SECOND[rule.kind](state.second, gradient * gradient, beta2=rule.beta2)
    corrects = rule.kind != "adagrad"
    denominator = np.sqrt(second)
    if corrects:
        denominator /= np.float32(math.sqrt(1.0 - _power(rule.beta2, steps)))
    denominator += np.float32(rule.epsilon)
    scale = rate / (1.0 - _power(rule.momentum, steps)) if corrects else rate
    step = np.divide(first if rule.momentum else gradient, denominator, out=denominator)
    step *= np.float32(-scale)
    return step, OuterState(first, second, steps)


def adam_second(second: np.ndarray, squares: np.ndarray, *, beta2: float) -> np.ndarray:
    """v' = β₂·v + (1 - β₂)·g².   (Kingma & Ba 2015, Adam; Loshchilov & Hutter 2019, AdamW)"""
    new: np.ndarray = second * np.float32(beta2)
    new += squares * np.float32(1.0 - beta2)
    return new


def yogi_second(second: np.ndarray, squares: np.ndarray, *, beta2: float) -> np.ndarray:
    """v' = v - (1 - β₂)·sign(v - g²)·g².   (Zaheer et al. 2018, Yogi; Reddi et al. 2021, FedYogi)"""
    new: np.ndarray = np.sign(second - squares)
    new *= squares
    new *= np.float32(beta2 - 1.0)
    new += second
    return new


def adagrad_second(second: np.ndarray, squares: np.ndarray, *, beta2: float) -> np.ndarray:
    """v' = v + g²; it has no beta2.   (Duchi et al. 2011, Adagrad; Reddi et al. 2021, FedAdagrad)"""
    new: np.ndarray = second + squares
    return new


_SECOND = {"adam": adam_second, "adamw": adam_second, "yogi": yogi_second, "adagrad": adagrad_second}


def _power(base: float, exponent: int) -> float:
    """Return a power, using only products, which are the same on every platform."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


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

    A worker's update for one batch is -η·g, so with one batch per lease and η = 1 this is exactly SGD with momentum on
    all examples of the round (Polyak's heavy ball, as torch.optim.SGD with a constant rate). With many batches per
    lease, ū averages their total changes, and the look ahead with η = 0.7 and μ = 0.9 is DiLoCo's outer step. Returns
    the change and the new velocity. The change is ``mean_update`` itself if it stays as it is.
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
