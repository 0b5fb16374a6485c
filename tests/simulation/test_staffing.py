"""Jobs that not every device can prepare, in seeds: none fails that a device could prepare, none holds devices that it
cannot begin with while another could. Deliberate bugs are caught."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from unittest.mock import patch

import pytest

from dst.staffing import play_staffing, staffing_case
from shoal.roles.leader import workers
from shoal.roles.manager.cluster_state import JobRecord, NodeRecord
from shoal.roles.manager.staffing import Staffing, _Spare
from shoal.sim.invariants import Violation

pytestmark = pytest.mark.timeout(600)

SEEDS = 12


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_seed(seed: int) -> None:
    play_staffing(seed)


def test_seeds_have_jobs_of_every_kind() -> None:
    kinds = set()
    for seed in range(SEEDS):
        what = staffing_case(seed)
        for job in what.jobs:
            able = len(what.builds) - len(job.unable)
            kinds.add("none" if not able else "all" if not job.unable else "few" if able < 2 else "some")
    assert kinds >= {"none", "all", "some"}


def fails_by_those_that_failed() -> AbstractContextManager[object]:
    """A job fails once all that tried it failed, whoever has not tried it."""
    possible = Staffing._possible

    def tried(self: Staffing, record: JobRecord) -> Iterator[NodeRecord]:
        return (node for node in possible(self, record) if node.node in record.unprepared)

    return patch.object(Staffing, "_possible", tried)


def holds_what_it_cannot_begin_with() -> AbstractContextManager[object]:
    """A job below its least number keeps what it has, whoever could begin with it."""
    spare = Staffing._spare

    def keep(self: Staffing, record: JobRecord, first: JobRecord | None) -> _Spare:
        return _Spare() if self._lacking(record) else spare(self, record, first)

    return patch.object(Staffing, "_spare", keep)


def never_lets_go() -> AbstractContextManager[object]:
    """A device that cannot prepare its job tries for ever."""
    return patch.object(workers, "PREPARE_TRIES", 10**9)


#: Mutant -> a seed that catches it, and a part of what is said of it.
MUTANTS = {
    fails_by_those_that_failed: (0, "failed although"),
    holds_what_it_cannot_begin_with: (2, "cannot begin and holds"),
    never_lets_go: (1, "no device can prepare"),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_deliberate_bug_is_caught(mutant: object) -> None:
    seed, said = MUTANTS[mutant]  # type: ignore[index]
    with mutant(), pytest.raises(Violation, match=said):  # type: ignore[operator]
        play_staffing(seed)
