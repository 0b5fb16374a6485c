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
from dst.toy_task import LAYOUT
from shoal.learning.clipping import clipped_mean
from shoal.learning.decay_skips import DecaySkips
from shoal.learning.outer import OuterState
from shoal.learning.outer_rule import ADAPTIVE
from shoal.plan import Plan
from shoal.roles.aggregator import aggregator
from shoal.roles.leader import training_state
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


def mean_not_clipped() -> AbstractContextManager[Any]:
    """A leader takes the mean as it came."""
    return patch.object(training_state, "clipped_mean", lambda mean, **named: mean)


def clipped_with_the_buffers() -> AbstractContextManager[Any]:
    """Running means are scaled with the gradient."""
    whole = {"parameters_size": LAYOUT.size}
    return patch.object(training_state, "clipped_mean", lambda mean, **named: clipped_mean(mean, **(named | whole)))


def clipped_at_the_plans_rate() -> AbstractContextManager[Any]:
    """A leader forgets that a schedule changed the rate of the leases, and so the gradient's length."""
    rate = Plan().learning_rate
    return patch.object(
        training_state, "clipped_mean", lambda mean, **named: clipped_mean(mean, **named | {"rate": rate})
    )


def every_tensor_decays() -> AbstractContextManager[Any]:
    """A leader decays what the plan skips."""
    return patch.object(DecaySkips, "has", lambda self, entry: False)


def parts_step_by_themselves() -> AbstractContextManager[Any]:
    """Aggregators of a shard take the step of their part, and know neither the clip nor what does not decay."""
    return patch.object(Plan, "is_stepped_by_leader", property(lambda self: False))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutant", "shows"),
    [
        (mean_not_clipped, lambda plan: plan.clip_mean),
        (clipped_with_the_buffers, lambda plan: plan.clip_mean),
        (clipped_at_the_plans_rate, lambda plan: plan.clip_mean and plan.schedule and plan.outer not in ADAPTIVE),
        (every_tensor_decays, lambda plan: plan.decay_skips),
        (parts_step_by_themselves, lambda plan: plan.topology == "shard" and plan.clip_mean),
    ],
)
def test_a_bug_of_the_clip_or_the_groups_is_caught(
    mutant: Callable[[], AbstractContextManager[Any]], shows: Callable[[Plan], bool]
) -> None:
    with mutant():
        for seed in range(SEEDS_MAX):
            if not any(shows(job.spec.plan) for job in case("outer-clip", seed).jobs):
                continue
            try:
                fuzz("outer-clip", seed)
            except Violation as violation:
                if HISTORY in str(violation) or "on another model than version" in str(violation):
                    return
    pytest.fail(f"{mutant.__name__} was not seen in {SEEDS_MAX} seeds")


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
