"""A run: users come one by one, each with a gradient against an older model. One seed, one fate for every rule.

As in the paper the staleness is drawn, not found: gradient number t is made against the model as it was τ gradients
ago. So rules differ in what they make of the same late gradients, and in nothing else: who comes, with which
examples and how late is drawn from the seed alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from papers.fleet.images import Pictures, batch_of, label_counts
from papers.fleet.network import accuracy, begin, gradient
from papers.fleet.rules import Arrival, Rule, local_prior
from papers.fleet.setting import BATCH, CLASSES, EVALUATE_EVERY, LOOKS, TARGET, Staleness

#: The longest staleness that is asked for, and some.
_REMEMBERED = 80


@dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """Who comes: whose examples, which of them, and how late."""

    user: int
    batch: np.ndarray
    staleness: int


Visitor = Callable[[int, np.random.Generator], Visit]

#: A gradient another way than plainly; private ones for example.
Gradient = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Accuracy on the way, and what was found."""

    steps: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    of_classes: list[list[float]] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    diverged: bool = False

    def steps_to(self, target: float = TARGET, *, of_class: int | None = None) -> int | None:
        """The first look at which the mean of the last few is there; None if it never is."""
        seen = self.accuracy if of_class is None else [row[of_class] for row in self.of_classes]
        for end in range(LOOKS, len(seen) + 1):
            if sum(seen[end - LOOKS : end]) / LOOKS >= target:
                return self.steps[end - 1]
        return None

    def to_plain(self) -> dict[str, Any]:
        """Return what JSON can say of it."""
        return asdict(self)

    def final(self, looks: int = 10) -> float:
        """The mean of the last looks."""
        return float(np.mean(self.accuracy[-looks:]))


def strangers(own: list[np.ndarray], staleness: Staleness) -> Visitor:
    """Anyone may come next, as often as anyone else."""

    def visit(step: int, generator: np.random.Generator) -> Visit:
        user = int(generator.integers(len(own)))
        late = max(0, round(float(generator.normal(staleness.mean, staleness.deviation))))
        return Visit(user=user, batch=batch_of(own[user], generator, size=BATCH), staleness=late)

    return visit


def play(
    rule: Rule,
    *,
    rate: float,
    threshold: float,
    pictures: Pictures,
    own: list[np.ndarray],
    visitor: Visitor,
    steps: int,
    seed: int,
    until_target: bool = False,
    target: float = TARGET,
    gradient_of: Gradient | None = None,
    admits: Callable[[Visit], bool] | None = None,
    decay: float = 0.0,
) -> Curve:
    """``until_target`` ends a run where the target is reached: nothing after that is asked for. ``decay``: step i is
    divided by (1 + i)^decay, as in the authors' released code."""
    generator = np.random.default_rng([seed, 3])
    counts = [label_counts(pictures.labels[part], classes=CLASSES) for part in own]
    leader = rule.leader(rate, threshold)
    model = begin(seed)
    past: deque[np.ndarray] = deque([model], maxlen=_REMEMBERED)
    curve = Curve(weights=leader.weights)
    diverged = False
    for step in range(1, steps + 1):
        visit = visitor(step, generator)
        if admits is None or admits(visit):
            late = min(visit.staleness, len(past) - 1)
            base = past[-1 - late]
            images, labels = pictures.images[visit.batch], pictures.labels[visit.batch]
            if gradient_of is not None:
                found = gradient_of(base, images, labels)
            elif rule.mixed is not None:
                found = gradient(base, images, labels, prior=local_prior(counts[visit.user], mixed=rule.mixed))
            else:
                found = gradient(base, images, labels)
            arrival = Arrival(gradient=found, base=base, staleness=late, counts=counts[visit.user])
            model = shortened(model, leader.merge(model, arrival), by=(1 + len(leader.weights)) ** -decay)
            past.append(model)
        if step % EVALUATE_EVERY == 0:
            if not math.isfinite(float(np.abs(model).max())):
                diverged = True
                break
            whole, of_class = accuracy(model, pictures.test_images, pictures.test_labels)
            curve.steps.append(step)
            curve.accuracy.append(whole)
            curve.of_classes.append(of_class.tolist())
            if until_target and curve.steps_to(target) is not None:
                break
    return Curve(
        steps=curve.steps,
        accuracy=curve.accuracy,
        of_classes=curve.of_classes,
        weights=leader.weights,
        diverged=diverged,
    )


def shortened(before: np.ndarray, after: np.ndarray, *, by: float) -> np.ndarray:
    """Return the model after this share of the step, as float32. A share of 1 changes nothing."""
    return after if by == 1 else before + np.float32(by) * (after - before)
