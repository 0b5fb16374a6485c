"""Hubs in seeded disasters: they die, come late and are slow, and no batch is lost or counted twice for it."""

from __future__ import annotations

import re

import pytest
from mutants import OF_HUBS

from dst.case import FuzzCase, case
from dst.fuzz import CheckedRun, fuzz
from dst.hub_oracle import HubOracle
from shoal.sim.faults import Crash, Slow, SlowLink
from shoal.sim.invariants import Violation

BLOCKS = 6
BLOCK = 10

#: Mutant -> seeds that show it, counted from the first with hubs, and what is said then.
SHOWN_BY = {
    "hub_taken_for_a_worker": ((2, 3, 5), "is a hub, and was lent a lease"),
    "hub_given_a_workers_place": ((1, 2, 3), "was made a worker of"),
    "hubs_count_as_workers": ((2, 5, 6), "was lent a lease of job-. while . of . workers were there"),
    "hubs_fill_a_job": ((8, 14, 6), "has enough workers and did not move"),
    "dead_hub_lent_by": ((63, 82, 76), "was lent a lease by formation ., which lost"),
    "dead_hub_waited_for": ((15, 28, 29), "has enough workers and did not move"),
    "hub_left_behind": ((1, 24, 43), "was left behind in a job that is over|, which is finished"),
}


def _hubs(what: FuzzCase) -> int:
    return sum(build.is_hub for build in what.builds)


def test_seeds_have_hubs_and_everything_befalls_them() -> None:
    cases = [case("hubs", seed) for seed in range(150_000 + 1, 150_000 + 61)]
    assert {_hubs(what) for what in cases} == {1, 2, 3}
    plans = [job.spec.plan for what in cases for job in what.jobs]
    trusts = [plan.believes for plan in plans if plan.topology == "tree"]
    assert sum(trust.sealed is not None for trust in trusts) > 5
    assert sum(trust.rule == "clip" for trust in trusts) > 5
    assert {plan.pace for plan in plans if plan.topology == "tree"} == {"sync", "buffered", "async"}
    late, killed, slow = 0, 0, 0
    for what in cases:
        first = len(what.builds) - _hubs(what) + 1
        of_hubs = [fault for fault in what.faults if getattr(fault.who.parts[0], "first", 0) >= first]
        crashes = [fault for fault in of_hubs if isinstance(fault, Crash)]
        late += sum(getattr(fault.at, "s", 1.0) < 0.1 for fault in crashes)
        killed += sum(getattr(fault.at, "s", 1.0) > 0.1 for fault in crashes)
        slow += sum(isinstance(fault, Slow | SlowLink) for fault in of_hubs)
    assert min(late, killed, slow) > 5


def test_seeds_have_hubs_sum_up() -> None:
    set_up = 0
    for seed in range(150_000 + 1, 150_000 + 7):
        checked = CheckedRun(case("hubs", seed))
        checked.run()
        set_up += sum(each.set_up > 0 for each in checked.world.observers if isinstance(each, HubOracle))
    assert set_up >= 3


def _says(seed: int, said: str) -> bool:
    """Whether a seed fails, and for this reason."""
    try:
        fuzz("hubs", 150_000 + seed)
    except Violation as violation:
        return re.search(said, str(violation)) is not None
    return False


@pytest.mark.parametrize("name", sorted(OF_HUBS))
def test_a_mutant_of_hubs_is_caught(name: str) -> None:
    seeds, said = SHOWN_BY[name]
    with OF_HUBS[name]():
        shown = next((seed for seed in seeds if _says(seed, said)), None)
    assert shown is not None, f"none of the seeds {seeds} shows it"
    # The seed fails for the mutant's sake alone.
    fuzz("hubs", 150_000 + shown)
