"""Several managers on one database and one bucket, and what hurts them: kills, stops, cuts, a database that is away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from shoal.errors import ShoalError, Unreachable
from shoal.roles.manager.seat_watch import home_of
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.store.base import Away
from shoal.store.postgres import PostgresDatabase
from shoal.store.registry import Registry
from testbed.echo_job import ECHO, echo_job
from testbed.managers.relay import Relay
from testbed.managers.status import KNOWN_WITHIN_S, Asker, JobTruth, Told, Truth, tell, wrong
from testbed.processes import bound
from testbed.results import say
from testbed.servers import haproxy_server
from testbed.servers.object_servers import BUCKET
from testbed.servers.postgres_server import PostgresServer

MANAGERS = 3
#: One is submitted to each manager; a job has so many devices at most, which is all of them together.
JOBS = 3
DEVICES_A_JOB = 2
DEVICES = JOBS * DEVICES_A_JOB
PACE_S = 0.4
BATCHES = 20
KINDS = ("kill", "stop", "cut", "database")

#: How long a manager is stopped or cut off at least, and PostgreSQL is away.
STOPPED_S = 10.0
DATABASE_AWAY_S = 2.0
#: A service starts a manager again after so long (``cli.service_unit``).
RESTART_S = 5.0
#: A newer version is durable within this.
DURABLE_WITHIN_S = 180.0
#: A manager answers an operator within this, or is asked again.
ANSWERS_WITHIN_S = 10.0
UP_WITHIN_S = 180.0
JOINED_WITHIN_S = 60.0
#: The exit status of a manager whose seat another one ended.
DEPOSED = 2


class OneManager:
    """A manager that is started again when it ends."""

    def __init__(
        self,
        home: Path,
        url: str,
        options: tuple[str, ...],
        *,
        module: str = "shoal.runtime.manager_main",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``environment``: what its process finds there beside what this one does."""
        self.home = home
        self._module = module
        self._environment = dict(environment or {})
        self._url = url
        self._options = options
        self.database = Relay(int(urlsplit(url).port or 0))
        self.process: Process | None = None
        self.is_up = False
        self.up_s = 0.0
        #: Of the time until then, how much passed since it had the seat.
        self.start_s = 0.0
        self._is_over = asyncio.Event()
        self.join_line = ""
        #: Processes that ended because another manager had ended their seat.
        self.deposed = 0
        self._minding: asyncio.Task[None] | None = None

    def holds(self, seat: str) -> bool:
        """Whether a process from this home has, or had, this seat."""
        name = self.home / "cluster" / "manager-name"
        return name.exists() and home_of(seat) == name.read_text()

    async def start(self) -> None:
        await self.database.start()
        self._minding = asyncio.create_task(self._mind())

    async def _mind(self) -> None:
        url = self._url.replace(f":{urlsplit(self._url).port}/", f":{self.database.port}/")
        command = ("-m", self._module, "--home", str(self.home), "--store", url, *self._options)
        while not self._is_over.is_set():
            with (self.home / "manager.log").open("ab") as log:
                self.process = await asyncio.create_subprocess_exec(
                    # Also one that is stopped just then ends with this program.
                    *bound(sys.executable, *command, "--leash"),
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=log,
                    # A signal typed at the terminal is for this program alone: it ends the others in order.
                    start_new_session=True,
                    env={**os.environ, **self._environment},
                )
            assert self.process.stdout is not None
            if line := await self.process.stdout.readline():
                ready = json.loads(line)
                self.up_s, self.start_s, self.is_up = time.monotonic(), float(ready["start_s"]), True
                self.join_line = str(ready["join_line"])
            self.deposed += await self.process.wait() == DEPOSED
            self.is_up = False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), RESTART_S)

    async def pause(self) -> None:
        """Stop it in order, as its service does, until ``resume``."""
        self._is_over.set()
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
        if self._minding is not None:
            await self._minding

    def resume(self) -> None:
        self._is_over.clear()
        self._minding = asyncio.create_task(self._mind())

    async def stop(self) -> None:
        self._is_over.set()
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        if self._minding is not None:
            await self._minding
        await self.database.stop()


