"""Seeded disasters: whatever breaks, history stays exact, what was acknowledged survives, and every job ends."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from dst.fuzz import CheckedRun, fuzz
from shoal.learning.outer_rule import ADAPTIVE
from shoal.roles.actions import Send, Train
from shoal.sim.faults import HOME, Crash, Deaf, Mute, PartitionFault
from shoal.sim.fuzz_case import OUTER_AFTER, fuzz_case
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


@pytest.mark.parametrize("block", range(SEEDS // BLOCK))
def test_no_invariant_breaks(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        try:
            fuzz(seed)
        except BaseException as error:
            error.add_note(f"python -m benchmarks.protocol_seeds --first {seed} --count 1 --trace {seed}.jsonl")
            raise


@pytest.mark.parametrize("block", range(OUTER_SEEDS // OUTER_BLOCK))
def test_no_invariant_breaks_by_an_adaptive_step_or_a_schedule(block: int) -> None:
    first = OUTER_AFTER + 1 + block * OUTER_BLOCK
    for seed in range(first, first + OUTER_BLOCK):
        try:
            fuzz(seed)
        except BaseException as error:
            error.add_note(f"python -m benchmarks.protocol_seeds --first {seed} --count 1 --trace {seed}.jsonl")
            raise


def test_seeds_above_a_number_draw_every_outer_step_and_those_below_none() -> None:
    before = [job.spec.plan for seed in range(200) for job in fuzz_case(seed).jobs]
    assert {plan.outer for plan in before} == {"sgd", "nesterov"}
    assert not any(plan.schedule for plan in before)
    seeds = range(OUTER_AFTER + 1, OUTER_AFTER + 1 + OUTER_SEEDS)
    after = [job.spec.plan for seed in seeds for job in fuzz_case(seed).jobs]
    assert {(plan.topology, plan.outer) for plan in after} >= set(itertools.product(("star", "shard"), ADAPTIVE))
    assert {bool(plan.schedule) for plan in after if plan.outer in ADAPTIVE} == {False, True}
    assert {plan.pace for plan in after if plan.outer in ADAPTIVE} == {"sync", "buffered", "async"}


@pytest.mark.parametrize("seed", KEPT)
def test_what_was_mended_stays_so(seed: int) -> None:
    fuzz(seed)


def test_a_job_below_its_least_number_is_helped_out_by_another() -> None:
    """Seed 5117, as it was before the manager's cable was cut in it too."""
    CheckedRun(fuzz_case(5117, has_cuts=False)).run()


def test_seeds_cut_the_managers_cable_in_every_way() -> None:
    drawn = [set(fuzz_case(seed).faults) - set(fuzz_case(seed, has_cuts=False).faults) for seed in range(300)]
    cuts = [fault for faults in drawn for fault in faults if not isinstance(fault, Crash)]
    assert len(cuts) > 30
    assert {type(fault) for fault in cuts} == {PartitionFault, Mute, Deaf}
    assert any(fault.who == HOME for fault in cuts if isinstance(fault, PartitionFault))
    assert any(fault.who.has_workers for fault in cuts)
    assert {getattr(fault, "for_s", 0.0) for fault in cuts} >= {5.0, 12.0, 90.0}


def test_seeds_are_of_every_shape() -> None:
    shapes = Counter(fuzz_case(seed).topology for seed in range(100))
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
    seeds = [seed for seed in range(40) if fuzz_case(seed).topology == shape]
    for seed in seeds[:4]:
        CheckedRun(fuzz_case(seed), observers=[seen]).run()
    assert seen.sums > 20
    assert seen.staged > 20
