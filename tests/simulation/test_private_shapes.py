"""Deliberate bugs of private jobs whose updates meet in aggregators must be caught, in seeds that draw them; and seeds
before those draw none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dst.case import case
from dst.fuzz import CheckedRun, fuzz
from shoal.plan import Plan
from shoal.roles.aggregator.aggregator import Aggregator
from shoal.roles.leader.gathering.formation import ArrivedUpdate
from shoal.roles.leader.gathering.formations import Formations
from shoal.roles.leader.gathering.private_sum import PrivateSum
from shoal.roles.manager.failover import Failover
from shoal.roles.worker.participation import Participation
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.sim.world import World
from shoal.wire.messages import Checkpoint, ReduceResult

SEEDS_MAX = 60
HISTORY = "is not what its history says"


def aggregators_take_the_step() -> AbstractContextManager[Any]:
    """Aggregators of a shard move their parts by sums without noise, and give them out."""
    return patch.object(Plan, "is_stepped_by_leader", property(lambda self: self.believes.sealed is not None))


def no_noise_for_sums() -> AbstractContextManager[Any]:
    """A version that came by aggregators is taken for one that has noise already."""
    take, noise, clear = PrivateSum.take, PrivateSum._noise, PrivateSum.clear
    summed: set[int] = set()

    def note(self: PrivateSum, mean: np.ndarray, nodes: Sequence[str], *, weight: float) -> None:
        summed.add(id(self))
        take(self, mean, nodes, weight=weight)

    def forget(self: PrivateSum) -> None:
        summed.discard(id(self))
        clear(self)

    return patch.multiple(
        PrivateSum,
        take=note,
        clear=forget,
        _noise=lambda self: (0.0 if id(self) in summed else 1.0) * noise(self),
    )


def noise_for_each_sum() -> AbstractContextManager[Any]:
    """Noise is added to each sum that comes, and to the version."""
    take = PrivateSum.take

    def with_noise(self: PrivateSum, mean: np.ndarray, nodes: Sequence[str], *, weight: float) -> None:
        take(self, mean + self._noise() / np.float32(len(nodes)), nodes, weight=weight)

    return patch.object(PrivateSum, "take", with_noise)


def aggregators_add_noise() -> AbstractContextManager[Any]:
    """Each aggregator adds noise of its own to its sum."""
    written = Aggregator._written

    def noisy(self: Aggregator, mean: np.ndarray) -> dict[str, np.ndarray]:
        drawn = np.random.default_rng(self.formation).normal(scale=0.01, size=mean.size)
        return written(self, mean + drawn.astype(np.float32))

    return patch.object(Aggregator, "_written", noisy)


def the_same_noise_after_a_failover() -> AbstractContextManager[Any]:
    """What noise is drawn from does not depend on the term."""
    seed = World.noise_seed
    return patch.object(World, "noise_seed", lambda self, job, term: seed(self, job, 1))


def weighed_by_examples() -> AbstractContextManager[Any]:
    """A device with many examples counts for more in a sum of aggregators than one device may."""

    def by_examples(self: Formations, report: ArrivedUpdate) -> float:
        return float(report.update.examples)

    return patch.object(Formations, "_weight_of", by_examples)


def pieces_leave_before_they_are_counted() -> AbstractContextManager[Any]:
    """What goes to an aggregator does not wait for the device's disk."""
    return patch.object(Participation, "is_counted", lambda self, work, *, group=0: True)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("mutant", "told"),
    [
        (aggregators_take_the_step, "on another model than version"),
        (no_noise_for_sums, HISTORY),
        (noise_for_each_sum, f"{HISTORY}|noise was drawn"),
        (aggregators_add_noise, "is not their mean"),
        (the_same_noise_after_a_failover, "was another's before"),
        (weighed_by_examples, HISTORY),
        (pieces_leave_before_they_are_counted, "was not counted"),
    ],
)
def test_a_bug_of_a_private_shape_is_caught(mutant: Callable[[], AbstractContextManager[Any]], told: str) -> None:
    with mutant():
        for seed in range(130_000 + 1, 130_000 + 1 + SEEDS_MAX):
            try:
                fuzz("private-shapes", seed)
            except Exception as error:
                if any(each in str(error) for each in told.split("|")):
                    return
                if isinstance(error, Violation):
                    continue
                raise
    pytest.fail(f"{mutant.__name__} was not seen in {SEEDS_MAX} seeds")


class _Sums:
    """Counts what aggregators sent."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def step(self, step: Step) -> None:
        if step.role == "aggregator":
            self.kinds += [
                step.job
                for action in step.actions
                if isinstance(getattr(action, "message", None), ReduceResult) and action.message.leases  # type: ignore[union-attr]
            ]

    def mark(self, mark: Mark) -> None:
        pass


def test_seeds_bring_updates_to_aggregators() -> None:
    sums = _Sums()
    for seed in SEEDS[:4]:
        CheckedRun(case("private-shapes", seed), observers=[sums]).run()
    assert len(sums.kinds) >= 8


SEEDS = [130_000 + number for number in range(1, 9)]


def kept_while_an_older_leader_is_heard() -> AbstractContextManager[Any]:
    """The newest leader's last version ends the job before the manager has decided whose history it keeps."""
    on_checkpoint = Failover.on_checkpoint

    def keep(self: Failover, sender: str, checkpoint: Checkpoint) -> None:
        record = self._cluster.jobs[checkpoint.job]
        claims, record.claims = record.claims, {}
        on_checkpoint(self, sender, checkpoint)
        record.claims = claims

    return patch.object(Failover, "on_checkpoint", keep)


#: Devices that come back from a cut are spent: the newest leader, with one worker, ends the job while another is heard.
SEED_OF_A_CUT = 130_000 + 2503


def test_a_job_does_not_end_while_an_older_leader_is_heard_out() -> None:
    fuzz("private-shapes", SEED_OF_A_CUT)
    with kept_while_an_older_leader_is_heard(), pytest.raises(Violation, match="all of it was discarded for what 1"):
        fuzz("private-shapes", SEED_OF_A_CUT)
