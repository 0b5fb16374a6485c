"""The agent: what every device runs. Dials its manager, keeps heartbeats, and works in the jobs it is given.

Run as ``python -m shoal.runtime.agent --home DIR``. It imports neither torch nor the command line, so that an idle
device pays little for being ready.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import secrets
import signal
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import Refused, ShoalError, Unreachable
from shoal.roles.doorway import TWICE
from shoal.roles.events import LinkMeasured, Received
from shoal.roles.station import (
    GOODBYE_TIMEOUT_S,
    Dial,
    Duty,
    Employ,
    HangUp,
    Part,
    Say,
    Station,
    ToHosted,
    ToWorker,
)
from shoal.roles.worker import Worker
from shoal.runtime import probe
from shoal.runtime.host import RoleHost
from shoal.runtime.labour import Labour
from shoal.runtime.line import Line
from shoal.runtime.outset import set_out
from shoal.runtime.own_data import expose
from shoal.runtime.places import Places, default_home
from shoal.runtime.pool import AgentPool, agent_pool
from shoal.runtime.renewal import Renewal
from shoal.runtime.tenancy import sole_agent, successor
from shoal.store.blobs import BlobStore
from shoal.transport.base import SHUT_OUT
from shoal.transport.enrol import Enrolled
from shoal.transport.identity import Identity
from shoal.wire.limits import PAYLOAD_MAX_BYTES, VALUE_BYTES
from shoal.wire.messages import Assign, Checkpoint, Form, Message, Pass, Values, Welcome, Work, is_of_pool

if TYPE_CHECKING:
    from shoal.runtime.outpost import Outpost

log = logging.getLogger("shoal")

#: A blob large enough that the time it took tells the rate of the link.
MEASURED_BYTES = 1 << 20


@dataclass(slots=True)
class _Job:
    host: RoleHost
    labour: Labour


class Agent:
    """Holds a line to its manager and to all who lead it, in whole or in part; drives its workers, and all it leads."""

    def __init__(
        self,
        enrolled: Enrolled,
        places: Places,
        *,
        child_module: str = "shoal.training.child",
        pace_s: float = 0.0,
        door_port: int = 0,
        lends: bool = False,
    ) -> None:
        self._places = places
        self._child_module = child_module
        self._pace_s = pace_s
        self._door_port = door_port
        self._renewal = Renewal(places.node, enrolled)
        self._manager = enrolled.manager_node
        self._station = Station(node=enrolled.identity.node, incarnation=secrets.token_hex(8), manager=self._manager)
        self._blobs = BlobStore(places.cache / "blobs")
        self._jobs: dict[str, _Job] = {}
        self._lines: dict[str, Line] = {}
        #: Keeps each line to a leader dialled.
        self._holding: dict[str, asyncio.Task[None]] = {}
        #: What this device hosts, once it was asked to lead, in whole or in part.
        self._outpost: Outpost | None = None
        #: What is said to it while it is set up.
        self._to_host: list[ToHosted] = []
        self._fetching: dict[str, asyncio.Lock] = {}
        #: What multiplies for others here, if this device lends.
        self._lending: AgentPool | None = agent_pool(manager=self._manager, send=self.send) if lends else None
        self._link_bytes_per_s = 0.0
        self._medium = ""
        self._endings: set[asyncio.Task[None]] = set()

    @property
    def identity(self) -> Identity:
        return self._renewal.member.identity

    @property
    def incarnation(self) -> str:
        return self._station.incarnation

    # Lines --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stay connected until cancelled or shut out; let go of every job then."""
        renewing = asyncio.create_task(self._renewal.run())
        if self._lending is not None:
            self._lending.start()
        try:
            while True:
                reason = await self._connect_once()
                was_welcome = self._station.welcomed
                self._carry(self._station.on_closed(self._manager, reason=reason))
                if self._lending is not None:
                    self._lending.disconnected(reason)
                if self._outpost is not None:
                    self._outpost.out_of_touch(reason)
                if SHUT_OUT in reason:
                    raise Refused(reason)
                if not was_welcome and TWICE not in reason:
                    await self._renewal.not_let_in()
                wait_s = self._station.backoff_s(self._manager)
                log.warning("%s; trying again in %.1f s", reason, wait_s)
                await asyncio.sleep(wait_s)
        finally:
            renewing.cancel()
            for holding in self._holding.values():
                holding.cancel()
            if self._lending is not None:
                await self._lending.stop()
            for job in list(self._jobs.values()):
                await self._dismantle(job)
            if self._outpost is not None:
                await self._outpost.stop()
            await asyncio.gather(renewing, *self._holding.values(), *self._endings, return_exceptions=True)

    async def _connect_once(self) -> str:
        endpoint = self._renewal.member.manager_endpoint
        line = self._lines[self._manager] = Line(self, peer=self._manager, role="manager", endpoint=endpoint)
        try:
            return await line.connect_once()
        finally:
            del self._lines[self._manager]

    def _dial(self, node: str, endpoint: str) -> None:
        line = self._lines[node] = Line(self, peer=node, role="node", endpoint=endpoint)
        self._holding[node] = asyncio.create_task(self._hold(line), name=f"line to {node}")

    async def _hold(self, line: Line) -> None:
        """Stay connected to a leader or sub-leader, until nobody here works for it."""
        while True:
            reason = await line.connect_once()
            if self._lines.get(line.peer) is not line:
                return
            self._carry(self._station.on_closed(line.peer, reason=reason))
            wait_s = self._station.backoff_s(line.peer)
            log.warning("%s at %s: %s; trying again in %.1f s", line.peer, line.endpoint, reason, wait_s)
            await asyncio.sleep(wait_s)

    def _part(self, node: str, reason: str) -> None:
        line, holding = self._lines.pop(node), self._holding.pop(node)
        line.hang_up(reason)
        # It may be at its end of waiting to dial again: it goes by itself otherwise.
        if not line.is_open:
            holding.cancel()
        self._endings.add(holding)
        holding.add_done_callback(self._endings.discard)

    async def leave(self, reason: str) -> None:
        """Say goodbye while there is a connection, so that nobody waits for us. The manager hangs up in answer."""
        line = self._lines.get(self._manager)
        if line is None or not line.is_open:
            return
        self._carry(self._station.leave(reason))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(line.hung_up.wait(), GOODBYE_TIMEOUT_S)

    def heartbeat_s(self, peer: str) -> float:
        return self._station.heartbeat_s(peer)

    def connect_timeout_s(self, peer: str) -> float:
        return self._station.connect_timeout_s(peer)

    def line_opened(self, line: Line) -> None:
        if self._lines.get(line.peer) is not line:
            line.hang_up("nobody needs it any more")
            return
        if line.peer == self._manager:
            self._later(self._look_at_link(line.endpoint))
        leads = self._outpost.leads() if self._outpost is not None else ()
        lends = self._lending is not None
        self._carry(self._station.on_opened(line.peer, probe.facts(), time.monotonic(), leads=leads, lends=lends))

    def line_beat(self, line: Line, now_s: float) -> None:
        if self._lines.get(line.peer) is line:
            self._carry(
                self._station.beat(
                    line.peer,
                    now_s,
                    load=probe.load(),
                    memory_free_mb=probe.memory_free_mb(),
                    link_bytes_per_s=self._link_bytes_per_s,
                )
            )

    def line_payload_limit(self, line: Line, message: Message) -> int:
        if isinstance(message, Checkpoint) and line.peer == self._manager:
            awaited = self._outpost is not None and self._outpost.has(message.job)
            return PAYLOAD_MAX_BYTES if awaited else 0
        if self._lending is not None and line.peer == self._manager and is_of_pool(message):
            return self._lending.payload_limit(message)
        if not self._station.expects(message, line.peer):
            return 0
        match message:
            case Form():
                # A part of the model, its momentum, and what was not given out of it.
                return min(3 * VALUE_BYTES * (message.stop - message.start), PAYLOAD_MAX_BYTES)
            case Values():
                return min(VALUE_BYTES * (message.stop - message.start), PAYLOAD_MAX_BYTES)
            case _:
                return PAYLOAD_MAX_BYTES

    def line_payload_buffer(self, line: Line, message: Message, size_bytes: int) -> memoryview | None:
        """A model is received where the trainer reads it; from its leader alone."""
        if not isinstance(message, Work) or not self._station.is_led_by(message.job, line.peer):
            return None
        job = self._jobs.get(message.job)
        return job.labour.model_buffer(size_bytes) if job else None

    async def line_received(self, line: Line, message: Message, size_bytes: int) -> None:
        if self._lines.get(line.peer) is not line:
            return
        is_manager = line.peer == self._manager
        if is_of_pool(message):
            if self._lending is not None and is_manager:
                await self._lending.received(message, size_bytes)
            return
        if isinstance(message, Welcome) and is_manager:
            if not self._station.welcomed:
                told = f": {message.reason}" if message.reason else ""
                log.info("connected to %s as %s%s", line.endpoint, self.identity.node, told)
            self._renewal.heard(message.time_s)
        event = Received(sender=line.peer, message=message, size_bytes=size_bytes)
        for duty in self._station.on_received(event):
            match duty:
                case ToWorker(event=Received()):
                    # Waited for: the memory a model lies in is used again for the next message.
                    await self._jobs[duty.job].host.deliver(duty.event)
                case ToHosted(message=(Form() | Pass()) as formed) if self._outpost is not None:
                    await self._outpost.formed_by(duty.sender, formed)
                case _:
                    self._carry([duty])
        if isinstance(message, Welcome) and is_manager and self._outpost is not None:
            self._outpost.in_touch()

    # Jobs ---------------------------------------------------------------------------------------------

    def _carry(self, duties: list[Duty]) -> None:
        for duty in duties:
            match duty:
                case ToWorker():
                    self._jobs[duty.job].host.post(duty.event)
                case Employ():
                    self._employ(duty.assign)
                case Say():
                    self.send(duty.to, duty.message)
                case Dial():
                    self._dial(duty.node, duty.endpoint)
                case Part():
                    self._part(duty.node, duty.reason)
                case HangUp():
                    line = self._lines.get(duty.node)
                    if line is not None:
                        line.hang_up(duty.reason)
                case ToHosted():
                    self._hosted(duty)

    def _employ(self, assign: Assign) -> None:
        labour = Labour(
            assign.spec,
            self,
            member=self.identity,
            cache=self._places.cache,
            child_module=self._child_module,
            pace_s=self._pace_s,
            own=self._places.node,
        )
        host = RoleHost(f"worker in {assign.job}", labour.perform)
        self._jobs[assign.job] = _Job(host, labour)
        host.post(self._link())
        host.start(Worker(spec=assign.spec, leader=assign.leader, term=assign.term))
        log.info("[%s] working for %s: %s", assign.job, assign.leader, assign.reason)

    def send(self, to: str, message: Message) -> None:
        line = self._lines.get(to)
        if line is not None:
            line.post(message)

    def ended(self, job: str, reason: str) -> None:
        record = self._jobs.pop(job, None)
        if record is None:
            return
        self._carry(self._station.on_worker_ended(job))
        log.info("[%s] done: %s", job, reason)
        self._later(self._dismantle(record))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _dismantle(self, job: _Job) -> None:
        await job.host.stop()
        await job.labour.stop()

    # Leading -------------------------------------------------------------------------------------------

    def _hosted(self, duty: ToHosted) -> None:
        if self._outpost is not None:
            self._outpost.told(duty.message, sender=duty.sender)
        elif self._to_host or isinstance(duty.message, Assign | Form):
            self._to_host.append(duty)
            if len(self._to_host) == 1:
                self._later(self._begin_to_host())

    async def _begin_to_host(self) -> None:
        """Most devices never lead: they need not pay for what it takes."""
        # In a thread: it is much to read, and a lease that comes meanwhile does not wait for it.
        outpost = await asyncio.to_thread(_import_outpost)
        self._outpost = outpost(
            self,
            manager=self._manager,
            manager_endpoint=self._renewal.member.manager_endpoint,
            port=self._door_port,
        )
        duties, self._to_host = self._to_host, []
        for duty in duties:
            self._hosted(duty)

    # The link ------------------------------------------------------------------------------------------

    def _link(self) -> LinkMeasured:
        # What it sends is not measured: nothing large goes out before the first lease.
        return LinkMeasured(down_bytes_per_s=self._link_bytes_per_s, medium=self._medium)

    def _tell_link(self) -> None:
        for job in self._jobs.values():
            job.host.post(self._link())

    async def _look_at_link(self, endpoint: str) -> None:
        """In a thread: a name may take long to look up, and heartbeats do not wait."""
        self._medium = await asyncio.to_thread(probe.medium, endpoint)
        self._tell_link()

    # Blobs ---------------------------------------------------------------------------------------------

    async def fetch(self, sha256: str) -> Path:
        """Bring a blob into the cache: once, verified by its hash, shared by all jobs."""
        lock = self._fetching.setdefault(sha256, asyncio.Lock())
        async with lock:
            if not self._blobs.has(sha256):
                await self._download(sha256)
            return self._blobs.path(sha256)

    async def _download(self, sha256: str) -> None:
        line = self._lines.get(self._manager)
        if line is None or line.link is None:
            raise Unreachable("not connected; the download goes on when the manager is back")
        sizes: list[int] = []
        began_s = time.monotonic()
        chunks = line.link.fetch(sha256, on_size=sizes.append)
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
        if sizes and sizes[0] >= MEASURED_BYTES:
            rate = sizes[0] / max(time.monotonic() - began_s, 1e-3)
            # The best of late: a link is as fast as it was when nobody else used it.
            self._link_bytes_per_s = max(rate, 0.9 * self._link_bytes_per_s)
            self._tell_link()


