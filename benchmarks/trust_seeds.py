"""The seeds whose jobs draw trust: a spread over every range of ``fuzz_case`` that draws robust, private or sealed
plans, and the deliberate bugs that the tests of these plans must catch.

    python -m benchmarks.protocol_seeds --trust [--quick] [--count N] --json

The first seeds of a longer spread are those of a shorter one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from benchmarks.common import say
from benchmarks.mutant_seeds import SIMULATION, play, processes
from shoal.sim.fuzz_case import (
    CHECK_IN_AFTER,
    CUT_UNSEEN_AFTER,
    HELPED_AFTER,
    HUBS_AFTER,
    HUBS_UNTIL,
    LED_AFTER,
    LED_UNTIL,
    PARTS_AFTER,
    PRIVATE_AFTER,
    PRIVATE_SHAPES_AFTER,
    SEALED_AFTER,
    SEALED_SHAPES_AFTER,
    SHARES_AFTER,
    STORES_AFTER,
    TRUST_AFTER,
    WORDS_AFTER,
    fuzz_case,
)

#: What a range draws -> the number after which it begins, and its last.
RANGES = {
    "robust": (TRUST_AFTER, PRIVATE_AFTER),
    "private": (PRIVATE_AFTER, SEALED_AFTER),
    "sealed": (SEALED_AFTER, WORDS_AFTER),
    "sealed words": (WORDS_AFTER, CHECK_IN_AFTER),
    "robust, check-in": (CHECK_IN_AFTER, STORES_AFTER),
    "robust, standby": (STORES_AFTER, SHARES_AFTER),
    "sealed, private": (SHARES_AFTER, SEALED_SHAPES_AFTER),
    "sealed shapes": (SEALED_SHAPES_AFTER, LED_AFTER),
    "sealed places": (LED_AFTER, LED_UNTIL),
    "robust parts": (PARTS_AFTER, PRIVATE_SHAPES_AFTER),
    "private shapes": (PRIVATE_SHAPES_AFTER, CUT_UNSEEN_AFTER),
    "cut unseen": (CUT_UNSEEN_AFTER, HELPED_AFTER),
    "helped": (HELPED_AFTER, HUBS_AFTER),
    "hubs": (HUBS_AFTER, HUBS_UNTIL),
}

#: Tests with these words in their names hold deliberate bugs against stories and seeds that must catch them.
MUTANT_TESTS = "bug or mutant or catch or caught"
MUTANT_FILES = (
    "trust",
    "lies",
    "private",
    "private_shapes",
    "sealed",
    "sealed_private",
    "sealed_shapes",
    "cut_unseen",
    "helped",
    "hubs",
)

#: Violations told in full.
TOLD_MAX = 20

#: Seeds of a range are taken so far apart, round and round: no range is a multiple of it, so each seed comes once.
STRIDE = 6_181


def trusts_of(seed: int) -> set[str]:
    """The trust of a seed's jobs without their numbers, such as ``private + sealed``."""
    words = (re.findall("private|robust|sealed", job.spec.plan.trust) for job in fuzz_case(seed).jobs)
    return {" + ".join(sorted(found)) for found in words if found}


def _drawn(after: int, last: int) -> Iterator[int]:
    width = last - after
    seeds = (after + 1 + number * STRIDE % width for number in range(width))
    return (seed for seed in seeds if trusts_of(seed))


def trust_spread(count: int) -> dict[str, list[int]]:
    """So many seeds or a few more, as many of each range."""
    each = -(-count // len(RANGES))
    return {name: list(islice(_drawn(*bounds), each)) for name, bounds in RANGES.items()}


def play_trust(count: int) -> dict[str, Any]:
    """Play a spread on all cores."""
    spread = trust_spread(count)
    wrong: dict[int, str] = {}
    with processes() as pool:
        for name, seeds in spread.items():
            reasons = pool.map(play, seeds, chunksize=10)
            found = {seed: reason for seed, reason in zip(seeds, reasons, strict=True) if reason}
            say(f"{name}: {len(seeds)} seeds, {len(found)} violations")
            wrong |= found
    for seed, reason in sorted(wrong.items())[:TOLD_MAX]:
        again = f"python -m benchmarks.protocol_seeds --first {seed} --count 1 --trace {seed}.jsonl"
        say(f"seed {seed}: {reason}\n  {again}")
    played = [seed for seeds in spread.values() for seed in seeds]
    return {
        "seeds": len(played),
        "seeds_of_range": {name: len(seeds) for name, seeds in spread.items()},
        "seeds_of_trust": dict(sorted(Counter(trust for seed in played for trust in trusts_of(seed)).items())),
        "violations": len(wrong),
        "failing": sorted(wrong)[:TOLD_MAX],
    }


class _Outcomes:
    """A plugin of pytest: which tests ran, and which failed."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.ran.append(report.nodeid)
        if report.failed:
            self.failed.append(report.nodeid)


def hunt_trust_mutants() -> dict[str, Any]:
    outcomes = _Outcomes()
    files = [str(SIMULATION / f"test_{name}.py") for name in MUTANT_FILES]
    status = pytest.main(["-q", "-p", "no:cacheprovider", "-k", MUTANT_TESTS, *files], plugins=[outcomes])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit("the mutants could not be played: see above")
    caught = len(outcomes.ran) - len(outcomes.failed)
    return {"mutants": len(outcomes.ran), "mutants_caught": caught, "mutants_not_caught": outcomes.failed}
