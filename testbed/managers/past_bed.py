"""The bed of ``benchmarks.past``: managers, agents whose trainers count, PostgreSQL behind proxies, and the outcome of
each fault."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
import tempfile
import threading
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from shoal.errors import ShoalError
from shoal.runtime.agent_options import AgentOptions
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.store.checkpoints import version_in
from shoal.store.postgres import PostgresDatabase
from shoal.store.registry import Registry
from testbed.echo_job import echo_job
from testbed.managers.bed import JOBS, Bed, OneManager
from testbed.managers.past_faults import BucketProxy, Known, SlowRelay, counted_wrong, known_rows, read_checkpoint
from testbed.results import say
from testbed.servers.object_servers import BUCKET
from testbed.servers.postgres_server import PostgresServer

PACE_S = 0.15
BATCHES = 20
#: A job moves again within this time after a fault.
MOVES_WITHIN_S = 240.0
#: The events of managers are in the registry within this time.
SAID_WITHIN_S = 30.0
#: Managers are up again within this time, also on a machine that is very busy.
STARTS_WITHIN_S = 600.0
#: A revoked device that dials is refused within this time.
REFUSED_WITHIN_S = 120.0
#: How often a manager that does not answer an operator is asked.
ATTEMPTS = 40

#: In a log: the event that the database went back; and that another manager ended this one, which lived.
SAID = " store.reverted: "
_ENDED = "another manager has taken over the jobs of this one"
#: In a device's log: a manager let it in; a manager refused it for good.
_LET_IN, _REFUSED = "connected to", "revoked"

_TESTS = Path(__file__).parents[2] / "tests" / "integration"


@dataclasses.dataclass(slots=True)
class Outcome:
    """The outcome of one fault."""

    name: str
    went_back: bool
    #: What shows that the fault took place. Empty if nothing does: then it does not count.
    proof: str = ""
    is_noticed: bool = False
    #: Jobs that failed, that are not in the registry, that do not move, or that had ended and are open.
    failed: tuple[str, ...] = ()
    #: Revoked devices that the registry has as members.
    back: tuple[str, ...] = ()
    #: Versions that had been acknowledged and are not in the models that jobs go on from.
    versions_lost: int = 0
    healthy_managers_ended: int = 0
    moved_s: float = 0.0
    #: Lines of the managers' logs that warn, since the fault began.
    warnings: int = 0
    #: The longest time that a computation of 50 ms took this process meanwhile.
    still_s: float = 0.0

    @property
    def is_unnoticed(self) -> bool:
        return self.went_back != self.is_noticed


@dataclasses.dataclass(frozen=True, slots=True)
class Forgotten:
    """What happens between the copy of a database and its return. An operator is told that all of it is done."""

    revoked: str
    ended: str
    submitted: str


class Stillness:
    """Measures in a thread how long ``WORK_S`` of computing take. Managers get no more of the processor than this
    process does: one that computes a few milliseconds for seconds is silent, and others end it rightly."""

    EVERY_S = 2.0
    WORK_S = 0.05

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._is_over = threading.Event()
        threading.Thread(target=self._measure, name="stillness", daemon=True).start()

    def _measure(self) -> None:
        while not self._is_over.wait(self.EVERY_S):
            began_s, until_s = time.monotonic(), time.thread_time() + self.WORK_S
            while time.thread_time() < until_s:
                sum(range(1000))
            self._longest_s = max(self._longest_s, time.monotonic() - began_s)

    def taken_s(self) -> float:
        """Return the longest since this was last called."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s

    def stop(self) -> None:
        self._is_over.set()


class DatabaseServer(PostgresServer):
    """A server where Shoal has its own database, as in docs/operations/restore.md."""

    #: The one that everybody is sent to.
    database = "postgres"

    def url(self, schema: str = "") -> str:
        return super().url(schema).replace("/postgres", f"/{self.database}", 1)

    def new(self) -> str:
        with psycopg.connect(self.url(), autocommit=True) as there:
            there.execute("CREATE DATABASE shoal")
        self.database = "shoal"
        return self.url()


