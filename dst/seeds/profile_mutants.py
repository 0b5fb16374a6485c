"""The deliberate bugs that the tests of a profile must catch, by stories and by seeds."""

from __future__ import annotations

from typing import Any

import pytest

from dst.seeds.mutants import SIMULATION

#: Tests with these words in their names hold deliberate bugs against stories and seeds that must catch them.
MUTANT_TESTS = "bug or mutant or catch or caught"
#: Profile -> the files of these tests.
MUTANT_FILES = {
    "outer": ("outer_steps",),
    "robust": ("trust", "lies"),
    "robust-parts": ("trust", "lies"),
    "private": ("private",),
    "private-shapes": ("private_shapes",),
    "sealed": ("sealed", "sealed_private", "sealed_shapes", "cut_unseen", "helped", "greedy"),
    "sealed-words": ("sealed",),
    "sealed-led": ("sealed",),
    "sealed-private": ("sealed_private",),
    "sealed-shapes": ("sealed_shapes",),
    "sealed-clip": ("cut_unseen",),
    "helper": ("helped",),
    "check-in": ("mutants",),
    "managers": ("shared_store",),
    "hubs": ("hubs",),
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


def hunt_trust_mutants(profile: str) -> dict[str, Any]:
    """Run the tests of a profile that hold mutants."""
    outcomes = _Outcomes()
    files = [str(SIMULATION / f"test_{name}.py") for name in MUTANT_FILES[profile]]
    words = "check_ins_is_caught" if profile == "check-in" else MUTANT_TESTS
    status = pytest.main(["-q", "-p", "no:cacheprovider", "-k", words, *files], plugins=[outcomes])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise SystemExit("the mutants could not be played: see above")
    caught = len(outcomes.ran) - len(outcomes.failed)
    return {"mutants": len(outcomes.ran), "mutants_caught": caught, "mutants_not_caught": outcomes.failed}
