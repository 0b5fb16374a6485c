"""What a leader does with an update that may be late: the paper's rules and ours, one a name. Numpy only.

The weights are those that Shoal's leader uses (``shoal.learning``); what is only here is on trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from benchmarks.momentum_step import momentum_step
from papers.fleet.setting import CLASSES
from shoal.learning.partial import Partial
from shoal.learning.similarity import LabelMemory
from shoal.learning.staleness import SIMILAR, Lateness, adaptive, damping, exponential, inverse, none, root
from shoal.roles.leader.training_state import LABELS_DECAY


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """A gradient, the model that it was made against, and what the leader is told with it."""

    gradient: np.ndarray
    base: np.ndarray
    staleness: int
    counts: np.ndarray


#: What an arrival is worth, given the model as it is now.
Weight = Callable[[Arrival, np.ndarray], float]


class Leader(Protocol):
    #: The weight of each arrival so far.
    weights: list[float]

    def merge(self, model: np.ndarray, arrival: Arrival) -> np.ndarray:
        """The next version, or the same array while nothing moves."""
        ...


class Damped:
    """θ - γ·w·g at once (K = 1): the paper's leader."""

    def __init__(self, weight: Weight, *, rate: float) -> None:
        self._weight, self._rate = weight, rate
        self.weights: list[float] = []

    def merge(self, model: np.ndarray, arrival: Arrival) -> np.ndarray:
        weight = self._weight(arrival, model)
        self.weights.append(weight)
        return model - np.float32(self._rate * weight) * arrival.gradient


class Buffered:
    """The mean of K, then Nesterov's look ahead (FedBuff with DiLoCo's outer step). Steps are gradients, as of all."""

    def __init__(self, weight: Weight, *, rate: float, size: int, momentum: float) -> None:
        self._weight, self._rate, self._size, self._momentum = weight, rate, size, momentum
        self._partial: Partial | None = None
        self._velocity: np.ndarray | None = None
        self.weights: list[float] = []

    def merge(self, model: np.ndarray, arrival: Arrival) -> np.ndarray:
        if self._partial is None or self._velocity is None:
            self._partial, self._velocity = Partial(model.size), np.zeros_like(model)
        weight = self._weight(arrival, model)
        self.weights.append(weight)
        self._partial.add(-arrival.gradient, weight=1.0, scale=weight)
        if self._partial.count < self._size:
            return model
        model, self._velocity = momentum_step(
            model,
            self._velocity,
            self._partial.mean(),
            momentum=self._momentum,
            parameters_size=model.size,
            rate=self._rate,
            nesterov=True,
        )
        self._partial.clear()
        return model


class Adaptive:
    """m / (√v + ε) by the moments of what arrives, late or not (an adaptive leader: Reddi et al. 2021).

    A late gradient is wrong where the model has moved far, and there gradients were large: v damps it value by value,
    instead of as a whole by its age. Without momentum (m is the gradient), since asynchrony is momentum enough.
    """

    def __init__(self, weight: Weight, *, rate: float, first: float = 0.0, second: float = 0.99, floor: float = 1e-3):
        self._weight, self._rate, self._first, self._second, self._floor = weight, rate, first, second, floor
        self._mean: np.ndarray | None = None
        self._square: np.ndarray | None = None
        self._count = 0
        self.weights: list[float] = []

    def merge(self, model: np.ndarray, arrival: Arrival) -> np.ndarray:
        if self._mean is None or self._square is None:
            self._mean, self._square = np.zeros_like(model), np.zeros_like(model)
        weight = self._weight(arrival, model)
        self.weights.append(weight)
        self._count += 1
        self._mean += np.float32(1 - self._first) * (np.float32(weight) * arrival.gradient - self._mean)
        self._square += np.float32(1 - self._second) * (arrival.gradient**2 - self._square)
        mean = self._mean / np.float32(1 - self._first**self._count)
        square = self._square / np.float32(1 - self._second**self._count)
        return model - np.float32(self._rate) * mean / (np.sqrt(square) + np.float32(self._floor))


def by_age(rule: Callable[..., float], threshold: float = 0.0) -> Weight:
    return lambda arrival, model: rule(arrival.staleness, threshold=threshold)


def adasgd(threshold: float) -> Weight:
    """min(1, e^(-βτ)/sim) for every update: eq. 3 and 4 as printed, with the paper's threshold."""
    memory = LabelMemory(classes=CLASSES)
    beta = damping(threshold)

    def weight(arrival: Arrival, model: np.ndarray) -> float:
        damped, similarity = math.exp(-beta * arrival.staleness), memory.similarity(arrival.counts)
        memory.seen(arrival.counts)
        return 1.0 if damped >= similarity else damped / similarity

    return weight


