"""Seeded disasters: whatever breaks, history stays exact, what was acknowledged survives, and every job ends."""

from __future__ import annotations

from collections import Counter

import pytest

from dst.case import case
from dst.fuzz import CheckedRun
from shoal.roles.actions import Send, Train
from shoal.sim.faults import HOME, Crash, Deaf, Mute, PartitionFault
from shoal.sim.observe import Mark, Step
from shoal.wire.messages import ReduceResult

SEEDS = 300
BLOCK = 30
#: Of those that draw the leader's step.
OUTER_SEEDS = 90
OUTER_BLOCK = 10

#: Seeds beyond these that once broke an invariant, or seemed to.
KEPT = (
    651,
    904,
    1084,
    1724,
    1822,
    1933,
    8715,
    5259,
    1238,
    6071,
    628,
    5790,
    6149,
    6580,
    6658,
    8074,
    8522,
    9088,
    9327,
    718,
    2381,
    385,
    64131,
    64153,
    65329,
    65700,
    68830,
    69947,
)


def test_a_job_below_its_least_number_is_helped_out_by_another() -> None:
    """Seed 5117, as it was before the manager's cable was cut in it too."""
    CheckedRun(case("plain", 5117, has_cuts=False)).run()


def test_seeds_cut_the_managers_cable_in_every_way() -> None:
    drawn = [set(case("plain", seed).faults) - set(case("plain", seed, has_cuts=False).faults) for seed in range(300)]
    cuts = [fault for faults in drawn for fault in faults if not isinstance(fault, Crash)]
    assert len(cuts) > 30
    assert {type(fault) for fault in cuts} == {PartitionFault, Mute, Deaf}
    assert any(fault.who == HOME for fault in cuts if isinstance(fault, PartitionFault))
    assert any(fault.who.has_workers for fault in cuts)
    assert {getattr(fault, "for_s", 0.0) for fault in cuts} >= {5.0, 12.0, 90.0}


def test_seeds_are_of_every_shape() -> None:
    shapes = Counter(case("plain", seed).topology for seed in range(100))
    assert shapes["star"] > 30
    assert shapes["tree"] > 15
    assert shapes["shard"] > 15


class Formations:
    """What comes about of formations: sums that were sent, trainings on values that came by aggregators."""

    def __init__(self) -> None:
        self.sums = 0
        self.staged = 0

    def step(self, step: Step) -> None:
        for action in step.actions:
            self.sums += isinstance(action, Send) and isinstance(action.message, ReduceResult)
            self.staged += isinstance(action, Train) and action.staged

    def mark(self, mark: Mark) -> None:
        pass


@pytest.mark.parametrize("shape", ["tree", "shard"])
def test_hunts_see_formations_at_work(shape: str) -> None:
    seen = Formations()
    seeds = [seed for seed in range(40) if case("plain", seed).topology == shape]
    for seed in seeds[:4]:
        CheckedRun(case("plain", seed), observers=[seen]).run()
    assert seen.sums > 20
    assert seen.staged > 20
