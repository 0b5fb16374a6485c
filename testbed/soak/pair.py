"""A cluster with two managers to be hurt: PostgreSQL, a bucket, devices in networks of their own that know both.

The second manager is the one that is hurt: killed, stopped, cut off from the database. The first takes its jobs over
and lives as long as the cluster, so that what grows in it can be seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

from shoal.runtime.operator import Operator
from shoal.store.base import Away
from shoal.store.postgres import PostgresDatabase
from shoal.store.registry import Registry
from testbed.chaos.faults import CUT_MANAGER, KILL_DATABASE, STOP_MANAGER, Fault
from testbed.chaos.kit import ROOT, START_TIMEOUT_S, Site
from testbed.chaos.watch import VERSIONS_VARIABLE
from testbed.managers.bed import OneManager
from testbed.namespaces import Network
from testbed.servers import object_servers, postgres_server
from testbed.servers.haproxy_server import free_pair
from testbed.servers.object_servers import BUCKET
from testbed.servers.postgres_server import PostgresServer


class Servers:
    """PostgreSQL and a bucket, whose files are in the cluster's home."""

    def __init__(self, database: PostgresServer, environment: Mapping[str, str]) -> None:
        self.database = database
        #: What reaches the bucket.
        self.environment = dict(environment)


def why_no_servers() -> str:
    """Why there can be no second manager here; empty: there can."""
    if postgres_server.programs() is None:
        return "two managers take PostgreSQL: apt-get install postgresql"
    return object_servers.missing("rclone")


@contextlib.contextmanager
def servers(home: Path) -> Iterator[Servers]:
    """Until the end of the block, or of this process. To be called in the main thread."""
    programs = postgres_server.programs()
    assert programs is not None, "why_no_servers() was asked"
    # PostgreSQL is another user, who passes through and sees nothing.
    home.chmod(0o711)
    with object_servers.running("rclone", home / "objects", is_bound=True) as objects:
        database = PostgresServer(home / "postgres", programs, is_bound=True)
        database.start()
        try:
            yield Servers(database, objects.environment)
        finally:
            database.stop()


class PairSite(Site):
    def __init__(self, home: Path, *, devices: Mapping[str, float], network: Network, servers: Servers) -> None:
        super().__init__(home, devices=devices, network=network, start_s=0.0, lead="devices")
        self._servers = servers
        self._url = servers.database.new()
        ports = [free_pair(), free_pair()]
        self._managers = [
            OneManager(
                home / f"manager-{number}",
                self._url,
                self._options(port, other),
                module="testbed.chaos.manager",
                environment={
                    **servers.environment,
                    VERSIONS_VARIABLE: str(home / "versions"),
                    "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))),
                },
            )
            for number, (port, other) in enumerate([ports, ports[::-1]], start=1)
        ]
        self._steady, self._hurt = self._managers

    def _options(self, port: int, other: int) -> tuple[str, ...]:
        dialled = f"{self._host}:{port},{self._host}:{other}"
        where = ("--host", self._host, "--port", str(port), "--advertise", dialled)
        return (*where, "--blobs", f"s3://{BUCKET}/soak", "--lead", "devices")

    # Processes -----------------------------------------------------------------------------------------

    def _make_disk(self) -> None:
        """None: checkpoints are in the bucket."""

    async def _start_manager(self) -> None:
        self._steady.home.mkdir()
        await self._up(self._steady)
        authority = self._hurt.home / "cluster" / "authority"
        authority.parent.mkdir(parents=True)
        shutil.copytree(self._steady.home / "cluster" / "authority", authority)
        await self._up(self._hurt)
        self._join_line = self._steady.join_line

    async def _up(self, manager: OneManager) -> None:
        await manager.start()
        async with asyncio.timeout(START_TIMEOUT_S):
            while not manager.is_up:
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        await super().close()
        for manager in self._managers:
            await manager.stop()

    def leading(self) -> frozenset[str]:
        """The manager that has the job, too."""
        seats: list[str] = []
        with contextlib.suppress(Away), self.registry() as registry:
            seats = list(registry.managers_of_open_jobs().values())
        having = {manager.home.name for manager in self._managers if any(manager.holds(seat) for seat in seats)}
        return super().leading() | having

    def living(self) -> dict[str, int]:
        found = super().living()
        for manager in self._managers:
            if manager.process is not None and manager.process.returncode is None:
                found[manager.home.name] = manager.process.pid
        return found

    # Faults --------------------------------------------------------------------------------------------

    def _ways(self) -> dict[str, Callable[[Fault], Awaitable[None]]]:
        ways = {STOP_MANAGER: self._stop_manager, CUT_MANAGER: self._cut_manager, KILL_DATABASE: self._kill_database}
        return {**super()._ways(), **ways}

    async def _kill_manager(self, fault: Fault) -> None:
        if self._hurt.process is None or self._hurt.process.returncode is not None:
            self.missed.append(fault)
            return
        # It starts again by itself.
        self._hurt.process.kill()

    async def _stop_manager(self, fault: Fault) -> None:
        process = self._hurt.process
        if process is None or process.returncode is not None:
            self.missed.append(fault)
            return
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)

    async def _cut_manager(self, fault: Fault) -> None:
        self._hurt.database.cut()
        await asyncio.sleep(fault.for_s)
        self._hurt.database.is_cut = False

    async def _kill_database(self, fault: Fault) -> None:
        self._servers.database.kill()
        await asyncio.sleep(fault.for_s)
        # Not in another thread: it would end with that one. Everything else waits about a second.
        self._servers.database.start()

    # What came of it -----------------------------------------------------------------------------------

    def operator(self) -> contextlib.AbstractAsyncContextManager[Operator]:
        return Operator.open(self._steady.home)

    def submitter(self) -> contextlib.AbstractAsyncContextManager[Operator]:
        """The job is the manager's that is hurt, if it is there."""
        return Operator.open((self._hurt if self._hurt.is_up else self._steady).home)

    def registry(self) -> Registry:
        return Registry(PostgresDatabase(self._url))

    def logs(self) -> list[Path]:
        return [*super().logs(), *sorted(self.home.glob("manager-*/manager.log"))]
