"""The agent: what every device runs. Dials its manager, keeps heartbeats, and works in the jobs it is given.

Run as ``python -m shoal.runtime.agent --home DIR``. It imports neither torch nor the command line, so that an idle
device pays little for being ready.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ShoalError, Unreachable
from shoal.roles.events import Connected, Disconnected, Reassigned, Received, Started, StopRequested
from shoal.roles.worker import Worker
from shoal.runtime import probe
from shoal.runtime.heap import keep_freed_memory
from shoal.runtime.host import RoleHost
from shoal.runtime.labour import Labour
from shoal.runtime.leash import end_with_starter
from shoal.runtime.places import Places, default_home
from shoal.store.blobs import BlobStore
from shoal.transport.base import Lane, Session, lane_of
from shoal.transport.enrol import Enrolled
from shoal.transport.grpc import GrpcLink
from shoal.wire.limits import PAYLOAD_MAX_BYTES
from shoal.wire.messages import (
    Assign,
    Dismiss,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    Leave,
    Message,
    Welcome,
    Work,
)

log = logging.getLogger("shoal")

#: Waits between attempts to reach the manager. The first is short: a manager that restarts is back at once.
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

#: How long a manager may take to welcome us, and to hear our goodbye.
WELCOME_TIMEOUT_S = 15.0
GOODBYE_TIMEOUT_S = 1.0


@dataclass(slots=True)
class _Job:
    host: RoleHost
    labour: Labour
    leader: str


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
        self._incarnation = secrets.token_hex(8)
        self._blobs = BlobStore(places.cache / "blobs")
        self._jobs: dict[str, _Job] = {}
        self._sessions: dict[Lane, Session] = {}
        self._link: GrpcLink | None = None
        self._welcomed = asyncio.Event()
        self._hung_up = asyncio.Event()
        self._heartbeat_s = 1.0
        self._lost_after_s = 8.0
        self._answered = 0
        self._fetching: dict[str, asyncio.Lock] = {}
        self._endings: set[asyncio.Task[None]] = set()

    # The link -----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stay connected until cancelled; let go of every job then."""
        attempt = 0
        try:
            while True:
                self._welcomed.clear()
                reason = await self._connect_once()
                attempt = 0 if self._welcomed.is_set() else attempt + 1
                wait_s = self._backoff_s(attempt)
                log.warning("%s; trying again in %.1f s", reason, wait_s)
                await asyncio.sleep(wait_s)
        finally:
            for job in list(self._jobs.values()):
                await self._dismantle(job)
            await asyncio.gather(*self._endings, return_exceptions=True)

    async def leave(self, reason: str) -> None:
        """Say goodbye while there is a connection, so that nobody waits for us. The manager hangs up in answer."""
        control = self._sessions.get(Lane.CONTROL)
        if control is None:
            return
        self._hung_up.clear()
        control.post(Leave(reason=reason))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._hung_up.wait(), GOODBYE_TIMEOUT_S)

    async def _connect_once(self) -> str:
        enrolled = self._enrolled
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
            for job in self._jobs.values():
                job.host.post(Disconnected(node=job.leader, reason="the connection ended"))

    def _backoff_s(self, attempt: int) -> float:
        """Longer each time, and different for each device, so that a restarted manager is not stormed."""
        base_s = BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]
        digest = hashlib.sha256(f"{self._identity.node}/{attempt}".encode()).digest()
        return base_s * (0.75 + 0.5 * digest[0] / 255)

    async def _beat(self) -> None:
        """Heartbeats, on time. A manager that stops answering them is given up."""
        try:
            await asyncio.wait_for(self._welcomed.wait(), WELCOME_TIMEOUT_S)
        except TimeoutError:
            for session in self._sessions.values():
                session.close(f"the manager did not welcome this node within {WELCOME_TIMEOUT_S:g} s")
            return
        seq = self._answered = 0
        while True:
            seq += 1
            control = self._sessions.get(Lane.CONTROL)
            if control is not None:
                control.post(Heartbeat(seq=seq, load=probe.load(), memory_free_mb=probe.memory_free_mb()))
                if (seq - self._answered) * self._heartbeat_s > self._lost_after_s:
                    control.close(f"the manager has not answered for {self._lost_after_s:g} s")
            await asyncio.sleep(self._heartbeat_s)

    def opened(self, session: Session) -> None:
        self._sessions[session.lane] = session
        if session.lane is Lane.CONTROL:
            session.post(Hello(node=self._identity.node, incarnation=self._incarnation, facts=probe.facts()))

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
        match message:
            case Welcome():
                self._heartbeat_s, self._lost_after_s = message.heartbeat_s, message.lost_after_s
                if not self._welcomed.is_set():
                    log.info("connected to %s as %s", self._enrolled.manager_endpoint, self._identity.node)
                self._welcomed.set()
                for job in self._jobs.values():
                    job.host.post(Connected(node=job.leader))
            case HeartbeatSeen():
                self._answered = max(self._answered, message.seq)
            case Assign():
                self._assigned(message)
            case Dismiss():
                if not message.job:
                    session.close(f"dismissed: {message.reason}")
                elif message.job in self._jobs:
                    self._jobs[message.job].host.post(StopRequested(reason=message.reason))
            case _:
                addressed = self._jobs.get(str(getattr(message, "job", "")))
                if addressed is not None:
                    event = Received(sender=session.peer.node, message=message, size_bytes=size_bytes)
                    await addressed.host.deliver(event)

    # Jobs ---------------------------------------------------------------------------------------------

    def _assigned(self, assign: Assign) -> None:
        if assign.role != "worker":
            log.warning("asked to be %s of %s, which this release does not do", assign.role, assign.job)
            return
        known = self._jobs.get(assign.job)
        if known is not None:
            known.leader = assign.leader
            known.host.post(Reassigned(term=assign.term, leader=assign.leader))
            return
        labour = Labour(
            assign.spec, self, cache=self._places.cache, child_module=self._child_module, pace_s=self._pace_s
        )
        host = RoleHost(f"worker in {assign.job}", labour.perform)
        self._jobs[assign.job] = _Job(host, labour, assign.leader)
        host.start(Worker(spec=assign.spec, leader=assign.leader, term=assign.term))
        host.post(Started())
        if self._welcomed.is_set():
            host.post(Connected(node=assign.leader))
        log.info("[%s] working for %s: %s", assign.job, assign.leader, assign.reason)

    def send(self, to: str, message: Message) -> None:
        session = self._sessions.get(lane_of(message))
        if session is not None:
            session.post(message)

    def ended(self, job: str, reason: str) -> None:
        record = self._jobs.pop(job, None)
        if record is None:
            return
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
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
