"""A real cluster for one test: processes in a throw-away home, waits that end, and proof that nothing was lost.

A *tally* job trains without torch (see ``tally_trainer``): its model must equal what the registry's history predicts.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy as np
import psutil
import pytest

from shoal.errors import Unreachable
from shoal.identity.enrolment import Enrolled
from shoal.identity.signing import sign
from shoal.runtime.local import LocalCluster
from shoal.runtime.manager_main import run_home
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.manager_start import ManagerReady
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.scheduling.ledger import Applied
from shoal.store.registry import Registry
from shoal.store.rows import EpochAudit, EvaluationRow, Event
from shoal.wire import tensors
from shoal.wire.messages import JobSpec, JobView, NodeView, Progress, WorkerView
from testbed.echo_job import echo_job

HERE = Path(__file__).resolve().parent

#: The longest any one wait may take on a loaded machine, and a whole story: within pytest's own limit.
WAIT_S = 180.0
STORY_S = 330.0
POLL_S = 0.1

TALLY = ("--child-module", "tally_trainer")
MOMENTUM = 0.9

T = TypeVar("T")


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, STORY_S))


def own_commands(folder: Path) -> Path:
    """A folder for PATH whose `shoal` and `python` are those of this environment."""
    tools = folder / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    for name, words in (("shoal", "-m shoal.cli.main "), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n', encoding="utf-8")
        (tools / name).chmod(0o755)
    return tools


@contextlib.asynccontextmanager
async def manager_in(home: Path, **options: Any) -> AsyncIterator[ManagerReady]:
    """A manager in this process, as `shoal up` runs it with these options."""
    ready: asyncio.Future[ManagerReady] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(run_home(ManagerOptions(home=home, **options), on_ready=ready.set_result))
    try:
        yield await asyncio.wait_for(ready, WAIT_S)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@dataclasses.dataclass(frozen=True, slots=True)
class OwnManager:
    """Stands where a site has a cluster: a manager in this process, and no device."""

    home: Path
    endpoint: str
    join_line: str


class Complaints(logging.Handler):
    """Keeps each record of an exception that nobody handled, as the log of a process would."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.told.append(logging.Formatter().format(record))


@contextlib.asynccontextmanager
async def manager_site(directory: Path, **options: Any) -> AsyncIterator[Site]:
    """A manager in this process and an operator of it, for tests that need no device. It has met no bug of its own."""
    home, complaints = directory / "home", Complaints()
    logging.getLogger().addHandler(complaints)
    try:
        async with manager_in(home, **options) as ready, Operator.open(home) as operator:
            yield Site(OwnManager(home, ready.endpoint, ready.join_line), operator, directory)
    finally:
        logging.getLogger().removeHandler(complaints)
    assert not complaints.told, "\n".join(complaints.told)


