"""Deliberate bugs of robust plans must be caught, in seeds that draw them; and seeds before those draw none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dst.case import case
from dst.fuzz import fuzz
from shoal.compress.sparse import Sparse
from shoal.roles.aggregator.aggregator import Aggregator
from shoal.roles.leader import weighing
from shoal.roles.leader.gathering.comparing import ComparedRound
from shoal.roles.leader.weighing import ClippedWeighing, NearestWeighing, WeightsGiven
from shoal.sim.invariants import Violation
from shoal.wire.messages import Reduce, RelayModel

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


def summed_up_before_it_is_weighed() -> AbstractContextManager[Any]:
    """An aggregator sums its pieces up when it is to compare them: by their examples."""
    on_reduce = Aggregator._on_reduce

    def sum_at_once(self: Aggregator, count: Reduce) -> None:
        on_reduce(self, count)
        if count.weigh:
            on_reduce(self, replace(count, weigh=""))

    return patch.object(Aggregator, "_on_reduce", sum_at_once)


def one_part_is_left_out() -> AbstractContextManager[Any]:
    """The leader weighs by the products of all parts but the first."""

    def total(self: ComparedRound) -> np.ndarray:
        return np.asarray(
            sum(self.parts[node] for node in sorted(self.parts)[1:]) + 0 * next(iter(self.parts.values()))
        )

    return patch.object(ComparedRound, "total", total)


def weights_stay_at_home() -> AbstractContextManager[Any]:
    """The leader works weights out, and aggregators sum up by examples."""
    weigh = NearestWeighing.weigh

    def alike(self: NearestWeighing, nodes: Any, examples: Any, products: np.ndarray) -> WeightsGiven:
        return replace(weigh(self, nodes, examples, products), voices=(1.0,) * len(examples))

    return patch.object(NearestWeighing, "weigh", alike)


def scales_of_another_order() -> AbstractContextManager[Any]:
    """The products of a part are in the order in which its pieces came."""
    compare = Aggregator._compare

    def as_they_came(self: Aggregator, count: Reduce) -> None:
        came = (
            sorted(count.leases, key=list(self._tray).index) if set(count.leases) <= set(self._tray) else count.leases
        )
        with patch.object(self, "_tray", {old: self._tray[new] for old, new in zip(count.leases, came, strict=True)}):
            compare(self, count)

    return patch.object(Aggregator, "_compare", as_they_came)


def a_part_is_cut_towards_nothing() -> AbstractContextManager[Any]:
    """An aggregator does not make up for what it cut off by the centre."""
    on_reduce = Aggregator._on_reduce

    def without(self: Aggregator, count: Reduce) -> None:
        self._measured = {lease: np.zeros_like(centre) for lease, centre in self._measured.items()}
        on_reduce(self, count)

    return patch.object(Aggregator, "_on_reduce", without)


def a_part_has_an_old_centre() -> AbstractContextManager[Any]:
    """An aggregator cuts pieces back to the mean that it was set up with."""
    reduce = Aggregator._reduce

    def and_keep(self: Aggregator, count: Reduce) -> None:
        centre = self._centre
        reduce(self, count)
        self._centre = centre

    return patch.object(Aggregator, "_reduce", and_keep)


def a_tree_is_not_told_of_a_new_centre() -> AbstractContextManager[Any]:
    """An aggregator of a tree measures from where it began."""
    on_relay_model = Aggregator._on_relay_model

    def as_before(self: Aggregator, passed: RelayModel) -> None:
        centre = self._centre
        on_relay_model(self, passed)
        self._centre = centre

    return patch.object(Aggregator, "_on_relay_model", as_before)


def nothing_is_cut_in_a_tree() -> AbstractContextManager[Any]:
    """The leader of a tree hears how far updates are, and has all of them counted whole."""
    weigh = ClippedWeighing.weigh

    def whole(self: ClippedWeighing, nodes: Any, examples: Any, products: np.ndarray) -> WeightsGiven:
        verdict = weigh(self, nodes, examples, products)
        return replace(verdict, kept=(1.0,) * len(verdict.kept))

    return patch.object(ClippedWeighing, "weigh", whole)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutant", "rule", "said"),
    [
        (a_tree_is_not_told_of_a_new_centre, "clip", "is not their mean"),
        (nothing_is_cut_in_a_tree, "clip", "of its way"),
        (summed_up_before_it_is_weighed, "nearest", "is not their mean"),
        (one_part_is_left_out, "nearest", "which is not what whole updates come to"),
        (weights_stay_at_home, "nearest", "which is not what whole updates come to"),
        (scales_of_another_order, "nearest", "which is not what whole updates come to"),
        (one_part_is_left_out, "clip", HISTORY),
        (a_part_is_cut_towards_nothing, "clip", "is not their mean"),
        (a_part_has_an_old_centre, "clip", "is not their mean"),
    ],
)
def test_a_bug_of_a_robust_formation_is_caught(
    mutant: Callable[[], AbstractContextManager[Any]], rule: str, said: str
) -> None:
    for seed in range(120_000 + 1, 120_000 + 1 + SEEDS_MAX):
        if not any(job.spec.plan.believes.rule == rule for job in case("robust-parts", seed).jobs):
            continue
        with mutant():
            try:
                fuzz("robust-parts", seed)
                continue
            except Violation as violation:
                if said not in str(violation):
                    continue
        # The seed fails for the mutant's sake alone.
        fuzz("robust-parts", seed)
        return
    pytest.fail(f"{mutant.__name__} was not seen in {SEEDS_MAX} seeds")


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
        for seed in range(20_000 + 1, 20_000 + 1 + SEEDS_MAX):
            if not any(job.spec.plan.believes.rule == rule for job in case("robust", seed).jobs):
                continue
            try:
                fuzz("robust", seed)
            except Violation as violation:
                if HISTORY in str(violation):
                    return
    pytest.fail(f"{mutant.__name__} was not seen in {SEEDS_MAX} seeds")
