"""Blocks in seeded disasters: devices, hubs and leaders die while they are out, and each batch counts once."""

from __future__ import annotations

import re

import pytest
from mutants import OF_BLOCKS

from dst.block_oracle import BlockOracle
from dst.case import FuzzCase, case
from dst.fuzz import CheckedRun, fuzz
from shoal.sim.faults import Crash, Duplicate
from shoal.sim.invariants import Violation

GROUPS = 6
GROUP = 10

#: Mutant -> seeds that show it, counted from the first with blocks, and what is said then.
SHOWN_BY = {
    "end_of_a_closed_block_merged": ((5, 7), "is not what its history says"),
    "lease_of_a_block_sublet_twice": ((1, 4), "was given a moment ago|whose update it has from another"),
    "update_outlives_its_hub": ((8, 12), "sent Offer of lease .* sublet it"),
    "block_of_an_older_term_accepted": ((19, 69), "is not what its history says"),
    "returned_batches_forgotten": ((12, 4), "has enough workers and did not move"),
    "returned_batches_taken_for_trained": ((5, 4), "no update ever came for lease"),
    "late_update_in_the_sum": ((5, 8), "is not the mean of"),
    "block_outlives_its_hub": ((6, 12), "was lost and kept lease"),
}


def _asks(what: FuzzCase) -> bool:
    return any(job.spec.plan.work == "blocks" for job in what.jobs)


def test_seeds_ask_for_blocks_and_everything_befalls_them() -> None:
    cases = [case("blocks", seed) for seed in range(160_000 + 1, 160_000 + 61)]
    assert sum(_asks(what) for what in cases) > 40
    assert all(any(build.is_hub for build in what.builds) for what in cases)
    assert sum(any(isinstance(fault, Duplicate) for fault in what.faults) for what in cases) > 20
    assert sum(any(isinstance(fault, Crash) for fault in what.faults) for what in cases) > 40


def test_seeds_have_blocks_merged_taken_back_and_sublet_again() -> None:
    seen = dict.fromkeys(("merged", "taken_back", "returned", "sublet_again", "refused"), 0)
    for seed in (5, 6, 12):
        checked = CheckedRun(case("blocks", 160_000 + seed))
        checked.run()
        (oracle,) = (each for each in checked.world.observers if isinstance(each, BlockOracle))
        seen = {what: count + getattr(oracle, what) for what, count in seen.items()}
    assert seen["merged"] > 50
    assert all(seen.values()), seen


def _says(seed: int, said: str) -> bool:
    """Whether a seed fails, and for this reason."""
    try:
        fuzz("blocks", 160_000 + seed)
    except Violation as violation:
        return re.search(said, str(violation)) is not None
    return False


@pytest.mark.parametrize("name", sorted(OF_BLOCKS))
def test_a_mutant_of_blocks_is_caught(name: str) -> None:
    seeds, said = SHOWN_BY[name]
    with OF_BLOCKS[name]():
        shown = next((seed for seed in seeds if _says(seed, said)), None)
    assert shown is not None, f"none of the seeds {seeds} shows it"
    # The seed fails for the mutant's sake alone.
    fuzz("blocks", 160_000 + shown)


def test_a_history_that_is_adopted_and_not_handed_over_is_gone_on_from() -> None:
    """The newest leader hands over, the manager adopts an older one's history, and that one does not hand over in
    time."""
    fuzz("blocks", 161_010)
