"""What each test took: kept by every run of tests, read by ``tasks.py timings``. Does not run tests itself.

A run writes one line of JSON per test below ``.timings/<tier>/``. Processor time counts the test's own process and the
children that it waited for, so the processes of a cluster are in it.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".timings"
#: Figures of the last full run that somebody kept in the repository, for where no test has run yet.
KEPT_FILE = ROOT / "tests" / "timings.json"
#: Names the file of a run, such as ``gate/unit``.
LABEL_VARIABLE = "SHOAL_TIMINGS"
SLOWEST = 30


@dataclass(frozen=True, slots=True)
class Timing:
    """What one test took, with its fixtures."""

    test: str
    tier: str
    wall_s: float
    cpu_s: float


def _cpu_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Recorder:
    """A plugin of pytest that writes the timing of every test down as soon as the test is over."""

    def __init__(self, tier_of: Any) -> None:
        self._tier_of = tier_of
        self._file: TextIO | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        is_controller = not hasattr(session.config, "workerinput") and session.config.getoption("numprocesses", None)
        if is_controller or session.config.option.collectonly:
            return
        label = os.environ.get(LABEL_VARIABLE, "other/last")
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        path = FOLDER / f"{label}{worker and '-'}{worker}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began_s, began_cpu_s = time.monotonic(), _cpu_s()
        try:
            return (yield)
        finally:
            if self._file is not None:
                taken = Timing(
                    item.nodeid,
                    self._tier_of(item),
                    round(time.monotonic() - began_s, 3),
                    round(_cpu_s() - began_cpu_s, 3),
                )
                self._file.write(json.dumps(asdict(taken)) + "\n")
                self._file.flush()

    def pytest_sessionfinish(self) -> None:
        if self._file is not None:
            self._file.close()
