"""Two managers and a store that may be away, in seeds: one of them writes, and what was acknowledged stays."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from mutants import OF_STORES

from dst.case import case
from dst.fuzz import CheckedRun, fuzz
from dst.managers.shared_store import SimSeats, SimTenure
from shoal.roles.manager.seat_watch import Seat
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.store.registry import Registry
from shoal.store.seat import Deposed, Seats, Tenure
from shoal.store.sqlite import SqliteDatabase

pytestmark = pytest.mark.timeout(600)

BLOCKS, BLOCK = 4, 10

#: Mutant -> seeds that show it, and a part of what is said then. Several: a change of roles moves the story of a seed,
#: and the store may then be away at another moment than the one that matters.
SHOWN_BY = {
    "drained_manager_takes_jobs": ((16,), "took job-., and is drained"),
    "given_job_keeps_its_term": ((5,), "leads job-. under term . after"),
    "devices_kept_from_their_job": ((5,), "left behind|replaced by a manager that began"),
    "deposed_manager_writes": ((2, 4, 6), "did not move|left behind|its seat has ended"),
    "version_kept_without_the_seat": ((10, 38, 99, 121), "wrote job-., and its seat has ended"),
    "record_kept_without_the_seat": ((70, 238, 261), "wrote job-., and its seat has ended"),
    "seat_ended_without_silence": ((1, 2, 3), "ended the seat of .*, which was well"),
    "seat_ended_as_it_is": ((87, 175), "ended the seat of .*, which was well"),
    "silence_counted_while_unproven": ((173,), "ended the seat of .*, which was well"),
    "silence_counted_while_slow": ((521,), "ended the seat of .*, which was well"),
    "job_taken_from_the_living": ((1, 2, 3), "took job-. from .*, which has a seat"),
    "job_of_another_written": ((32,), "wrote job-., which .* has"),
    "jobs_of_others_taken_for_over": ((27, 28, 31), "did not move|replaced by a manager that began"),
    "appointed_node_not_sent_on": ((881,), "left behind"),
    "leader_sent_to_another_manager": ((112,), "replaced by a manager that began just now"),
    "devices_kept_from_others": ((16, 32, 36), "left behind|did not move|nobody has led"),
    "record_taken_for_kept": ((17, 20, 32, 39), "was used before it was written down"),
    "version_taken_for_kept": ((7, 10, 13, 17), "was called (kept|saved)"),
    "past_not_noticed": ((7, 55), "nobody has led|and its manager has a seat"),
    "terms_do_not_jump": ((6, 7, 38), "was written down after"),
    "submissions_forgotten": ((7, 55, 87), "did not move|nobody has led"),
    "others_do_not_start_over": ((77, 432, 446), "was written down after|was kept; the term is"),
}


class Takeovers:
    """Counts what seeds are to bring about."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def step(self, step: Step) -> None:
        pass

    def mark(self, mark: Mark) -> None:
        if mark.kind == "taken":
            self.seen["takeover"] += 1
        self.seen[f"{mark.kind} {mark.node}"] += 1


def test_seeds_bring_takeovers_about() -> None:
    takeovers = Takeovers()
    cases = [case("managers", seed) for seed in range(60_000 + 1, 60_000 + 13)]
    for what in cases:
        CheckedRun(what, observers=[takeovers]).run()
    assert takeovers.seen["takeover"] >= 6
    assert takeovers.seen["given home"] > 0
    assert takeovers.seen["written home"] > 0
    assert takeovers.seen["written home-2"] > 0
    outages = [outage for what in cases for outage in what.outages]
    assert {outage.is_cut for outage in outages if not outage.slow_factor and not outage.is_read_only} == {False, True}
    assert any(outage.slow_factor for outage in outages)
    assert any(outage.is_read_only for outage in outages)
    assert any(outage.back_s for outage in outages)


def _says(seed: int, said: str) -> bool:
    """Whether a seed fails, and for this reason."""
    try:
        fuzz("managers", 60_000 + seed)
    except Violation as violation:
        return re.search(said, str(violation)) is not None
    return False


@pytest.mark.parametrize("name", sorted(OF_STORES))
def test_a_mutant_of_stores_is_caught(name: str) -> None:
    seeds, said = SHOWN_BY[name]
    with OF_STORES[name]():
        shown = next((seed for seed in seeds if _says(seed, said)), None)
    assert shown is not None, f"none of the seeds {seeds} shows it"
    # The seed fails for the mutant's sake alone.
    fuzz("managers", 60_000 + shown)


def test_the_seats_of_the_simulator_are_those_of_the_database() -> None:
    """The same story told to both: they answer alike."""
    chance = np.random.default_rng(47)
    with tempfile.TemporaryDirectory() as folder:
        database = SqliteDatabase(Path(folder) / "seats.db")
        # The registry makes the tables.
        Registry(database)
        deployed, simulated = Seats(database), SimSeats()
        tenures: list[tuple[Tenure, SimTenure]] = []
        seen: list[Seat] = []
        outcomes: Counter[str] = Counter()
        for number in range(600):
            match chance.integers(4):
                case 0:
                    seats = deployed.look()
                    assert seats == simulated.look()
                    seen.extend(seats)
                case 1 if chance.integers(3) == 0:
                    holder = f"m{chance.integers(3)}/{number}"
                    tenures.append((deployed.open(holder, "a:1"), simulated.open(holder, "a:1")))
                case 2 if tenures and seen:
                    silent = seen[chance.integers(max(0, len(seen) - 6), len(seen))]
                    real, twin = tenures[chance.integers(max(0, len(tenures) - 4), len(tenures))]
                    ended = _ends(deployed, silent, real)
                    assert ended == simulated.end(silent, twin)
                    outcomes["ended" if ended else "not ended"] += 1
                case _ if tenures:
                    real, twin = tenures[chance.integers(max(0, len(tenures) - 4), len(tenures))]
                    proven = _proves(deployed, real)
                    assert proven == simulated.renew(twin, wants=2, starving=1)
                    outcomes["proven" if proven else "deposed"] += 1
                case _:
                    pass
        database.close()
    assert min(outcomes[name] for name in ("ended", "not ended", "proven", "deposed")) > 10


def _proves(seats: Seats, tenure: Tenure) -> bool:
    try:
        seats.renew(tenure, wants=2, starving=1)
    except Deposed:
        return False
    return True


def _ends(seats: Seats, silent: Seat, tenure: Tenure) -> bool:
    try:
        return seats.end(silent, tenure)
    except Deposed:
        return False