class PastBed(Bed):
    """The bed of ``benchmarks.managers``, with proxies, a replica, and devices that count."""

    def __init__(self, folder: Path, server: DatabaseServer, bucket: BucketProxy, places: Path) -> None:
        super().__init__(folder, server, door="haproxy", lead="devices")
        self.server = server
        #: The disk of PostgreSQL.
        self.places = places
        self.bucket = bucket
        self.relays = [SlowRelay(server.port) for _ in self.managers]
        for manager, relay in zip(self.managers, self.relays, strict=True):
            manager.database = relay
        self.agents: dict[str, Process] = {}
        self._stillness = Stillness()
        #: Devices that are there to be revoked.
        self._spares = [f"spare-{number}" for number in range(1, 9)]
        self.revoked: list[str] = []
        #: Job -> the state in which it ended.
        self.ended: dict[str, str] = {}
        self._join_line = ""
        #: The last database went back while this job was not in it.
        self._submitted_since = ""
        #: Job -> the version that has to be there after the fault.
        self.acknowledged: dict[str, int] = {}
        #: The manager that writes to a database that was replaced, during that fault.
        self.strayed: OneManager | None = None

    # Devices --------------------------------------------------------------------------------------------

    async def _agent(self, name: str, join_line: str) -> Process:
        self._join_line = join_line
        await self._enrol(name)
        if name == "device-1":
            for spare in self._spares:
                await self._enrol(spare)
        return await self.run_agent(name)

    async def _enrol(self, name: str) -> None:
        cluster = LocalCluster(workers=0, home=self._folder)
        cluster.join_line = self._join_line
        for _ in range(ATTEMPTS):
            with contextlib.suppress(ShoalError, OSError):
                await cluster._enrol(name, self._folder / name)
                return
            await asyncio.sleep(0.5)
        raise RuntimeError(f"{name} could not join")

    async def run_agent(self, name: str) -> Process:
        search = os.pathsep.join(filter(None, (str(_TESTS), os.environ.get("PYTHONPATH", ""))))
        options = AgentOptions(home=self._folder / name, child_module="tally_trainer", leash=True)
        with (self._folder / f"{name}.log").open("ab") as log:
            self.agents[name] = process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "shoal.runtime.agent", *options.to_argv()),
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=log,
                env={**os.environ, "PYTHONPATH": search},
            )
        return process

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        try:
            async with super()._running():
                yield
        finally:
            self._stillness.stop()
            for agent in self.agents.values():
                if agent.returncode is None:
                    agent.kill()
                await agent.wait()

    async def kill_leader(self) -> str:
        """Kill -9 a device that leads, and start it again. Return its name, or "" if no device leads."""
        leaders = [row.leader for row in self.registry.jobs() if row.state.is_open and row.leader]
        for name in [each for each in leaders if each in self.agents][:1]:
            self.agents[name].kill()
            await self.agents[name].wait()
            await self.run_agent(name)
            return name
        return ""

    # Jobs -----------------------------------------------------------------------------------------------

    async def submit(self) -> None:
        for manager in self.managers[:JOBS]:
            self.durable[await self._submit(manager, epochs=1_000_000)] = 0

    async def _submit(self, manager: OneManager, *, epochs: int) -> str:
        pace = self._folder / "pace"
        if not pace.exists():  # trainers read it
            pace.write_text(str(PACE_S))
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        ready = echo_job(folder, values=BATCHES, batches=BATCHES)
        ready = dataclasses.replace(ready, name="tally", arguments={"pace": str(pace)})
        plan = {"until": {"epochs": epochs}, "checkpoint_every_s": 1.0, "momentum": 0.0, "workers_max": 1}
        async with Operator.open(manager.home) as operator:
            return await operator.submit(ready, plan=plan)

    async def begin_what_ends(self) -> str:
        """Submit a short job: the database is to know it open."""
        return str(await self._again(lambda: self._submit(self._anyone(), epochs=1)))

    def _anyone(self) -> OneManager:
        return next(each for each in self.managers if each.is_up)

    async def do_what_is_forgotten(self, job: str) -> Forgotten:
        """Revoke a device, submit a job, and wait for another's end."""
        spare = self._spares[len(self.revoked)]
        await self._again(lambda: self._revoke(self._anyone(), spare))
        self.revoked.append(spare)
        submitted = str(await self._again(lambda: self._submit(self._anyone(), epochs=1_000_000)))
        self.durable[submitted] = 0
        self._submitted_since = submitted
        await self._has_ended(job)
        return Forgotten(revoked=spare, ended=job, submitted=submitted)

    async def _has_ended(self, job: str) -> None:
        give_up_s = time.monotonic() + MOVES_WITHIN_S
        while time.monotonic() < give_up_s:
            row = await asyncio.to_thread(self.registry.job, job)
            if row is not None and row.state.is_ended:
                self.ended[job] = str(row.state)
                return
            await asyncio.sleep(0.3)
        raise RuntimeError(f"the job {job} did not end within {MOVES_WITHIN_S:g} s")

    async def _stop_submitted(self) -> None:
        """Stop the job that was submitted for the last fault: its device is free for the next one's."""
        job, self._submitted_since = self._submitted_since, ""
        if job:
            await self._again(lambda: self._stop(self._anyone(), job))
            await self._has_ended(job)
            del self.durable[job]

    async def _stop(self, manager: OneManager, job: str) -> None:
        async with Operator.open(manager.home) as operator:
            await operator.stop(job, "this fault is over")

    async def _revoke(self, manager: OneManager, node: str) -> str:
        async with Operator.open(manager.home) as operator:
            return await operator.revoke_node(node, "stolen")

    async def _again(self, act: Callable[[], Awaitable[Any]]) -> Any:
        for _ in range(ATTEMPTS):
            with contextlib.suppress(ShoalError, OSError, TimeoutError, StopIteration):
                async with asyncio.timeout(30):
                    return await act()
            await asyncio.sleep(0.5)
        raise RuntimeError("no manager answered an operator")

    # Stores ---------------------------------------------------------------------------------------------

    @property
    def registry(self) -> Registry:
        return Registry(self._database)

    @property
    def url(self) -> str:
        """The address of the database, without a proxy."""
        return self._url

    def sql(self, *statements: str) -> list[dict[str, Any]]:
        """Run statements as an operator of PostgreSQL. Return the rows of the last one."""
        with psycopg.connect(self.server.url(), autocommit=True, row_factory=dict_row) as there:
            # Also while others may only read.
            there.execute("SET default_transaction_read_only = off")
            for statement in statements:
                cursor = there.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def known(self, server: DatabaseServer) -> Known:
        """Return what a server knows. It may be a replica."""
        with psycopg.connect(server.url(), row_factory=dict_row) as there:
            nodes, jobs = (
                there.execute("SELECT * FROM nodes").fetchall(),
                there.execute("SELECT * FROM jobs").fetchall(),
            )
        return known_rows({"nodes": nodes, "jobs": jobs})

    def use(self, server: DatabaseServer, *, relays: Sequence[SlowRelay] | None = None) -> None:
        """Let managers reach another server from now on, or some of them, by their relays."""
        self.server = self._server = server
        self._database.close()
        self._url = server.url()
        self._database = PostgresDatabase(self._url)
        for relay in self.relays if relays is None else relays:
            relay.retarget(server.port)

    def bucket_folder(self, job: str) -> Path:
        return self._folder.parent / "objects" / BUCKET / "managers" / "checkpoints" / job

    def note_versions(self) -> None:
        """The damage is about to be done: no version that is acknowledged by now may be lost."""
        self.acknowledged = {
            row.job: version_in(row.checkpoint) for row in self.registry.jobs() if row.job in self.durable
        }

    def forget_copies(self) -> None:
        """Remove the copies of checkpoints that managers have."""
        for manager in self.managers:
            for copy in (manager.home / "cluster" / "checkpoints").glob("*/*.safetensors"):
                copy.unlink(missing_ok=True)

    # What came of it --------------------------------------------------------------------------------------

    async def hurt_by(self, name: str, fault: Callable[[], Awaitable[str]], *, went_back: bool) -> Outcome:
        """Play a fault, and wait until every open job has newer versions."""
        await self._stop_submitted()
        outcome = Outcome(name=name, went_back=went_back)
        said, warned = self.lines(SAID), self.lines(" WARNING ")
        ended = {manager: self.lines(_ENDED, of=[manager]) for manager in self.managers}
        self.strayed = None
        began_s = time.monotonic()
        self.note_versions()
        self._stillness.taken_s()
        outcome.proof = await fault()
        await self.all_up()
        stuck = await self.stuck()
        outcome.moved_s, outcome.still_s = time.monotonic() - began_s, self._stillness.taken_s()
        outcome.is_noticed = await self._says_so(began_s) if went_back else self.lines(SAID) > said
        outcome.warnings = self.lines(" WARNING ") - warned
        rows = {row.job: row for row in self.registry.jobs()}
        outcome.versions_lost = sum(
            max(0, version - version_in(rows[job].checkpoint))
            for job, version in self.acknowledged.items()
            if job in rows
        )
        failed = {row.job for row in rows.values() if row.state == "failed"}
        other = {job for job, state in self.ended.items() if job not in rows or rows[job].state != state}
        outcome.failed = tuple(sorted(failed | other | stuck))
        nodes = {node.node: node for node in self.registry.nodes()}
        outcome.back = tuple(each for each in self.revoked if each not in nodes or nodes[each].state != "revoked")
        outcome.healthy_managers_ended = sum(
            self.lines(_ENDED, of=[manager]) - ended[manager]
            for manager in self.managers
            if manager is not self.strayed
        )
        say(f"{outcome}" + "".join(f"; {job}: {rows[job].reason}" for job in outcome.failed if job in rows))
        return outcome

    async def all_up(self) -> None:
        await self._until("every manager is up", lambda: all(each.is_up for each in self.managers), STARTS_WITHIN_S)

    def lines(self, text: str, *, of: Sequence[OneManager] | None = None) -> int:
        """Count this text in the logs of these managers, or of all."""
        logs = (manager.home / "manager.log" for manager in (self.managers if of is None else of))
        return sum(log.read_text(errors="replace").count(text) for log in logs)

    async def _says_so(self, began_s: float) -> bool:
        """Whether an event of the cluster reports it since then: an operator sees it in `shoal status`. Managers write
        events a moment later."""
        since = time.time() - (time.monotonic() - began_s)
        give_up_s = time.monotonic() + SAID_WITHIN_S
        while time.monotonic() < give_up_s:
            events = self.registry.events_after("cluster", 0, limit=10_000)
            if any(event.kind == "store.reverted" and event.at_s >= since for event in events):
                return True
            await asyncio.sleep(0.5)
        return False

    async def stuck(self) -> set[str]:
        """Wait until every open job has a newer version in the registry than before the damage: a database that was
        mended names another one too. Return those that do not within the time."""
        give_up_s = time.monotonic() + MOVES_WITHIN_S
        first: dict[str, int] = {}
        waits = set(self.durable)
        while waits and time.monotonic() < give_up_s:
            with contextlib.suppress(ShoalError):
                for row in await asyncio.to_thread(self.registry.jobs):
                    version, known = version_in(row.checkpoint), self.acknowledged.get(row.job, -1)
                    if row.job in waits and version > first.setdefault(row.job, max(version, known)):
                        waits.remove(row.job)
            await asyncio.sleep(0.5)
        return waits

    async def let_in(self) -> list[str]:
        """Return which of the revoked devices no manager refuses, if they dial now."""
        began = {name: len(self._device_log(name)) for name in self.revoked}
        for name in self.revoked:
            await self.run_agent(name)
        give_up_s = time.monotonic() + REFUSED_WITHIN_S
        waits = set(self.revoked)
        while waits and time.monotonic() < give_up_s:
            said = {name: self._device_log(name)[began[name] :] for name in waits}
            waits = {name for name, text in said.items() if _REFUSED not in text or _LET_IN in text}
            await asyncio.sleep(0.5)
        return sorted(waits)

    def _device_log(self, name: str) -> str:
        log = self._folder / f"{name}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def final_counts(self) -> tuple[int, int]:
        """Count the batches that are in the final models too often, and too seldom. Models of ended jobs count too."""
        twice = lost = 0
        for job in (*self.durable, *self.ended):
            model, state = self._final(job)
            ledger = state["ledger"]
            more, less = counted_wrong(model, epoch=int(ledger["epoch"]), applied=ledger["applied"])
            twice, lost = twice + more, lost + less
        return twice, lost

    def _final(self, job: str) -> tuple[Any, dict[str, Any]]:
        for _ in range(ATTEMPTS):
            row = self.registry.job(job)
            assert row is not None
            # A job that trains on may have a newer one by now.
            with contextlib.suppress(FileNotFoundError):
                return read_checkpoint(self.bucket_folder(job) / row.checkpoint)
        raise RuntimeError(f"the newest checkpoint of {job} is not in the bucket")
