"""What managers tell an operator, compared with what runs: for ``benchmarks.managers``.

What runs is known without asking a manager: which agents are processes that live, which batches are in the history that
survives, who trained them, and which seat has each job. Each manager is asked as an operator asks it: its status,
`shoal status --check`, and one scrape of `shoal metrics`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.standing import standing
from shoal.runtime.operator import Operator
from shoal.wire.messages import Status
from testbed.results import say

#: A version that was durable this long ago is known to every manager: its leader reports each second, a manager writes
#: what it has every two seconds and reads what others have every two seconds.
KNOWN_WITHIN_S = 10.0

#: A command is over and a scrape is answered within this.
ANSWERS_WITHIN_S = 60.0

_SERIES = re.compile(r"^(?P<name>[a-z_]+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTruth:
    """A job that runs."""

    #: Where its manager is dialled.
    manager: str
    #: The newest version in the surviving history, some time before managers were asked and just after.
    version_before: int
    version_after: int
    #: The devices that trained versions between the two.
    workers: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Truth:
    devices: frozenset[str]
    jobs: Mapping[str, JobTruth]


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What one manager tells."""

    status: Status
    #: The exit code of `shoal status --check`, and what it printed.
    check: int
    sentence: str
    #: One scrape, as text.
    metrics: str


def wrong(truth: Truth, told: Told) -> list[str]:
    """Return what a manager tells that is not so. All is well when it is asked."""
    return [
        *_wrong_check(told),
        *_wrong_nodes(truth, told.status),
        *_wrong_jobs(truth, told.status),
        *_wrong_metrics(truth, told.metrics),
    ]


def _wrong_check(told: Told) -> Iterator[str]:
    if told.check != 0:
        yield f"status --check is {told.check}: {told.sentence.strip()}"


def _wrong_nodes(truth: Truth, status: Status) -> Iterator[str]:
    nodes = {view.node: view for view in status.nodes}
    if nodes.keys() != truth.devices:
        yield f"it lists {', '.join(sorted(nodes))}"
    for name in sorted(nodes.keys() & truth.devices):
        if (state := nodes[name].state) != "alive":
            yield f"{name} is {state}: {nodes[name].reason}"
    for job, real in truth.jobs.items():
        for name in sorted(real.workers & nodes.keys()):
            view = nodes[name]
            if (view.job, view.manager) != (job, real.manager):
                yield f"{name} trains for {job} at {real.manager}, not for {view.job!r} at {view.manager!r}"


def _wrong_jobs(truth: Truth, status: Status) -> Iterator[str]:
    jobs = {view.job: view for view in status.jobs if view.state.is_open}
    if jobs.keys() != truth.jobs.keys():
        yield f"it has the open jobs {', '.join(sorted(jobs))}"
    for job in sorted(jobs.keys() & truth.jobs.keys()):
        view, real = jobs[job], truth.jobs[job]
        if (state := standing(view).state) not in ("training", "evaluating"):
            yield f"{job} is {state}: {standing(view).reason}"
        if view.manager != real.manager:
            yield f"{job} is at {real.manager}, not at {view.manager!r}"
        if view.progress is None:
            yield f"{job} has no progress"
            continue
        if why := _wrong_version(view.progress.durable_version, real):
            yield f"{job}: {why}"
        if missing := real.workers - {worker.node for worker in view.progress.workers}:
            yield f"{job} does not show {', '.join(sorted(missing))}"


def _wrong_version(version: float, real: JobTruth) -> str:
    if real.version_before <= version <= real.version_after:
        return ""
    return f"durable version {version:g}, and it went from {real.version_before} to {real.version_after}"


def _wrong_metrics(truth: Truth, text: str) -> Iterator[str]:
    series = list(series_in(text))
    alive = sum(value for name, labels, value in series if name == "shoal_nodes" and labels["state"] == "alive")
    absent = sum(value for name, labels, value in series if name == "shoal_nodes" and labels["state"] != "alive")
    if (alive, absent) != (len(truth.devices), 0):
        yield f"metrics: {alive:g} devices alive and {absent:g} others"
    shown = {labels["shoal_job"]: value for name, labels, value in series if name == "shoal_job_durable_version"}
    for job, real in truth.jobs.items():
        if job not in shown:
            yield f"metrics: no version of {job}"
        elif why := _wrong_version(shown[job], real):
            yield f"metrics: {job}: {why}"


def series_in(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield each series of a scrape: its name, its labels and its value."""
    for line in text.splitlines():
        if found := _SERIES.match(line):
            yield found["name"], dict(_LABEL.findall(found["labels"] or "")), float(found["value"])


class Asker:
    """Asks a manager as an operator of its home does, with a `shoal metrics` that runs all the time."""

    def __init__(self, home: Path, log: Path) -> None:
        self._home = home
        self._log = log
        self._exporter: Process | None = None
        self._url = ""

    async def start(self) -> None:
        command = ("-m", "shoal", "metrics", "--port", "0", "--home", str(self._home))
        with self._log.open("ab") as log:
            self._exporter = await asyncio.create_subprocess_exec(
                sys.executable, *command, stdin=DEVNULL, stdout=PIPE, stderr=log
            )
        assert self._exporter.stdout is not None
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            line = (await self._exporter.stdout.readline()).decode()
        found = re.search(r"http://\S+?/metrics", line)
        if found is None:
            raise RuntimeError(f"`shoal metrics` does not say where it serves: {line!r}")
        self._url = found[0]

    async def stop(self) -> None:
        if self._exporter is not None and self._exporter.returncode is None:
            self._exporter.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANSWERS_WITHIN_S):
                    await self._exporter.wait()
                return
            self._exporter.kill()
            await self._exporter.wait()

    async def ask(self) -> Told:
        check, text = await asyncio.gather(self._check(), asyncio.to_thread(self._scrape))
        async with asyncio.timeout(ANSWERS_WITHIN_S), Operator.open(self._home) as operator:
            return Told(status=await operator.status(), check=check[0], sentence=check[1], metrics=text)

    async def _check(self) -> tuple[int, str]:
        command = ("-m", "shoal", "status", "--check", "--home", str(self._home))
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stdin=DEVNULL, stdout=PIPE)
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            said, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, said.decode()

    def _scrape(self) -> str:
        with urllib.request.urlopen(self._url, timeout=ANSWERS_WITHIN_S) as answer:  # noqa: S310
            return str(answer.read().decode())


@contextlib.asynccontextmanager
async def asking(homes: list[Path], folder: Path) -> AsyncIterator[list[Asker]]:
    askers = [Asker(home, folder / f"metrics-{home.name}.log") for home in homes]
    try:
        for asker in askers:
            await asker.start()
        yield askers
    finally:
        for asker in askers:
            await asker.stop()


def tell(where: str, found: list[str]) -> None:
    for each in found:
        say(f"status of {where}: {each}")
