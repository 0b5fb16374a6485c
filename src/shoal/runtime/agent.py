"""The agent: what every device runs. Dials its manager, keeps heartbeats, and works in the jobs it is given.

Run as ``python -m shoal.runtime.agent --home DIR``. It imports neither torch nor the command line, so that an idle
device pays little for being ready.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Refused, ShoalError, Unreachable
from shoal.roles.events import Received
from shoal.roles.station import GOODBYE_TIMEOUT_S, Duty, Employ, HangUp, Say, Station, ToWorker
from shoal.roles.worker import Worker
from shoal.runtime import probe
from shoal.runtime.heap import keep_freed_memory
from shoal.runtime.host import RoleHost
from shoal.runtime.labour import Labour
from shoal.runtime.leash import end_with_starter
from shoal.runtime.places import Places, default_home
from shoal.runtime.renewal import Renewal
from shoal.store.blobs import BlobStore
from shoal.transport.base import SHUT_OUT, Session
from shoal.transport.enrol import Enrolled
from shoal.transport.grpc import GrpcLink
from shoal.wire.lanes import Lane, lane_of
from shoal.wire.limits import PAYLOAD_MAX_BYTES
from shoal.wire.messages import Assign, Message, Welcome, Work

log = logging.getLogger("shoal")


@dataclass(slots=True)
class _Job:
    host: RoleHost
    labour: Labour


class Agent:
    """A listener on its own link (see ``transport.base``) and the driver of its workers."""

    def __init__(
        self, enrolled: Enrolled, places: Places, *, child_module: str = "shoal.training.child", pace_s: float = 0.0
    ) -> None:
        self._enrolled = enrolled
        self._identity = enrolled.identity
        self._places = places
        self._child_module = child_module
        self._pace_s = pace_s
        self._renewal = Renewal(places.node, enrolled)
        self._station = Station(node=self._identity.node, incarnation=secrets.token_hex(8))
        self._blobs = BlobStore(places.cache / "blobs")
        self._jobs: dict[str, _Job] = {}
        self._sessions: dict[Lane, Session] = {}
        self._link: GrpcLink | None = None
        self._hung_up = asyncio.Event()
        self._fetching: dict[str, asyncio.Lock] = {}
        self._endings: set[asyncio.Task[None]] = set()

    # The link -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stay connected until cancelled or shut out; let go of every job then."""
        renewing = asyncio.create_task(self._renewal.run())
        try:
            while True:
                reason = await self._connect_once()
                was_welcome = self._station.welcomed
                self._carry(self._station.closed())
                if SHUT_OUT in reason:
                    raise Refused(reason)
                if not was_welcome:
                    await self._renewal.not_let_in()
                wait_s = self._station.backoff_s()
                log.warning("%s; trying again in %.1f s", reason, wait_s)
                await asyncio.sleep(wait_s)
        finally:
            renewing.cancel()
            for job in list(self._jobs.values()):
                await self._dismantle(job)
            await asyncio.gather(renewing, *self._endings, return_exceptions=True)

    async def leave(self, reason: str) -> None:
        """Say goodbye while there is a connection, so that nobody waits for us. The manager hangs up in answer."""
        control = self._sessions.get(Lane.CONTROL)
        if control is None:
            return
        self._hung_up.clear()
        self._carry(self._station.leaving(reason))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hung_up.wait(), GOODBYE_TIMEOUT_S)

    async def _connect_once(self) -> str:
        self._enrolled = enrolled = self._renewal.member
        self._identity = enrolled.identity
        self._link = GrpcLink(self._identity, server_node=enrolled.manager_node, endpoint=enrolled.manager_endpoint)
        beating = asyncio.create_task(self._beat())
        try:
            return await self._link.run(self)
        except ShoalError as error:
            return str(error)
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            self._link = None

    async def _beat(self) -> None:
        """Heartbeats, on time."""
        while True:
            await asyncio.sleep(self._station.heartbeat_s)
            if Lane.CONTROL in self._sessions:
                self._carry(
                    self._station.beat(time.monotonic(), load=probe.load(), memory_free_mb=probe.memory_free_mb())
                )

    def opened(self, session: Session) -> None:
        self._sessions[session.lane] = session
        if session.lane is Lane.CONTROL:
            self._carry(self._station.opened(probe.facts(), time.monotonic()))

    def closed(self, session: Session, reason: str) -> None:
        self._sessions.pop(session.lane, None)
        if session.lane is Lane.CONTROL:
            self._hung_up.set()

    def payload_limit(self, session: Session, message: Message) -> int:
        return PAYLOAD_MAX_BYTES if isinstance(message, Work) and message.job in self._jobs else 0

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        """A model is received where the trainer reads it."""
        job = self._jobs.get(message.job) if isinstance(message, Work) else None
        return job.labour.model_buffer(size_bytes) if job else None

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        if isinstance(message, Welcome) and not self._station.welcomed:
            told = f": {message.reason}" if message.reason else ""
            log.info("connected to %s as %s%s", self._enrolled.manager_endpoint, self._identity.node, told)
        if isinstance(message, Welcome):
            self._renewal.heard(message.time_s)
        event = Received(sender=session.peer.node, message=message, size_bytes=size_bytes)
        for duty in self._station.received(event):
            match duty:
                case ToWorker(event=Received()):
                    # Waited for: the memory a model lies in is used again for the next message.
                    await self._jobs[duty.job].host.deliver(duty.event)
                case _:
                    self._carry([duty])

    # Jobs ---------------------------------------------------------------------------------------------

    def _carry(self, duties: list[Duty]) -> None:
        for duty in duties:
            match duty:
                case ToWorker():
                    self._jobs[duty.job].host.post(duty.event)
                case Employ():
                    self._employ(duty.assign)
                case Say():
                    self.send("", duty.message)
                case HangUp():
                    for session in list(self._sessions.values()):
                        session.close(duty.reason)

    def _employ(self, assign: Assign) -> None:
        if assign.role != "worker":
            log.warning("asked to be %s of %s, which this release does not do", assign.role, assign.job)
            return
        labour = Labour(
            assign.spec, self, cache=self._places.cache, child_module=self._child_module, pace_s=self._pace_s
        )
        host = RoleHost(f"worker in {assign.job}", labour.perform)
        self._jobs[assign.job] = _Job(host, labour)
        host.start(Worker(spec=assign.spec, leader=assign.leader, term=assign.term))
        log.info("[%s] working for %s: %s", assign.job, assign.leader, assign.reason)

    def send(self, to: str, message: Message) -> None:
        session = self._sessions.get(lane_of(message))
        if session is not None:
            session.post(message)

    def ended(self, job: str, reason: str) -> None:
        record = self._jobs.pop(job, None)
        if record is None:
            return
        self._station.ended(job)
        log.info("[%s] done: %s", job, reason)
        task = asyncio.create_task(self._dismantle(record))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _dismantle(self, job: _Job) -> None:
        await job.host.stop()
        await job.labour.stop()

    async def fetch(self, sha256: str) -> None:
        """Bring a blob into the cache: once, verified by its hash, shared by all jobs."""
        lock = self._fetching.setdefault(sha256, asyncio.Lock())
        async with lock:
            if self._blobs.has(sha256):
                return
            link = self._link
            if link is None:
                raise Unreachable("not connected; the download goes on when the manager is back")
            sizes: list[int] = []
            chunks = link.fetch(sha256, on_size=sizes.append)
            writer = None
            try:
                async for chunk in chunks:
                    writer = writer or self._blobs.writer(sha256, sizes[0])
                    await asyncio.to_thread(writer.feed, chunk)
                writer = writer or self._blobs.writer(sha256, sizes[0] if sizes else 0)
                await asyncio.to_thread(writer.commit)
            except BaseException:
                if writer is not None:
                    writer.abort()
                raise


async def run_agent(places: Places, *, child_module: str, pace_s: float = 0.0) -> None:
    """Run until SIGINT or SIGTERM."""
    agent = Agent(Enrolled.load(places.node), places, child_module=child_module, pace_s=pace_s)
    running = asyncio.create_task(agent.run())
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    stopping = asyncio.create_task(told.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        await agent.leave("the agent was stopped")
        running.cancel()
    stopping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


def main() -> int:
    parser = argparse.ArgumentParser(prog="shoal-agent", description="Run this enrolled device's agent.")
    parser.add_argument("--home", type=Path, default=default_home())
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--leash", action="store_true", help="end when standard input closes")
    parser.add_argument("--child-module", default="shoal.training.child", help=argparse.SUPPRESS)
    parser.add_argument("--pace-s", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.leash:
        end_with_starter()
    level = logging.WARNING if given.quiet else logging.INFO
    logging.basicConfig(level=level, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    keep_freed_memory()
    try:
        asyncio.run(run_agent(Places(given.home), child_module=given.child_module, pace_s=given.pace_s))
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 4 if isinstance(error, Refused) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
