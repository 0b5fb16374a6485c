"""Deliberate bugs of adaptive steps and schedules must be caught, in seeds that draw both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dst.case import case
from dst.fuzz import fuzz
from shoal.learning.outer import OuterState
from shoal.learning.outer_rule import ADAPTIVE
from shoal.plan import Plan
from shoal.roles.aggregation import aggregator
from shoal.roles.leader.lending import Lending
from shoal.roles.leader.training_state import TrainingState
from shoal.sim.invariants import Violation
from shoal.wire.messages import SetUpAggregator, Tensors

SEEDS_MAX = 90
HISTORY = "is not what its history says"


def squares_not_restored() -> AbstractContextManager[Any]:
    """A successor begins with squares of nothing."""
    restore = TrainingState.restore

    def restore_without(self: TrainingState, *, tensors: Tensors, state: dict[str, Any]) -> None:
        restore(self, tensors=tensors, state=state)
        self.second = np.zeros_like(self.second)

    return patch.object(TrainingState, "restore", restore_without)


def steps_not_restored() -> AbstractContextManager[Any]:
    """A successor corrects for a bias that is long gone."""
    restore = TrainingState.restore

    def restore_at_the_first(self: TrainingState, *, tensors: Tensors, state: dict[str, Any]) -> None:
        restore(self, tensors=tensors, state=state)
        self.outer_steps = 0

    return patch.object(TrainingState, "restore", restore_at_the_first)


def part_without_squares() -> AbstractContextManager[Any]:
    """An aggregator of a shard does not look at the squares that it is given."""
    part_of = aggregator._part_of

    def part_at_rest(form: SetUpAggregator) -> tuple[np.ndarray, OuterState, np.ndarray | None]:
        model, outer, residual = part_of(form)
        return model, OuterState(outer.velocity, np.zeros_like(outer.second), outer.steps), residual

    return patch.object(aggregator, "_part_of", part_at_rest)


def every_lease_at_the_plans_rate() -> AbstractContextManager[Any]:
    """A leader forgets the schedule of its leases."""
    work = Lending._work

    def work_without(self: Lending, *given: Any, **named: Any) -> Any:
        message = work(self, *given, **named)
        object.__setattr__(message, "rate", 0.0)
        return message

    return patch.object(Lending, "_work", work_without)


def every_step_at_the_plans_rate() -> AbstractContextManager[Any]:
    """A leader forgets the schedule of its own step."""
    return patch.object(Plan, "outer_rate_at", lambda self, version: 0.0)


def decayed_twice() -> AbstractContextManager[Any]:
    """A leader takes twice the share of weights away."""
    step_of = TrainingState.step_of

    def step_twice(self: TrainingState, mean: np.ndarray, part: slice) -> tuple[np.ndarray, OuterState]:
        change, outer = step_of(self, mean, part)
        if self._rule.decays:
            rate = (self._spec.plan.outer_rate_at(self.version) or self._rule.rate) * self._rule.weight_decay
            change[: outer.velocity.size] -= np.float32(rate) * self.model[part][: outer.velocity.size]
        return change, outer

    return patch.object(TrainingState, "step_of", step_twice)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutant", "shows", "said"),
    [
        (squares_not_restored, lambda plan: plan.outer in ADAPTIVE, HISTORY),
        (steps_not_restored, lambda plan: plan.outer in ADAPTIVE, HISTORY),
        (part_without_squares, lambda plan: plan.topology == "shard", "on another model than version"),
        (every_lease_at_the_plans_rate, lambda plan: plan.schedule and plan.outer not in ADAPTIVE, HISTORY),
        (every_step_at_the_plans_rate, lambda plan: plan.schedule and plan.outer in ADAPTIVE, HISTORY),
        (decayed_twice, lambda plan: plan.outer == "adamw", HISTORY),
    ],
)
def test_a_bug_of_the_outer_step_is_caught(
    mutant: Callable[[], AbstractContextManager[Any]], shows: Callable[[Plan], bool], said: str
) -> None:
    with mutant():
        for seed in range(10_000 + 1, 10_000 + 1 + SEEDS_MAX):
            if not any(shows(job.spec.plan) for job in case("outer", seed).jobs):
                continue
            try:
                fuzz("outer", seed)
            except Violation as violation:
                if said in str(violation):
                    return
    pytest.fail(f"{mutant.__name__} was not seen in {SEEDS_MAX} seeds")
