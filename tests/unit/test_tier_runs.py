"""A tier names checks that exist, reaches every folder of tests, and an alarm fails only the night's run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import lanes  # noqa: E402
import tasks  # noqa: E402
import tier_runs  # noqa: E402
import timings  # noqa: E402
from tiers import TIERS  # noqa: E402

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("few_plugins")]


def test_every_tier_is_a_task_and_every_check_of_it_too() -> None:
    checks = {tier_runs.FIRST_CHECK, *tier_runs.QUICK_CHECKS}
    for tier in TIERS:
        assert {tier, *checks, *tier_runs.SLOW_CHECKS[tier]} <= set(tasks.TASKS)


def test_no_tier_checks_less_than_the_one_before() -> None:
    gate, full, nightly = (set(tier_runs.SLOW_CHECKS[tier]) for tier in TIERS)
    assert gate <= full <= nightly


def test_every_folder_with_tests_is_in_exactly_one_run() -> None:
    folders = {path.parent.relative_to(ROOT).parts[1] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    assert {"unit", "property", "simulation", "integration"} <= folders
    (unit,) = tier_runs.UNIT.paths
    clusters = tier_runs.CLUSTERS.paths[-1]
    # What is left out of the run in between is what the two others run.
    *left_out, everything = tier_runs.SEEDS.paths
    assert {f"--ignore={unit}", f"--ignore={clusters}"} == set(left_out)
    assert everything == "tests"


_ONCE = """
from pathlib import Path

def test_once():
    seen = Path({!r})
    first = not seen.exists()
    seen.touch()
    assert not first
"""


@pytest.mark.parametrize(("tier", "code"), [("gate", 0), ("full", 0), ("nightly", 1)])
def test_a_test_that_fails_once_is_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tier: str, code: int
) -> None:
    monkeypatch.setattr(timings, "FOLDER", tmp_path / "kept")
    monkeypatch.setattr(tier_runs, "ROOT", tmp_path)
    monkeypatch.setenv(tier_runs.NOTES_VARIABLE, str(tmp_path / "notes"))
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser):\n    parser.addoption('--tier')\n")
    (tmp_path / "test_it.py").write_text(_ONCE.format(str(tmp_path / "seen")))
    part = tier_runs.TestRun("some", ("test_it.py",), "loadfile")
    cache = tmp_path / "cache"
    (ended,) = lanes.side_by_side(tmp_path, [part.step(tier, cache)])
    assert ended.code == 1
    assert tier_runs.looked_at_again(ended, tier, cache).code == code
    alarm = "ALARM: test_it.py::test_once failed once, mend this test\n"
    assert alarm in capsys.readouterr().out
    assert (tmp_path / "notes").read_text() == alarm
    assert (tmp_path / "kept" / tier / timings.ALARMS).read_text() == "test_it.py::test_once\n"
