"""Optimisers as equations over one flat vector, for a graph that holds them. Imports torch.

Each computes the same values as the class of ``torch.optim`` with its name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

States: TypeAlias = tuple[Tensor, ...]


class StepRule(Protocol):
    @property
    def states(self) -> int:
        """The number of state vectors, each zero before the first step."""
        ...

    def step(
        self, before: Tensor, gradient: Tensor, states: States, *, step: Tensor, rate: Tensor, weight_decay: Tensor
    ) -> tuple[Tensor, States]:
        """Return the parameters and the states after a step. ``step`` counts from 1."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Sgd:
    """Stochastic gradient descent, with momentum where that is not 0 (Sutskever et al., 2013, as torch has it)."""

    momentum: float = 0.0
    nesterov: bool = False

    @property
    def states(self) -> int:
        return 1 if self.momentum else 0

    def step(
        self, before: Tensor, gradient: Tensor, states: States, *, step: Tensor, rate: Tensor, weight_decay: Tensor
    ) -> tuple[Tensor, States]:
        gradient = gradient + weight_decay * before
        if not self.momentum:
            return before - rate * gradient, ()
        kept = self.momentum * states[0] + gradient
        ahead = gradient + self.momentum * kept if self.nesterov else kept
        return before - rate * ahead, (kept,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adam:
    """Adam (Kingma and Ba, 2015); AdamW where the decay is decoupled (Loshchilov and Hutter, 2019)."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    is_decoupled: bool = True
    #: Divide by the largest second moment until now (AMSGrad; Reddi et al., 2018).
    keeps_largest: bool = False

    @property
    def states(self) -> int:
        return 3 if self.keeps_largest else 2

    def step(
        self, before: Tensor, gradient: Tensor, states: States, *, step: Tensor, rate: Tensor, weight_decay: Tensor
    ) -> tuple[Tensor, States]:
        if self.is_decoupled:
            before = before * (1 - rate * weight_decay)
        else:
            gradient = gradient + weight_decay * before
        first = states[0] + (1 - self.beta1) * (gradient - states[0])
        second = self.beta2 * states[1] + (1 - self.beta2) * gradient * gradient
        bias1, bias2 = rest_of_power(self.beta1, step), torch.sqrt(rest_of_power(self.beta2, step))
        largest = (torch.maximum(states[2], second),) if self.keeps_largest else ()
        divisor = (largest[0] if largest else second).sqrt() / bias2 + self.epsilon
        return before - rate / bias1 * first / divisor, (first, second, *largest)


@dataclass(frozen=True, kw_only=True, slots=True)
class RmsProp:
    """RMSprop (Hinton, 2012), with momentum where that is not 0."""

    alpha: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0

    @property
    def states(self) -> int:
        return 2 if self.momentum else 1

    def step(
        self, before: Tensor, gradient: Tensor, states: States, *, step: Tensor, rate: Tensor, weight_decay: Tensor
    ) -> tuple[Tensor, States]:
        gradient = gradient + weight_decay * before
        square = self.alpha * states[0] + (1 - self.alpha) * gradient * gradient
        ahead = gradient / (square.sqrt() + self.epsilon)
        if not self.momentum:
            return before - rate * ahead, (square,)
        kept = self.momentum * states[1] + ahead
        return before - rate * kept, (square, kept)


@dataclass(frozen=True, kw_only=True, slots=True)
class Adagrad:
    """Adagrad (Duchi et al., 2011), whose sum of squares begins at 0."""

    epsilon: float = 1e-10
    rate_decay: float = 0.0

    @property
    def states(self) -> int:
        return 1

    def step(
        self, before: Tensor, gradient: Tensor, states: States, *, step: Tensor, rate: Tensor, weight_decay: Tensor
    ) -> tuple[Tensor, States]:
        gradient = gradient + weight_decay * before
        total = states[0] + gradient * gradient
        slowed = rate / (1 + (step - 1) * self.rate_decay) if self.rate_decay else rate
        return before - slowed * gradient / (total.sqrt() + self.epsilon), (total,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Grouped:
    """An optimiser with groups of parameters: each value has a part of the rate and of the weight decay."""

    inner: StepRule
    #: Runs of values of the flat vector: how many, their part of the rate, and their part of the decay.
    runs: tuple[tuple[int, float, float], ...]

    @property
    def states(self) -> int:
        return self.inner.states

    def step(
        self, before: Tensor, gradient: Tensor, states: States, *, step: Tensor, rate: Tensor, weight_decay: Tensor
    ) -> tuple[Tensor, States]:
        rates = self._each([(count, part) for count, part, _ in self.runs])
        decays = self._each([(count, part) for count, _, part in self.runs])
        return self.inner.step(
            before, gradient, states, step=step, rate=rate * rates, weight_decay=weight_decay * decays
        )

    @staticmethod
    def _each(parts: list[tuple[int, float]]) -> Tensor:
        # Made in the graph: a table of every value would be as large as the model.
        if len({part for _, part in parts}) == 1:
            return torch.full((), parts[0][1])
        return torch.cat([torch.full((count,), part) for count, part in parts])


def rest_of_power(base: float, exponent: Tensor) -> Tensor:
    """Return 1 - base^exponent in float32, which graphics processors have: computed directly, 1 - 0.999 would lose
    three digits.

    With x = exponent log(base), small values use five terms of the series of e^x - 1; below 1/8 the rest is under 1e-7.
    """
    if base == 0.0:
        return torch.ones_like(exponent)
    x = exponent * math.log(base)
    near = torch.ones_like(x)
    for term in (5, 4, 3, 2):
        near = 1 + x / term * near
    return -torch.where(x.abs() < 0.125, x * near, torch.exp(x) - 1)