def adasgd_released(threshold: float) -> Weight:
    """e^(-β·min(τ, T)), divided by max(0.1, sim) where τ > 1.5 T: ``CppNNUpdater.getDampen``, policy 4.

    This is Shoal's ``staleness = "similar"`` with the threshold given.
    """
    memory = LabelMemory(classes=CLASSES)

    def weight(arrival: Arrival, model: np.ndarray) -> float:
        similarity = memory.similarity(arrival.counts)
        memory.seen(arrival.counts)
        return adaptive(arrival.staleness, threshold=threshold, similarity=similarity)

    return weight


def adasgd_deployed() -> Weight:
    """The released rule with the threshold learned, as Shoal's leader learns it: the inverse rule for 50 updates, then
    the median + 3 σ."""
    memory, lateness = LabelMemory(classes=CLASSES, decay=LABELS_DECAY), Lateness()

    def weight(arrival: Arrival, model: np.ndarray) -> float:
        similarity = memory.similarity(arrival.counts)
        memory.seen(arrival.counts)
        found = lateness.weight(SIMILAR, arrival.staleness, similarity=similarity)
        lateness.seen(arrival.staleness)
        return found

    return weight


def distance(rate: float) -> Weight:
    """min(1, ‖γ·g‖ / ‖θ - θ_then‖): by how far the model went meanwhile, not by how often (as AsyncFedED)."""

    def weight(arrival: Arrival, model: np.ndarray) -> float:
        moved = float(np.linalg.norm(model - arrival.base))
        return 1.0 if moved == 0 else min(1.0, rate * float(np.linalg.norm(arrival.gradient)) / moved)

    return weight


def local_prior(counts: np.ndarray, *, mixed: float) -> np.ndarray:
    """π = (1 - α)·LD + α/classes, by which a user weighs its softmax (Ren et al. 2020, Zhang et al. 2022).

    A user of two labels otherwise teaches the model that there are only these two, and the next one that there are
    only its own. The counts stay on the device.
    """
    shares = counts / counts.sum()
    return np.asarray((1 - mixed) * shares + mixed / len(counts))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A leader, and what users do with their own labels."""

    name: str
    #: From the rate and the threshold of staleness.
    leader: Callable[[float, float], Leader]
    #: α of ``local_prior``; None where users do nothing of the kind.
    mixed: float | None = None
    #: Rates that are tried, of mean gradients. The paper's is among them where the leader's step is the paper's.
    rates: tuple[float, ...] = (0.05, 0.1, 0.025)


RULES = {
    rule.name: rule
    for rule in (
        Rule(name="ssgd", leader=lambda rate, threshold: Damped(by_age(none), rate=rate)),
        Rule(
            name="fedavg",
            leader=lambda rate, threshold: Damped(by_age(none), rate=rate),
            rates=(0.025, 0.0125),
        ),
        Rule(
            name="dynsgd",
            leader=lambda rate, threshold: Damped(by_age(inverse), rate=rate),
            rates=(0.1, 0.05, 0.2),
        ),
        Rule(name="adasgd", leader=lambda rate, threshold: Damped(adasgd(threshold), rate=rate)),
        Rule(
            name="adasgd, released",
            leader=lambda rate, threshold: Damped(adasgd_released(threshold), rate=rate),
        ),
        Rule(name="adasgd, deployed", leader=lambda rate, threshold: Damped(adasgd_deployed(), rate=rate)),
        Rule(
            name="exponential",
            leader=lambda rate, threshold: Damped(by_age(exponential, threshold), rate=rate),
            rates=(0.05, 0.1, 0.2),
        ),
        Rule(name="root", leader=lambda rate, threshold: Damped(by_age(root), rate=rate)),
        Rule(name="distance", leader=lambda rate, threshold: Damped(distance(rate), rate=rate)),
        Rule(
            name="buffered",
            leader=lambda rate, threshold: Buffered(by_age(root), rate=rate, size=10, momentum=0.0),
            rates=(0.1, 0.2, 0.4),
        ),
        Rule(
            name="adaptive",
            leader=lambda rate, threshold: Adaptive(by_age(none), rate=rate),
            rates=(0.003, 0.0015),
        ),
        Rule(
            name="calibrated",
            leader=lambda rate, threshold: Damped(by_age(none), rate=rate),
            mixed=0.1,
            rates=(0.05, 0.025),
        ),
        Rule(
            name="adaptive, calibrated",
            leader=lambda rate, threshold: Adaptive(by_age(none), rate=rate),
            mixed=0.1,
            rates=(0.003, 0.0015),
        ),
    )
}