@contextlib.contextmanager
def small_disk(path: Path, *, size: str, inodes: int) -> Iterator[Path]:
    """A file system of this size over a directory; skips the test where that may not be."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes={inodes}", "tmpfs", str(path)]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"cannot mount a small file system here, which takes root: {error}")
    try:
        yield path
    finally:
        # Lazy: a mapped checkpoint may still be referenced by the failed test's traceback.
        subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True, timeout=10)


@contextlib.asynccontextmanager
async def cluster_in(
    directory: Path,
    *,
    workers: int,
    options: tuple[str, ...] = TALLY,
    share_cache: bool = True,
    manager_options: tuple[str, ...] = (),
) -> AsyncIterator[Site]:
    """A cluster of this many devices, on one disk or each on its own. At its end no process is left, and no part of it
    has met a bug of its own."""
    search = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH", ""))))
    with mock.patch.dict(os.environ, PYTHONPATH=search):
        cache = directory / "cache" if share_cache else None
        cluster = LocalCluster(
            workers=workers,
            home=directory / "home",
            agent_options=options,
            cache=cache,
            manager_options=manager_options,
        )
        async with cluster, Operator.open(cluster.home) as operator:
            site = Site(cluster, operator, directory)
            site.pace(0.0)
            yield site
    assert_no_bug_of_its_own(cluster.home)


#: What gRPC prints, twice, for a stream that a stopping server cancels: on a busy machine the time that it gives
#: streams to end is over before they have.
_CANCELLED_AT_STOP = re.compile(
    r"[ ]*Traceback \(most recent call last\):\n"
    r"[ ]*File \"src/python/grpcio/grpc/_cython/_cygrpc/aio/server\.pyx\.pxi\", line \d+, in \S+_schedule_rpc_coro\n"
    r"[ ]*asyncio\.exceptions\.CancelledError\n"
)


def assert_no_bug_of_its_own(home: Path) -> None:
    """Fail if the log of a process of this cluster shows an exception that nobody handled."""
    for log in sorted(home.glob("*.log")):
        text = _CANCELLED_AT_STOP.sub("", log.read_text())
        assert "Traceback" not in text, f"{log.name}: {text[-4000:]}"


class Site:
    """A cluster, an operator of it, and what a test asks of both."""

    def __init__(self, cluster: LocalCluster | OwnManager, operator: Operator, directory: Path) -> None:
        self.cluster = cluster
        self.operator = operator
        self._directory = directory
        #: A leader on a device cannot have a version kept while the manager is away; it says so, and tries again.
        self.may_lose_the_manager = False
        self.pace_file = directory / "pace"
        self._first_cluster_event = 1
        self._logs_began: dict[str, int] = {}

    def begin(self) -> None:
        """Begin a test of a cluster that ran before: trainers are quick, and what was said before does not count."""
        self.pace(0.0)
        self._logs_began = {path.stem: path.stat().st_size for path in self.cluster.home.glob("*.log")}
        self._first_cluster_event = 1 + max((event.seq for event in self.events("cluster")), default=0)

    # Jobs -----------------------------------------------------------------------------------------------

    async def submit_tally(self, *, batches: int, epochs: int = 1, bundle: bytes = b"", **plan: Any) -> str:
        """Start a job of this many batches, for clusters whose agents run the tally trainer."""
        folder = self._directory / f"tally-{batches}"
        folder.mkdir(exist_ok=True)
        job = echo_job(folder, values=batches, batches=batches)
        bundle = bundle or job.bundle
        job = dataclasses.replace(job, name="tally", arguments={"pace": str(self.pace_file)}, bundle=bundle)
        chosen = {"momentum": MOMENTUM, "checkpoint_every_s": 0.5, "until": {"epochs": epochs}, **plan}
        return await self.operator.submit(job, plan=chosen)

    async def submit_task(self, file: Path, *, kwargs: dict[str, Any] | None = None, **plan: Any) -> str:
        """Start the one task that this file defines, for clusters whose agents run the real trainer."""
        return await self.operator.prepare_and_submit(str(file), kwargs=kwargs, plan=plan)

    def signed(self, spec: JobSpec) -> JobSpec:
        """For a test that submits a job by hand: signed by the operator of this cluster."""
        return sign(spec, Enrolled.load(Paths(self.cluster.home).operator).identity)

    def pace(self, pace_s: float) -> None:
        """From its next lease on, a tally trainer takes this long a batch."""
        draft = self.pace_file.with_suffix(".new")
        draft.write_text(str(pace_s))
        draft.replace(self.pace_file)

    # What is going on ---------------------------------------------------------------------------------------

    async def view(self, job: str) -> JobView | None:
        """Return how a job stands, or None while there is no manager to ask, or only one that has not read of it."""
        with contextlib.suppress(Unreachable):
            return next(iter((await self.operator.status(job)).jobs), None)
        return None

    def registry(self) -> Registry:
        return Registry(Paths(self.cluster.home).registry)

    def events(self, job: str) -> list[Event]:
        """Return the events of a job, or those of ``cluster`` since the test began."""
        before = self._first_cluster_event - 1 if job == "cluster" else 0
        with self.registry() as registry:
            return registry.events_after(job, before, limit=10_000)

    def log(self, name: str) -> str:
        """Return what the manager or a device has logged since the test began."""
        content = (self.cluster.home / f"{name}.log").read_bytes()
        return content[self._logs_began.get(name, 0) :].decode()

    def evaluations(self, job: str) -> list[EvaluationRow]:
        with self.registry() as registry:
            return registry.evaluations(job)

    def history(self, job: str) -> tuple[list[Applied], list[EpochAudit]]:
        with self.registry() as registry:
            return registry.applied(job), registry.audit(job)

    def checkpoints(self, job: str) -> list[Path]:
        """Oldest first."""
        return sorted(Paths(self.cluster.home).checkpoints(job).glob("*.safetensors"))

    # Waits --------------------------------------------------------------------------------------------------

    async def until(self, what: str, condition: Callable[[], Awaitable[T | None]], *, limit_s: float = WAIT_S) -> T:
        """Ask until the answer is true; it is returned."""
        deadline_s = time.monotonic() + limit_s
        while not (answer := await condition()):
            if time.monotonic() > deadline_s:
                logs = "\n".join(f"{log.name}: {log.read_text()[-3000:]}" for log in self.cluster.home.glob("*.log"))
                raise AssertionError(f"not within {limit_s:g} s: {what}\n{logs}")
            await asyncio.sleep(POLL_S)
        return answer

    async def connected(self, name: str) -> NodeView:
        async def alive() -> NodeView | None:
            nodes = (await self.operator.status()).nodes
            return next((node for node in nodes if node.node == name and node.state == "alive"), None)

        return await self.until(f"{name} is connected", alive)

    async def start_hub(self, name: str) -> None:
        """A hub that has joined, with a link that it says is good."""
        await self.cluster.start_agent(name, "--hub", "--hub-mbps", "1000")
        assert (await self.connected(name)).facts.is_hub

    async def progress(self, job: str, what: str, condition: Callable[[Progress], bool]) -> Progress:
        async def reached() -> Progress | None:
            view = await self.view(job)
            assert view is None or view.state in ("queued", "running"), f"{view.state}: {view.reason}"
            return view.progress if view and view.progress and condition(view.progress) else None

        return await self.until(what, reached)

    async def mid_epoch(self, job: str, *, applied: int = 10) -> Progress:
        """Some batches of the first epoch are part of a durable version, others are still to come."""

        def is_there(progress: Progress) -> bool:
            return progress.batches_applied >= applied and progress.durable_version > 0

        progress = await self.progress(job, f"{applied} batches applied", is_there)
        assert progress.epoch == 0, "the epoch is over: the job was too short to break"
        return progress

    async def works(self, job: str, name: str) -> WorkerView:
        """Wait until an update of this device was merged since its leader knows it."""

        async def merged() -> WorkerView | None:
            view = await self.view(job)
            workers = view.progress.workers if view and view.progress else ()
            return next((worker for worker in workers if worker.node == name and worker.batches), None)

        return await self.until(f"{name} works", merged)

    async def event(self, job: str, kind: str, text: str, *, after: int = 0) -> Event:
        async def found() -> Event | None:
            events = self.events(job)
            return next((e for e in events if e.seq > after and e.kind == kind and text in e.text), None)

        return await self.until(f"an event {kind}: {text}", found)

    async def ended(self, job: str, state: str = "finished") -> JobView:
        async def over() -> JobView | None:
            view = await self.view(job)
            return view if view and view.state in ("finished", "failed", "stopped") else None

        view = await self.until(f"{job} ends", over)
        assert view.state == state, f"{view.state}: {view.reason}"
        return view

    # Faults -------------------------------------------------------------------------------------------------

    def trainers(self, name: str) -> list[psutil.Process]:
        """The children of a device's agent that train: its trainer, while it has one."""
        children = psutil.Process(self.cluster.agents[name].pid).children(recursive=True)
        return [child for child in children if _may_train(child)]

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        """Kill a process, as a power cut would."""
        process.kill()
        assert await asyncio.wait_for(process.wait(), WAIT_S) == -signal.SIGKILL

    async def kill_manager(self) -> None:
        assert self.cluster.manager is not None
        await self.kill(self.cluster.manager)

    # Proof --------------------------------------------------------------------------------------------------

    async def model(self, job: str) -> dict[str, np.ndarray]:
        path = self._directory / f"{job}.safetensors"
        await self.operator.pull_model(job, path)
        return dict(tensors.read(path, mmap=False)[0])

    def exactly_once(self, job: str, *, batches: int, epochs: int) -> list[Applied]:
        """Every batch of every epoch is in the surviving history, once, in versions without a gap."""
        rows, audits = self.history(job)
        found = [(audit.epoch, audit.batches, audit.distinct) for audit in audits]
        assert found == [(epoch, batches, batches) for epoch in range(epochs)]
        versions = {row.version for row in rows}
        assert versions == set(range(1, max(versions) + 1))
        # The table refuses a batch a second time, and then the save fails.
        again = [event for event in self.events(job) if "must not apply it again" in event.text]
        assert not again, again
        if not self.may_lose_the_manager:
            assert not [event for event in self.events(job) if event.kind == "save.failed"]
        return rows

    async def tallied_once(
        self, job: str, *, batches: int, epochs: int = 1, momentum: float = MOMENTUM
    ) -> list[Applied]:
        """The history is whole, and the model is exactly what it predicts."""
        rows = self.exactly_once(job, batches=batches, epochs=epochs)
        model = (await self.model(job))["flat"]
        np.testing.assert_allclose(model, metrics(rows, batches=batches, momentum=momentum), rtol=1e-5, atol=1e-6)
        return rows


def metrics(rows: list[Applied], *, batches: int, momentum: float = MOMENTUM) -> np.ndarray:
    """The model that this history makes: each round is the mean of its batches' unit vectors, then momentum."""
    rounds: dict[int, list[int]] = {}
    for row in rows:
        rounds.setdefault(row.version, []).append(row.batch)
    model, velocity = np.zeros(batches), np.zeros(batches)
    for version in sorted(rounds):
        mean = np.zeros(batches)
        mean[rounds[version]] = 1 / len(rounds[version])
        velocity = momentum * velocity + mean
        model = model + velocity
    return model


def _may_train(child: psutil.Process) -> bool:
    """Whether an agent's child is none of those that check a signature or renew a certificate, for a moment each.

    A child that has not become its own program yet still has the agent's command line.
    """
    try:
        words = child.cmdline()
    except psutil.Error:
        return False
    return not {"shoal.identity.signatures", "shoal.net.renewal", "shoal.runtime.agent_main"} & set(words)
