"""What a run of each tier does, in which order, and what it says at the end. Does not know what a check checks.

First come the quick checks, with the tab's page, because some unit tests need its tools. The unit tests run beside the
other checks. Properties and seeds follow on all processors. The tests that start clusters come last, with nothing
beside them, because their deadlines are short.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import lanes
import second_look
import timings

ROOT = Path(__file__).resolve().parent.parent
#: A file, named by this variable, to which a run adds what must be seen at its end.
NOTES_VARIABLE = "SHOAL_CI_NOTES"
#: The gate is promised on a machine with two cores; so are the waits of the tests that start clusters.
PROCESSES = 2
#: A test that starts a cluster waits for a third of its time, so two of them do not keep two cores busy.
CLUSTER_PROCESSES = 3

#: Installs the tab's tools; unit tests of the tab skip without them.
FIRST_CHECK = "tab-check"
#: What is checked beside the first check: a slip is seen before the tests start.
QUICK_CHECKS = ("vendored", "proto-check", "lint", "layers", "docs")
#: What is checked beside the unit tests.
SLOW_CHECKS = {
    "gate": ("types", "bandit", "house"),
    # The audit asks a server, which may be slow or away.
    "full": ("types", "bandit", "house", "audit"),
    "nightly": ("types", "bandit", "house", "audit"),
}
#: A test that failed once and passed by itself fails a run of these tiers; the others only name it.
FAIL_ON_ALARM = ("nightly",)


@dataclass(frozen=True, slots=True)
class TestRun:
    """One run of pytest: which tests, and how they are dealt to processes."""

    name: str
    paths: tuple[str, ...]
    #: ``worksteal`` keeps all processes busy; ``loadfile`` keeps the tests of a file together, which share a cluster.
    dealt: str
    processes: int = PROCESSES

    def step(self, tier: str, cache: Path) -> lanes.Step:
        dealt = ("-n", str(self.processes), "--dist", self.dealt)
        command = (sys.executable, "-m", "pytest", "-q", *dealt, "--tier", tier)
        labels = {timings.LABEL_VARIABLE: f"{tier}/{self.name}"}
        return lanes.Step(self.name, (*command, *second_look.arguments(cache), *self.paths), labels)


UNIT = TestRun("unit", ("tests/unit",), "worksteal")
#: Everything but the two others, so that a new folder is in it without a word.
SEEDS = TestRun("seeds", ("--ignore=tests/integration", "--ignore=tests/unit", "tests"), "worksteal")
CLUSTERS = TestRun("clusters", ("--durations=20", "tests/integration"), "loadfile", CLUSTER_PROCESSES)


def run(tier: str) -> int:
    """Run a tier to its end, print a summary, keep what it took; return the first exit code that is not 0, or 0."""
    timings.begin(tier)
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="shoal-tier-") as scratch:
        notes = Path(os.environ.setdefault(NOTES_VARIABLE, str(Path(scratch) / "notes")))
        print("\n== checks", flush=True)
        done = lanes.side_by_side(ROOT, [_task(FIRST_CHECK)], [_task(name) for name in QUICK_CHECKS])
        done += run_tests(tier, Path(scratch), beside=SLOW_CHECKS[tier])
        print(f"\n{notes.read_text(encoding='utf-8') if notes.exists() else ''}", flush=True)
    whole = timings.end(tier, done, time.monotonic() - began_s)
    print(f"== summary of {tier}")
    for step in done:
        said = "ok" if step.code == 0 else f"FAILED (exit {step.code})"
        print(f"{step.name:<12} {step.wall_s:7.1f} s {step.cpu_s:8.1f} cpu s  {said}")
    print(f"{'total':<12} {whole.wall_s:7.1f} s {whole.cpu_s:8.1f} cpu s  {whole.tests} tests", flush=True)
    return next((step.code for step in done if step.code != 0), 0)


def run_tests(tier: str, scratch: Path, *, beside: Sequence[str] = ()) -> list[lanes.Done]:
    """Run every test of a tier, with checks beside the unit tests; tests that failed run once more."""
    behind = [_task(name) for name in beside]
    done: list[lanes.Done] = []
    for part in (UNIT, SEEDS, CLUSTERS):
        print(f"\n== {part.name}", flush=True)
        cache = scratch / part.name
        *checks, ended = lanes.side_by_side(ROOT, [part.step(tier, cache)], behind)
        done += [*checks, looked_at_again(ended, tier, cache)]
        behind = []
    return done


def _task(name: str) -> lanes.Step:
    return lanes.Step(name, (sys.executable, "tools/tasks.py", name))


def looked_at_again(ended: lanes.Done, tier: str, cache: Path) -> lanes.Done:
    """Name the tests that failed once and passed by themselves; return the run with the code that its tier gives it."""

    def again(*names: str) -> int:
        command = (sys.executable, "-m", "pytest", "-q", *names)
        labels = {timings.LABEL_VARIABLE: f"{tier}/{ended.name}-again"}
        return lanes.side_by_side(ROOT, [lanes.Step("again", command, labels)])[0].code

    names = second_look.look(ended.code, cache, again)
    for name in names:
        _add_line(timings.FOLDER / tier / timings.ALARMS, name)
        note(second_look.alarm(name))
    return replace(ended, code=0) if names and tier not in FAIL_ON_ALARM else ended


def note(text: str) -> None:
    """Say this now, and again at the end of the run."""
    print(text, flush=True)
    if path := os.environ.get(NOTES_VARIABLE):
        _add_line(Path(path), text)


def _add_line(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