def _import_outpost() -> type[Outpost]:
    from shoal.runtime.outpost import Outpost

    return Outpost


async def run_agent(
    places: Places, *, child_module: str, pace_s: float = 0.0, door_port: int = 0, lends: bool = False
) -> None:
    """Run until SIGINT or SIGTERM."""
    enrolled = Enrolled.load(places.node)
    agent = Agent(enrolled, places, child_module=child_module, pace_s=pace_s, door_port=door_port, lends=lends)
    running = asyncio.create_task(agent.run())
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    stopping = asyncio.create_task(told.wait())
    await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if told.is_set() and (pid := successor(places.node)) is not None:
        log.warning("`shoal join` was started again from this home (process %d): this agent ends", pid)
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
    parser.add_argument("--lead-port", type=int, default=0, help="where to listen while this device leads; 0: any")
    parser.add_argument("--data", type=Path, help="the folder of this device's own examples; else as it joined")
    parser.add_argument("--lend", action="store_true", help="multiply matrices for analysts of this cluster, too")
    parser.add_argument("--leash", action="store_true", help="end when standard input closes")
    parser.add_argument("--child-module", default="shoal.training.child", help=argparse.SUPPRESS)
    parser.add_argument("--pace-s", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    set_out(quiet=given.quiet, leash=given.leash)
    try:
        folder = expose(Places(given.home), given.data)
        if folder is not None:
            log.info("examples of its own are in %s", folder)
        with sole_agent(Places(given.home).node):
            running = run_agent(
                Places(given.home),
                child_module=given.child_module,
                pace_s=given.pace_s,
                door_port=given.lead_port,
                lends=given.lend,
            )
            asyncio.run(running)
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 4 if isinstance(error, Refused) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
