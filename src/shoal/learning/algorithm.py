"""A researcher's own algorithm: it makes a version from updates, or chooses the devices that train.

Most algorithms need none of it: a task that trains in its own way, with buffers that devices share or keep, is enough
where a version is a weighted mean of what devices send. docs/algorithms.md says which need what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.learning.algorithm_name import HOOKS

#: What an algorithm keeps from version to version: arrays by name, saved with the model.
AlgorithmState = Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateFacts:
    """What a leader knows about an update beside its values."""

    node: str
    #: Examples that it was trained on.
    examples: int
    #: Their mean loss in training.
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitingDevice:
    """A device that waits for work."""

    node: str
    #: Examples that it has, or None where all devices share them.
    examples: int | None = None
    #: Its mean loss when it trained last under this leader, and the version that it trained from; None if it did not.
    loss: float | None = None
    trained_from: int | None = None
    #: How long its last lease took, or None if it had none.
    lease_s: float | None = None


class Algorithm:
    """Write ``merge``, ``finish`` or ``choose``; ``choose`` also goes together with either of the other two. Each is a
    pure function of its arguments: ``state`` holds everything that the next version needs.

    A change that is returned goes through the plan's outer step, as a mean does, with ``outer_rate`` and ``outer``.
    """

    def merge(
        self, updates: np.ndarray, facts: Sequence[UpdateFacts], state: AlgorithmState
    ) -> tuple[np.ndarray, AlgorithmState]:
        """Return the change of the model, and the new state. Row i of ``updates`` is what device ``facts[i].node``
        changed in the model, as one float32 vector."""
        raise NotImplementedError

    def finish(
        self, mean: Mapping[str, np.ndarray], state: AlgorithmState
    ) -> tuple[Mapping[str, np.ndarray], AlgorithmState]:
        """Return the change of each tensor, and the new state. ``mean`` is the weighted mean of what devices changed in
        each tensor, also in buffers; a tensor that is left out of the result does not change."""
        raise NotImplementedError

    def choose(self, candidates: Sequence[WaitingDevice], count: int, rng: np.random.Generator) -> Sequence[str]:
        """Return the names of ``count`` devices that train for the next version. ``rng`` is seeded by the plan's seed
        and the version."""
        raise NotImplementedError


def hooks_of(algorithm: Algorithm) -> frozenset[str]:
    """Return which methods an algorithm has."""
    return frozenset(name for name in HOOKS if getattr(type(algorithm), name) is not getattr(Algorithm, name))
