"""What runs and their tests took: where the figures lie, how they are read and printed. Does not run tests.

A run of tests writes one line of JSON per test below ``.timings/<tier>/`` (``timing_recorder``), and a whole run of a
tier writes ``run.json`` beside them. ``tests/timings.json`` keeps figures in the repository, for clones without a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lanes import Done
from tiers import TIERS

ROOT = Path(__file__).resolve().parent.parent
#: Where runs in this clone leave their figures.
FOLDER = ROOT / ".timings"
#: Figures that were kept in the repository.
KEPT_FILE = ROOT / "tests" / "timings.json"
#: Names the file of a run, such as ``gate/unit``; the recorder reads it.
LABEL_VARIABLE = "SHOAL_TIMINGS"
#: The file of a run that a test of another run started.
INNER_LABEL = "other/inner"
#: Beside a run's figures, the tests that failed once and passed by themselves.
ALARMS = "alarms.txt"
#: This many tests are listed.
SLOWEST = 30


@dataclass(frozen=True, slots=True)
class Timing:
    """What one test took, with its fixtures.

    Processor time counts the test's own process and the children that it waited for, so the processes of a cluster
    are in it.
    """

    test: str
    tier: str
    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """What a whole run of a tier took, where and when."""

    tier: str
    commit: str
    date: str
    load: float
    passed: bool
    tests: int
    wall_s: float
    cpu_s: float
    steps: tuple[dict[str, Any], ...]


def begin(tier: str, folder: Path = FOLDER) -> None:
    """Remove the figures of the tier's last run, so that none of them is counted with the next one's."""
    for path in (*folder.glob(f"{tier}/*.jsonl"), folder / tier / "run.json", folder / tier / ALARMS):
        path.unlink(missing_ok=True)


def end(tier: str, steps: Sequence[Done], wall_s: float, folder: Path = FOLDER) -> Run:
    """Write down what a whole run of a tier took, beside the timings of its tests."""
    run = Run(
        tier=tier,
        commit=_commit(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        # The mean of fifteen minutes: a figure from a busy machine says little.
        load=round(os.getloadavg()[2], 1),
        passed=all(step.code == 0 for step in steps),
        tests=len(_tests_of(folder.glob(f"{tier}/*.jsonl"))),
        wall_s=round(wall_s, 1),
        cpu_s=round(sum(step.cpu_s for step in steps), 1),
        steps=tuple(asdict(step) | {"wall_s": round(step.wall_s, 1), "cpu_s": round(step.cpu_s, 1)} for step in steps),
    )
    path = folder / tier / "run.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(run), indent=1) + "\n", encoding="utf-8")
    return run


def last_runs(folder: Path = FOLDER, kept_file: Path = KEPT_FILE) -> dict[str, dict[str, Any]]:
    """Return the last whole run of each tier: that of this clone, or else the one that was kept."""
    kept = _read(kept_file).get("runs", {})
    here = {tier: _read(folder / tier / "run.json") for tier in TIERS}
    return {tier: run for tier in TIERS if (run := here[tier] or kept.get(tier))}


def slowest(folder: Path = FOLDER, kept_file: Path = KEPT_FILE) -> list[dict[str, Any]]:
    """Return the tests that took longest, the longest first: those timed in this clone, or else those kept."""
    newest_last = sorted(folder.glob("*/*.jsonl"), key=lambda path: path.stat().st_mtime)
    timed = [asdict(timing) for timing in _tests_of(newest_last).values()] or _read(kept_file).get("slowest", [])
    return sorted(timed, key=lambda timing: (-timing["wall_s"], timing["test"]))[:SLOWEST]


def report(folder: Path = FOLDER, kept_file: Path = KEPT_FILE) -> dict[str, Any]:
    """Return what ``timings --json`` prints; a figure that no run gave is None."""
    runs = last_runs(folder, kept_file)
    found: dict[str, Any] = {}
    for tier in TIERS:
        run = runs.get(tier, {})
        found |= {
            f"{tier}_s": run.get("wall_s"),
            f"{tier}_cpu_s": run.get("cpu_s"),
            f"{tier}_tests": run.get("tests"),
            f"{tier}_commit": run.get("commit"),
        }
    return found | {"slowest": slowest(folder, kept_file)}


def text(folder: Path = FOLDER, kept_file: Path = KEPT_FILE) -> str:
    """Return the slowest tests and the totals of each tier, to be read by people."""
    lines = [f"{'wall s':>8} {'cpu s':>8}  {'tier':<8} test"]
    lines += [
        f"{timing['wall_s']:8.1f} {timing['cpu_s']:8.1f}  {timing['tier']:<8} {timing['test']}"
        for timing in slowest(folder, kept_file)
    ]
    lines += ["", f"{'wall s':>8} {'cpu s':>8} {'tests':>6}  run"]
    runs = last_runs(folder, kept_file)
    for tier in TIERS:
        if run := runs.get(tier):
            where = f"{run['commit']}, {run['date']}, load {run['load']}{'' if run['passed'] else ', FAILED'}"
            lines.append(f"{run['wall_s']:8.1f} {run['cpu_s']:8.1f} {run['tests']:6}  {tier} ({where})")
            lines += [f"{step['wall_s']:8.1f} {step['cpu_s']:8.1f} {'':6}    {step['name']}" for step in run["steps"]]
        else:
            lines.append(f"{'?':>8} {'?':>8} {'?':>6}  {tier}: never run here: python tools/tasks.py {tier}")
    return "\n".join(lines)


def keep(folder: Path = FOLDER, kept_file: Path = KEPT_FILE) -> None:
    """Write the figures into the repository; a tier that was not run here keeps the figures it has."""
    kept = {"runs": last_runs(folder, kept_file), "slowest": slowest(folder, kept_file)}
    kept_file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def _tests_of(paths: Iterable[Path]) -> dict[str, Timing]:
    """Return the timings in these files by test; a later file wins."""
    lines = (line for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    # A run that was killed leaves half a line.
    whole = (line for line in lines if line.startswith("{") and line.rstrip().endswith("}"))
    return {timing.test: timing for timing in (Timing(**json.loads(line)) for line in whole)}


def _commit() -> str:
    """Return the commit of the work tree, with a mark if it has other changes; "unknown" outside git."""
    command = ("git", "describe", "--always", "--dirty", "--exclude=*")
    try:
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()
