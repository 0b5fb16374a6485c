"""A plugin of pytest that keeps what each test took. Does not read the figures: ``timings`` does."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import TextIO

import pytest
import timings


def _cpu_s() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Recorder:
    """Writes the timing of every test down as soon as the test is over: a run that is stopped keeps what it has."""

    def __init__(self, tier_of: Callable[[pytest.Item], str]) -> None:
        self._tier_of = tier_of
        self._file: TextIO | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        # With several processes (pytest-xdist) each of them writes a file, and the one that deals tests out does not.
        is_dealer = not hasattr(session.config, "workerinput") and session.config.getoption("numprocesses", None)
        if is_dealer or session.config.option.collectonly:
            return
        label = os.environ.get(timings.LABEL_VARIABLE, "other/last")
        # A test may run pytest itself, in a process that inherits this label: it would empty the file of this run.
        os.environ[timings.LABEL_VARIABLE] = timings.INNER_LABEL
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        path = timings.FOLDER / f"{label}{worker and '-'}{worker}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        began_s, began_cpu_s = time.monotonic(), _cpu_s()
        try:
            return (yield)
        finally:
            if self._file is not None:
                wall_s, cpu_s = time.monotonic() - began_s, _cpu_s() - began_cpu_s
                taken = timings.Timing(item.nodeid, self._tier_of(item), round(wall_s, 3), round(cpu_s, 3))
                self._file.write(json.dumps(asdict(taken)) + "\n")
                self._file.flush()

    def pytest_sessionfinish(self) -> None:
        if self._file is not None:
            self._file.close()