@dataclass(frozen=True, slots=True)
class Takeover:
    """What passed between a fault and its end, in seconds."""

    silence_s: float
    start_s: float
    devices_s: float
    durable_s: float

    @property
    def up_s(self) -> float:
        return self.silence_s + self.start_s


class Bed:
    def __init__(self, folder: Path, server: PostgresServer, *, door: str, lead: str) -> None:
        self._folder = folder
        self._server = server
        self._url = server.new()
        self._database = PostgresDatabase(self._url)
        self._has_proxy = door == "haproxy"
        self._door = haproxy_server.free_pair()
        self._ports = [haproxy_server.free_pair() for _ in range(MANAGERS)]
        common = ("--blobs", f"s3://{BUCKET}/managers", "--lead", lead)
        self.managers = [
            OneManager(folder / f"m{n}", self._url, ("--port", str(port), *self._told(port), *common))
            for n, port in enumerate(self._ports, start=1)
        ]
        self.takeovers: list[Takeover] = []
        self.acknowledged_lost = 0
        #: Each job, and the newest version of it that an operator was told to be durable.
        self.durable: dict[str, int] = {}
        self._hurt: Counter[tuple[str, Path]] = Counter()
        self._agents: dict[str, Process] = {}
        self.status_asked = self.status_wrong = 0

    def _told(self, port: int) -> tuple[str, ...]:
        """Where devices are told to dial."""
        if self._has_proxy:
            return ("--advertise", f"127.0.0.1:{self._door}", "--direct", f"127.0.0.1:{port}")
        others = [each for each in self._ports if each != port]
        return ("--advertise", ",".join(f"127.0.0.1:{each}" for each in (port, *others)))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        proxy = (
            haproxy_server.running(self._folder, door=self._door, managers=self._ports)
            if self._has_proxy
            else contextlib.nullcontext()
        )
        with proxy:
            async with self._running():
                yield

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        first, *others = self.managers
        try:
            first.home.mkdir()
            await first.start()
            await self._until("a manager is up", lambda: first.is_up)
            for other in others:
                (other.home / "cluster").mkdir(parents=True)
                shutil.copytree(first.home / "cluster" / "authority", other.home / "cluster" / "authority")
                await other.start()
            for name in (f"device-{n}" for n in range(1, DEVICES + 1)):
                self._agents[name] = await self._agent(name, first.join_line)
            await self.all_up()
            yield
        finally:
            for agent in self._agents.values():
                if agent.returncode is None:
                    agent.kill()
                await agent.wait()
            for manager in self.managers:
                await manager.stop()
            self._database.close()

    async def _agent(self, name: str, join_line: str) -> Process:
        home = self._folder / name
        cluster = LocalCluster(workers=0, home=self._folder)
        cluster.join_line = join_line
        # By a line that names the proxy, if there is one: it may not have seen the manager yet.
        async with asyncio.timeout(JOINED_WITHIN_S):
            while True:
                with contextlib.suppress(Unreachable):
                    await cluster._enrol(name, home)
                    break
                await asyncio.sleep(0.5)
        command = ("-m", "shoal.runtime.agent_main", "--home", str(home), *ECHO, "--pace-s", str(PACE_S), "--leash")
        with (self._folder / f"{name}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, *command, stdin=PIPE, stdout=DEVNULL, stderr=log
            )

    async def _until(self, what: str, holds: Callable[[], bool], within_s: float = UP_WITHIN_S) -> None:
        give_up_s = time.monotonic() + within_s
        while not holds():
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"not within {within_s:g} s: {what}")
            await asyncio.sleep(0.02)

    async def all_up(self) -> None:
        await self._until("every manager is up", lambda: all(each.is_up for each in self.managers))

    async def submit(self) -> None:
        """One job to each manager."""
        most = {"workers_max": DEVICES_A_JOB}
        plan = {"until": {"epochs": 1_000_000}, "checkpoint_every_s": 1.0, "momentum": 0.0, "pace": "async", **most}
        for number in range(JOBS):
            folder = self._folder / f"job-{number}"
            folder.mkdir()
            async with Operator.open(self.managers[number % MANAGERS].home) as operator:
                job = await operator.submit(echo_job(folder, values=1000, batches=BATCHES), plan=plan)
            self.durable[job] = 0

    async def seats(self) -> dict[str, str]:
        """The seat of each job's manager, living or not. Empty: the database is away."""
        with contextlib.suppress(Away):
            return await asyncio.to_thread(Registry(self._database).managers_of_open_jobs)
        return {}

    async def jobs_of(self, manager: OneManager) -> dict[str, str]:
        """The jobs of a manager, with its seat."""
        return {job: seat for job, seat in (await self.seats()).items() if manager.holds(seat)}

    async def ask(self, job: str) -> tuple[int, int] | None:
        """The newest durable version of a job that its manager heard of, and how many devices work for it there. None:
        that manager does not answer."""
        seat = (await self.seats()).get(job, "")
        manager = next((each for each in self.managers if each.holds(seat) and each.is_up), None)
        if manager is None:
            return None
        with contextlib.suppress(ShoalError, OSError, ValueError, IndexError, TimeoutError):
            async with asyncio.timeout(ANSWERS_WITHIN_S), Operator.open(manager.home) as operator:
                status = await operator.status(job)
                progress = status.jobs[0].progress
                there = [node for node in status.nodes if node.job == job and node.state == "alive"]
                return (progress.durable_version if progress is not None else 0), len(there)
        return None

    async def durable_above(self, job: str, version: int) -> None:
        """Wait until an operator is told of a newer durable version."""
        give_up_s = time.monotonic() + DURABLE_WITHIN_S
        while time.monotonic() < give_up_s:
            if (told := await self.ask(job)) is not None and told[0] > version:
                self.durable[job] = max(self.durable[job], told[0])
                return
            await asyncio.sleep(0.3)
        raise RuntimeError(f"no version after {version} of {job} became durable within {DURABLE_WITHIN_S:g} s")

    async def all_durable(self) -> None:
        """Wait until each job has a newer durable version."""
        await asyncio.gather(*(self.durable_above(job, version) for job, version in self.durable.items()))

    async def devices_back(self, jobs: Iterable[str]) -> None:
        """Wait until each of these jobs has its devices."""
        give_up_s = time.monotonic() + UP_WITHIN_S
        for job in jobs:
            while (told := await self.ask(job)) is None or told[1] < DEVICES_A_JOB:
                if time.monotonic() > give_up_s:
                    raise RuntimeError(f"not all devices work for {job} within {UP_WITHIN_S:g} s")
                await asyncio.sleep(0.2)

    async def hurt(self, kind: str) -> None:
        """One fault, and what came of it."""
        before = dict(self.durable)
        if kind == "database":
            await asyncio.to_thread(self._server.kill)
            await asyncio.sleep(DATABASE_AWAY_S)
            await asyncio.to_thread(self._server.start)
        else:
            await self._hurt_manager(kind)
        kept = {job: await asyncio.to_thread(self._newest_kept, job) for job in before}
        self.acknowledged_lost += sum(kept[job] < version for job, version in before.items())
        await self.all_durable()

    async def _hurt_manager(self, kind: str) -> None:
        """Those that have jobs come in turn."""
        jobs = {manager.home: await self.jobs_of(manager) for manager in self.managers}
        manager = min((each for each in self.managers if jobs[each.home]), key=lambda each: self._hurt[kind, each.home])
        self._hurt[kind, manager.home] += 1
        process, began_s = manager.process, time.monotonic()
        assert process is not None
        if kind == "kill":
            process.kill()
        elif kind == "stop":
            process.send_signal(signal.SIGSTOP)
        else:
            manager.database.cut()
        taking = asyncio.gather(*(self._takeover(kind, job, seat, began_s) for job, seat in jobs[manager.home].items()))
        away = asyncio.create_task(asyncio.sleep(STOPPED_S))
        # It stays away until its jobs are taken over.
        await self._taken(jobs[manager.home])
        await away
        if kind == "stop":
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        manager.database.is_cut = False
        self.takeovers += await taking
        await process.wait()
        await self.all_up()

    async def _taken(self, had: Mapping[str, str]) -> None:
        """Wait until each of these jobs has another manager than it had."""
        give_up_s = time.monotonic() + UP_WITHIN_S
        while True:
            now = await self.seats()
            if all(now.get(job, seat) != seat for job, seat in had.items()):
                return
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"nobody took over {', '.join(had)} within {UP_WITHIN_S:g} s")
            await asyncio.sleep(0.05)

    async def _takeover(self, kind: str, job: str, seat: str, began_s: float) -> Takeover:
        version = self.durable[job]
        await self._taken({job: seat})
        silence_s = time.monotonic() - began_s
        while await self.ask(job) is None:
            await asyncio.sleep(0.05)
        up_s = time.monotonic() - began_s
        await self.devices_back([job])
        devices_s = time.monotonic() - began_s
        await self.durable_above(job, version)
        took = Takeover(
            silence_s=silence_s, start_s=up_s - silence_s, devices_s=devices_s, durable_s=time.monotonic() - began_s
        )
        say(
            f"{kind}: {job} was another manager's after {silence_s:.1f} s, which answered after {up_s:.1f} s; it had"
            f" its devices after {devices_s:.1f} s, a newer version after {took.durable_s:.1f} s"
        )
        return took

    async def look(self, askers: list[Asker]) -> None:
        """Compare what every manager says with what runs, at a moment of quiet."""
        found = await self._compare(askers)
        if any(found):
            # A device may have been given to another job just now.
            found = await self._compare(askers)
        for manager, each in zip(self.managers, found, strict=True):
            tell(manager.home.name, each)
        self.status_asked += len(found)
        self.status_wrong += sum(bool(each) for each in found)

    async def _compare(self, askers: list[Asker]) -> list[list[str]]:
        before = {job: await asyncio.to_thread(self._newest_kept, job) for job in self.durable}
        await asyncio.sleep(KNOWN_WITHIN_S)
        told: list[Told | BaseException] = await asyncio.gather(
            *(asker.ask() for asker in askers), return_exceptions=True
        )
        truth = await asyncio.to_thread(self._truth, before)
        return [wrong(truth, each) if isinstance(each, Told) else [f"it does not answer: {each!r}"] for each in told]

    def _truth(self, before: Mapping[str, int]) -> Truth:
        """What runs, by the processes and by the history that survives."""
        registry, jobs = Registry(self._database), {}
        for job, version in before.items():
            newest = self._newest_kept(job)
            _, workers = registry.applied_between(job, version, newest)
            _, address = registry.manager_of(job) or ("", "")
            jobs[job] = JobTruth(manager=address, version_before=version, version_after=newest, workers=workers)
        living = frozenset(name for name, agent in self._agents.items() if agent.returncode is None)
        return Truth(devices=living, jobs=jobs)

    def _newest_kept(self, job: str) -> int:
        return max((audit.last_version for audit in Registry(self._database).audit(job)), default=0)

    def audit(self) -> tuple[int, int, int]:
        """Batches that are lost, that count twice, and that were applied."""
        registry = Registry(self._database)
        lost = twice = applied = 0
        for job in self.durable:
            audits = registry.audit(job)
            # The history refuses a batch a second time, and then the save that brings it fails.
            twice += sum("must not apply it again" in e.text for e in registry.events_after(job, 0, limit=10_000))
            twice += sum(audit.batches - audit.distinct for audit in audits)
            # The last epoch is not over.
            lost += sum(BATCHES - audit.distinct for audit in audits[:-1])
            applied += sum(audit.batches for audit in audits)
        return lost, twice, applied
