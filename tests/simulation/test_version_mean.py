"""The exponential mean of versions survives leaders: deliberate bugs of it must be caught, in seeds that draw it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest

from dst.case import case
from dst.fuzz import fuzz
from shoal.learning.version_mean import VersionMean
from shoal.roles.leader.training_state import TrainingState
from shoal.sim.invariants import Violation
from shoal.wire.messages import Tensors

SEEDS_MAX = 40


def mean_lost_at_failover() -> AbstractContextManager[Any]:
    """A successor begins a mean of its own."""
    restore = TrainingState.restore

    def restore_without(self: TrainingState, *, tensors: Tensors, state: dict[str, Any]) -> None:
        restore(self, tensors=tensors, state=state)
        self._mean = None if self._mean is None else VersionMean(self.model)

    return patch.object(TrainingState, "restore", restore_without)


def trained_from_the_mean() -> AbstractContextManager[Any]:
    """A successor takes the mean for the model."""
    restore = TrainingState.restore

    def restore_mean(self: TrainingState, *, tensors: Tensors, state: dict[str, Any]) -> None:
        restore(self, tensors=tensors, state=state)
        self.model = self.model if self._mean is None else self._mean.values

    return patch.object(TrainingState, "restore", restore_mean)


def mean_taken_for_the_version() -> AbstractContextManager[Any]:
    """A leader and its workers have one number for the mean and for the version: the mean is trained on."""
    return patch("shoal.roles.leader.lending.mean_number", lambda version: version)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutant", "said"),
    [
        (mean_lost_at_failover, "the saved mean is not that of its history"),
        (trained_from_the_mean, "is not what its history says"),
        (mean_taken_for_the_version, "on another model than version"),
    ],
)
def test_a_bug_of_the_mean_is_caught(mutant: Callable[[], AbstractContextManager[Any]], said: str) -> None:
    with mutant():
        for seed in range(SEEDS_MAX):
            if not any(job.spec.plan.ema and job.spec.test.examples for job in case("ema", seed).jobs):
                continue
            try:
                fuzz("ema", seed)
            except Violation as violation:
                if said in str(violation):
                    return
    pytest.fail(f"{mutant.__name__} was not seen in {SEEDS_MAX} seeds")
