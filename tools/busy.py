"""Tests run several times beside busy loops: a test that depends on a quiet machine fails here. Chooses the tests.

    python tools/tasks.py busy [--times 10] [--loops 8] [--json] [TEST ...]

Unless tests are named, it runs the tests of the gate that start clusters and took longest, by the last figures of
``timings``, and the upgrade of a cluster node by node. A test stops at its first failure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timings

ROOT = Path(__file__).resolve().parent.parent
#: The longest tests of the gate that are run, beside the upgrade.
LONGEST = 4
UPGRADE = "tests/integration/test_operations.py::test_a_cluster_is_upgraded_node_by_node_while_it_trains"
TIMES = 10
LOOPS = 8
#: A test that takes longer than this has failed; its own limit is shorter.
TEST_MAX_S = 1200
#: Lines of a failed test's output that are printed.
TOLD_LINES = 60


def longest_of_the_gate(slowest: Sequence[dict[str, Any]]) -> list[str]:
    """Return the tests of the gate that start clusters and took longest, the longest first."""
    ours = [
        each["test"] for each in slowest if each["tier"] == "gate" and each["test"].startswith("tests/integration/")
    ]
    return ours[:LONGEST]


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Keep this many processes computing; they end with the block, or with this process."""
    parent = os.getpid()
    source = f"import os\nwhile os.getppid() == {parent}:\n    for _ in range(1_000_000): pass"
    processes = [subprocess.Popen([sys.executable, "-c", source]) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def run(test: str, times: int) -> dict[str, Any]:
    """Run one test until it fails or has passed this often; return how often it passed and its longest time."""
    passed, longest_s = 0, 0.0
    for number in range(times):
        began_s = time.monotonic()
        command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test)
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TEST_MAX_S)
            code, output = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as expired:
            code, output = -1, f"{expired}"
        took_s = time.monotonic() - began_s
        longest_s = max(longest_s, took_s)
        print(
            f"{test}: run {number + 1} of {times} {'passed' if code == 0 else 'FAILED'} in {took_s:.0f} s", flush=True
        )
        if code != 0:
            print("\n".join(output.splitlines()[-TOLD_LINES:]), flush=True)
            break
        passed += 1
    return {"test": test, "passed": passed, "of": times, "longest_s": round(longest_s, 1)}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python tools/tasks.py busy", description=__doc__)
    parser.add_argument("tests", nargs="*", help="tests by their names; the longest of the gate")
    parser.add_argument("--times", type=int, default=TIMES)
    parser.add_argument("--loops", type=int, default=LOOPS)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    given = parser.parse_args(arguments)
    tests = given.tests or [*longest_of_the_gate(timings.slowest()), UPGRADE]
    with busy(given.loops):
        results = [run(test, given.times) for test in tests]
    held = all(result["passed"] == given.times for result in results)
    if given.json:
        print(json.dumps({"loops": given.loops, "times": given.times, "held": held, "tests": results}), flush=True)
    return 0 if held else 1
