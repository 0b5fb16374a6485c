"""Runs leave what each test took; the report takes this clone's figures first and those kept where there are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import tasks  # noqa: E402
import timings  # noqa: E402
from lanes import Done  # noqa: E402

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("few_plugins")]

_CONFTEST = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "tools")!r})
import timing_recorder, timings
timings.FOLDER = Path(__file__).parent / "kept"

def pytest_configure(config):
    config.pluginmanager.register(timing_recorder.Recorder(lambda item: "gate"))
"""

_TESTS = """
import subprocess, sys, time

def test_waits():
    time.sleep(0.3)

def test_starts_a_process_that_works():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.5: pass"], check=True)

def test_fails():
    assert False
"""


def _record(folder: Path, label: str | None, *words: str) -> dict[str, timings.Timing]:
    """Run the tests with the recorder and read what it kept."""
    (folder / "conftest.py").write_text(_CONFTEST)
    (folder / "test_it.py").write_text(_TESTS)
    # This test may itself run below a label, and in one of several processes.
    outer = (timings.LABEL_VARIABLE, "PYTEST_XDIST_WORKER")
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    environment |= {timings.LABEL_VARIABLE: label} if label else {}
    command = (sys.executable, "-m", "pytest", "-q", *words)
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, timeout=60)
    assert done.returncode == 1, done.stdout
    found = [json.loads(line) for path in (folder / "kept").glob("*/*.jsonl") for line in path.read_text().splitlines()]
    return {each["test"].rpartition("::")[2]: timings.Timing(**each) for each in found}


def test_every_test_is_timed_with_the_processes_it_waits_for(tmp_path: Path) -> None:
    found = _record(tmp_path, None)
    assert set(found) == {"test_waits", "test_starts_a_process_that_works", "test_fails"}
    assert found["test_waits"].wall_s >= 0.3 > found["test_waits"].cpu_s
    assert found["test_starts_a_process_that_works"].cpu_s >= 0.5
    assert [path.name for path in (tmp_path / "kept" / "other").iterdir()] == ["last.jsonl"]


def test_each_of_several_processes_writes_a_file_of_its_own(tmp_path: Path) -> None:
    found = _record(tmp_path, "gate/unit", "-n", "2")
    assert set(found) == {"test_waits", "test_starts_a_process_that_works", "test_fails"}
    names = {path.name for path in (tmp_path / "kept" / "gate").iterdir()}
    assert names == {"unit-gw0.jsonl", "unit-gw1.jsonl"}


def test_a_run_inside_a_test_does_not_empty_the_file_of_the_outer_run(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "conftest.py").write_text(_CONFTEST.replace("Path(__file__).parent", "Path(__file__).parents[1]"))
    (inner / "test_inner.py").write_text("def test_inside():\n    pass\n")
    command = (sys.executable, "-m", "pytest", "-q", str(inner), "--rootdir", str(inner), "--confcutdir", str(inner))
    outer = f"import subprocess\n\ndef test_outside():\n    subprocess.run({command!r}, check=True)\n"
    (tmp_path / "test_outer.py").write_text(outer)
    found = _record(tmp_path, "gate/seeds", "test_outer.py", "test_it.py")
    assert {"test_outside", "test_waits", "test_inside"} <= set(found)
    kept = (tmp_path / "kept" / "gate" / "seeds.jsonl").read_text()
    assert all(name in kept for name in ("test_outside", "test_waits"))
    assert "test_inside" not in kept


def _timed(folder: Path, label: str, *rows: timings.Timing) -> None:
    path = folder / f"{label}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"test": row.test, "tier": row.tier, "wall_s": row.wall_s, "cpu_s": row.cpu_s} for row in rows]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _both_tiers(folder: Path) -> None:
    """Leave a run of the gate with two tests and one of full with three."""
    quick, slow = timings.Timing("a::quick", "gate", 1, 0.5), timings.Timing("a::slow", "gate", 9, 8)
    timings.begin("gate", folder)
    _timed(folder, "gate/unit-gw0", quick)
    _timed(folder, "gate/unit-gw1", slow)
    timings.end("gate", [Done("lint", 0, 2.04, 1.0), Done("unit", 0, 9.5, 8.51)], 10.04, folder)
    timings.begin("full", folder)
    _timed(folder, "full/unit", quick, slow, timings.Timing("b::cluster", "full", 30, 3))
    timings.end("full", [Done("unit", 1, 41.0, 12.0)], 42.0, folder)


def test_the_report_has_the_totals_of_each_tier_and_the_slowest_tests(tmp_path: Path) -> None:
    _both_tiers(tmp_path)
    found = timings.report(tmp_path, tmp_path / "none.json")
    assert (found["gate_s"], found["gate_cpu_s"], found["gate_tests"]) == (10.0, 9.5, 2)
    assert (found["full_s"], found["full_cpu_s"], found["full_tests"]) == (42.0, 12.0, 3)
    assert (found["nightly_s"], found["nightly_tests"]) == (None, None)
    assert [each["test"] for each in found["slowest"]] == ["b::cluster", "a::slow", "a::quick"]
    said = timings.text(tmp_path, tmp_path / "none.json")
    assert "42.0     12.0      3  full" in said
    assert "FAILED" in said
    assert "nightly: never run here" in said


def test_at_most_thirty_tests_are_listed(tmp_path: Path) -> None:
    _timed(tmp_path, "other/last", *(timings.Timing(f"a::{number}", "gate", number, 0) for number in range(40)))
    found = timings.slowest(tmp_path, tmp_path / "none.json")
    assert [each["wall_s"] for each in found] == list(range(39, 9, -1))


def test_a_new_run_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    _both_tiers(tmp_path)
    (tmp_path / "gate" / timings.ALARMS).write_text("a::slow\n")
    timings.begin("gate", tmp_path)
    assert list((tmp_path / "gate").iterdir()) == []
    assert timings.end("gate", [], 1.0, tmp_path).tests == 0
    assert timings.report(tmp_path, tmp_path / "none.json")["full_tests"] == 3


def test_kept_figures_stand_in_where_no_run_was_made(tmp_path: Path) -> None:
    here, clone, kept = tmp_path / "here", tmp_path / "clone", tmp_path / "kept.json"
    _both_tiers(here)
    timings.keep(here, kept)
    assert timings.report(clone, kept) == timings.report(here, kept)
    run = json.loads(kept.read_text())["runs"]["full"]
    assert {"commit", "date", "load", "passed"} <= set(run)
    # A run in the clone counts before the kept one, tier by tier.
    timings.end("gate", [], 5.0, clone)
    found = timings.report(clone, kept)
    assert (found["gate_s"], found["full_s"]) == (5.0, 42.0)
    timings.keep(clone, kept)
    assert timings.report(tmp_path / "third", kept)["gate_s"] == 5.0
    assert timings.report(tmp_path / "third", kept)["full_s"] == 42.0


def test_the_task_prints_json_and_refuses_other_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert tasks.main(["timings", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"gate_s", "full_s", "gate_tests", "full_tests", "slowest"} <= set(found)
    assert len(found["slowest"]) <= timings.SLOWEST
    assert tasks.main(["timings"]) == 0
    assert "wall s" in capsys.readouterr().out
    assert tasks.main(["timings", "--jason"]) == 2
