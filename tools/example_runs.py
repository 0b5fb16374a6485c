"""Every example, run by its tests: what passed, and how long each took. A skipped test does not count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree  # nosec B405

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
_TESTS = "tests/integration/"
_MADE_UP = _TESTS + "test_examples_made_up.py::test_an_example_ends_with_what_its_page_promises"
_WHOLE = _TESTS + "test_examples_whole.py::"
_LOOPS = _TESTS + "test_example_loops.py::test_by_hand_an_example_learns_before_and_after"
#: What runs each folder of examples/.
TESTS = {
    "activity": _WHOLE + "test_two_devices_train_activities_without_a_server",
    "detection": _TESTS + "test_examples_detection.py",
    "drawings": _TESTS + "test_example_drawings.py",
    "forecast": f"{_MADE_UP}[forecast.md]",
    "graph": f"{_MADE_UP}[graph.md]",
    "hospitals": f"{_MADE_UP}[hospitals.md]",
    "lightning": f"{_LOOPS}[lightning/train.py]",
    "lora_notes": _TESTS + "test_examples_lora.py",
    "mnist": _WHOLE + "test_a_task_learns_on_two_devices[mnist]",
    "notebook": _TESTS + "test_notebook.py::test_the_notebook_runs",
    "offload": _WHOLE + "test_a_loop_learns_at_home",
    "permissions": _WHOLE + "test_a_task_learns_on_two_devices[permissions]",
    "plain_loop": f"{_LOOPS}[plain_loop/train.py]",
    "pump": _TESTS + "test_examples_pump.py",
    "recommender": f"{_MADE_UP}[recommender.md]",
    "robot": f"{_MADE_UP}[robot.md]",
    "survey": f"{_MADE_UP}[survey.md]",
    "tabular": f"{_MADE_UP}[tabular.md]",
    "unet": f"{_MADE_UP}[unet.md]",
}
#: The longest that one may take on a busy machine.
_LONGEST_S = 1_500


def main(extra: Sequence[str]) -> int:
    is_json, names = "--json" in extra, [word for word in extra if word != "--json"]
    if unknown := set(names) - TESTS.keys():
        print(f"there is no example {', '.join(sorted(unknown))}: take --json or {', '.join(TESTS)}", file=sys.stderr)
        return 2
    seconds, reasons = dict[str, float](), dict[str, str]()
    for name in names or TESTS:
        began_s = time.monotonic()
        if why := why_not_run(TESTS[name]):
            reasons[name] = why
        else:
            seconds[name] = round(time.monotonic() - began_s, 1)
        told = why or "passed"
        print(f"{time.monotonic() - began_s:8.1f} s  {name:<12} {told}", file=sys.stderr, flush=True)
    report = {"examples": len(names or TESTS), "run": len(seconds), "seconds": seconds, "not_run": reasons}
    if is_json:
        print(json.dumps(report), flush=True)
    return 0 if not reasons else 1


def why_not_run(test: str) -> str:
    """Run a test of an example. Return why it did not run or failed, or nothing if it passed."""
    with tempfile.TemporaryDirectory(prefix="shoal-example-") as scratch:
        report = Path(scratch) / "report.xml"
        command = (sys.executable, "-m", "pytest", "-q", "--tier", "nightly", f"--junitxml={report}", test)
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=_LONGEST_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"did not end within {_LONGEST_S} s"
        return why_not_passed(report) if report.exists() else done.stdout[-600:] + done.stderr[-600:]


def why_not_passed(report: Path) -> str:
    """Return the reason of the first test in a report of pytest that did not pass, or nothing if all passed."""
    # The report was just written by pytest, on this machine.
    cases = list(ElementTree.parse(report).iter("testcase"))  # nosec B314
    for case in cases:
        for told in case:
            if told.tag in ("failure", "error", "skipped"):
                return f"{told.tag}: {(told.get('message') or '')[:300]}"
    return "" if cases else "no test was found"
