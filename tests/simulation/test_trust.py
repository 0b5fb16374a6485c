"""Deliberate bugs of robust plans must be caught, in seeds that draw them; and seeds before those draw none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dst.fuzz import fuzz
from shoal.compress.sparse import Sparse
from shoal.roles.leader import weighing
from shoal.roles.leader.weighing import ClippedWeighing, NearestWeighing
from shoal.sim.fuzz_case import TRUST_AFTER, fuzz_case
from shoal.sim.invariants import Violation

SEEDS_MAX = 60
HISTORY = "is not what its history says"


def everyone_is_believed() -> AbstractContextManager[Any]:
    """Updates are kept and compared, and then count alike."""

    def alike(gram: np.ndarray, *, liars: int) -> np.ndarray:
        return np.full(len(gram), 1 / len(gram))

    return patch.object(weighing, "nearest_weights", alike)


def nobody_may_lie() -> AbstractContextManager[Any]:
    """The plan's share is not heeded: the farthest devices are among everyone's nearest."""
    return patch.object(weighing, "liars_borne", lambda devices, share: 0)


def late_is_as_good_as_fresh() -> AbstractContextManager[Any]:
    """A late update counts as a fresh one, since its scale is lost on the way to its row."""
    add = NearestWeighing.add

    def add_whole(
        self: NearestWeighing, node: str, update: np.ndarray | Sparse, *, weight: float, scale: float
    ) -> None:
        add(self, node, update, weight=weight, scale=1.0)

    return patch.object(NearestWeighing, "add", add_whole)


def rows_are_not_cleared() -> AbstractContextManager[Any]:
    """Devices of the last version have a voice in the next as well."""
    clear = NearestWeighing.clear

    def forget_the_weight(self: NearestWeighing) -> None:
        rows, examples = dict(self._rows), dict(self._examples)
        clear(self)
        self._rows, self._examples = rows, examples

    return patch.object(NearestWeighing, "clear", forget_the_weight)


def nothing_is_cut() -> AbstractContextManager[Any]:
    """Updates count as far as they go."""
    return patch.object(weighing, "clip_factor", lambda distance, *, radius: 1.0)


def usual_moves_within_a_version() -> AbstractContextManager[Any]:
    """What is usual depends on the order in which updates come."""
    clear = ClippedWeighing.clear

    def clear_and_forget(self: ClippedWeighing) -> None:
        clear(self)
        self._radius = None

    return patch.object(ClippedWeighing, "clear", clear_and_forget)


def cut_towards_nothing() -> AbstractContextManager[Any]:
    """What is cut off is not made up for by the centre."""
    mean = ClippedWeighing.mean

    def without(self: ClippedWeighing) -> Any:
        self._of_centre = 0.0
        return mean(self)

    return patch.object(ClippedWeighing, "mean", without)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutant", "rule"),
    [
        (everyone_is_believed, "nearest"),
        (nobody_may_lie, "nearest"),
        (late_is_as_good_as_fresh, "nearest"),
        (rows_are_not_cleared, "nearest"),
        (nothing_is_cut, "clip"),
        (usual_moves_within_a_version, "clip"),
        (cut_towards_nothing, "clip"),
    ],
)
def test_a_bug_of_a_robust_plan_is_caught(mutant: Callable[[], AbstractContextManager[Any]], rule: str) -> None:
    with mutant():
        for seed in range(TRUST_AFTER + 1, TRUST_AFTER + 1 + SEEDS_MAX):
            if not any(job.spec.plan.believes.rule == rule for job in fuzz_case(seed).jobs):
                continue
            try:
                fuzz(seed)
            except Violation as violation:
                if HISTORY in str(violation):
                    return
    pytest.fail(f"{mutant.__name__} was not seen in {SEEDS_MAX} seeds")


def test_seeds_of_before_draw_no_trust() -> None:
    for seed in (0, 499, 10_001, TRUST_AFTER):
        assert all(job.spec.plan.trust == "identity" for job in fuzz_case(seed).jobs)
    drawn = {job.spec.plan.trust for seed in range(TRUST_AFTER + 1, TRUST_AFTER + 40) for job in fuzz_case(seed).jobs}
    assert {"identity", "robust", "robust(nearest, 35%)", "robust(clip)"} <= drawn
