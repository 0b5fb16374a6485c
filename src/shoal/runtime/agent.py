"""The agent, which every device runs: dials its manager, keeps heartbeats, and works in the jobs that it is given.

Run by ``agent_main``. It imports neither torch nor the command line, and before its first
job neither numpy nor the worker: an idle device pays little for being ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.errors import Refused, ShoalError, Unreachable
from shoal.identity.card_files import pinned_operator
from shoal.identity.enrolled import Enrolled
from shoal.identity.identity import Identity
from shoal.identity.signing import check_on_device
from shoal.net.base import SHUT_OUT
from shoal.roles.events import LinkMeasured, Received
from shoal.roles.node.device_router import GOODBYE_TIMEOUT_S, DeviceRouter, ToHosted
from shoal.roles.node.doorway import TWICE
from shoal.roles.node.worker_table import WorkerTable
from shoal.runtime import log_lines, own_labels, own_processor, own_share, probe
from shoal.runtime.agent_options import AgentOptions
from shoal.runtime.agent_usage import AgentReading, AgentUsage, device_exporter
from shoal.runtime.blob_fetcher import BlobFetcher
from shoal.runtime.device_limits import DeviceLimits
from shoal.runtime.dialer import Dialer
from shoal.runtime.own_data import expose
from shoal.runtime.pool import AgentPool, agent_pool
from shoal.runtime.process_setup import set_out
from shoal.runtime.renewal import Renewal
from shoal.runtime.resting import Resting
from shoal.runtime.role_host import RoleHost
from shoal.runtime.supervisor import Supervisor
from shoal.runtime.tenancy import sole_agent, successor
from shoal.store.blobs import BlobStore
from shoal.wire.limits import PAYLOAD_MAX_BYTES, VALUE_BYTES
from shoal.wire.messages import (
    Assign,
    Checkpoint,
    Facts,
    JobSpec,
    Message,
    ModelShard,
    RelayModel,
    SetUpAggregator,
    Welcome,
    Work,
)

if TYPE_CHECKING:
    from shoal.net.grpc import GrpcLink
    from shoal.runtime.hub_driver import HubDriver
    from shoal.runtime.leader_host import LeaderHost
    from shoal.runtime.worker_driver import WorkerDriver

log = logging.getLogger("shoal")


@dataclass(frozen=True, slots=True)
class _Job:
    """A worker's host, and the trainer that it drives; or a hub's."""

    host: RoleHost
    worker_driver: WorkerDriver | HubDriver


class Agent:
    """Holds a line to its manager and to every leader and aggregator of its jobs; drives the roles of this device."""

    def __init__(self, enrolled: Enrolled, options: AgentOptions) -> None:
        self._options = options
        self._places = places = options.places
        self._renewal = Renewal(places.node, enrolled)
        self._manager = enrolled.manager_node
        self._router = DeviceRouter(node=enrolled.identity.node, incarnation=os.urandom(8).hex(), manager=self._manager)
        self._workers: WorkerTable[_Job] = WorkerTable(self._router, self)
        #: What drives the trainer of a job, once the first job was assigned.
        self._worker_driver: asyncio.Task[type[WorkerDriver]] | None = None
        self._dialers: dict[str, Dialer] = {}
        #: Keeps each line to a leader dialled.
        self._holding: dict[str, asyncio.Task[None]] = {}
        #: The leaders and aggregators of this device, once it was asked to lead, in whole or in part.
        self._leader_host: LeaderHost | None = None
        #: Messages to them that came while the leader host is set up.
        self._to_host: list[ToHosted] = []
        #: It had no work at its last heartbeat.
        self._is_waiting = False
        #: Multiplies for clients of the pool, if this device lends.
        self._lending: AgentPool | None = agent_pool(manager=self._manager, send=self.send) if options.lend else None
        self._link_bytes_per_s = 0.0
        self._medium = ""
        self._usage = AgentUsage()
        self._fetcher = BlobFetcher(
            BlobStore(places.cache / "blobs"),
            link=self._manager_link,
            on_received=self._on_received,
            usage=self._usage,
            files=options.files,
            loopback_http=options.loopback_http,
        )
        self._endings: set[asyncio.Task[None]] = set()

    @property
    def identity(self) -> Identity:
        return self._renewal.member.identity

    @property
    def incarnation(self) -> str:
        return self._router.incarnation

    def reading(self) -> AgentReading:
        """What an exporter on this device tells. Called from its threads: it changes nothing."""
        manager = self._dialers.get(self._manager)
        workers = list(self._workers.workers)
        return AgentReading(
            node=self.identity.node,
            connected=manager is not None and manager.is_open,
            jobs=tuple(worker.worker_driver.job for worker in workers),
            trained_s=self._usage.trained_s,
            leases=self._usage.leases,
            bytes_up=self._usage.bytes_up,
            bytes_down=self._usage.bytes_down,
            link_bytes_per_s=self._link_bytes_per_s,
            cpu_s=time.process_time() + sum(worker.worker_driver.cpu_s() for worker in workers),
        )

    # Lines --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Stay connected until cancelled or shut out; let go of every job then."""
        renewing = asyncio.create_task(self._renewal.run())
        if self._lending is not None:
            self._lending.start()
        try:
            self._router.know_manager(self._renewal.member.manager_endpoint, self._renewal.member.managers)
            endpoint = self._router.manager_endpoint
            dialer = self._dialers[self._manager] = Dialer(self, peer=self._manager, role="manager", endpoint=endpoint)
            await dialer.hold()
        finally:
            renewing.cancel()
            for holding in self._holding.values():
                holding.cancel()
            if self._lending is not None:
                await self._lending.stop()
            for worker in self._workers.workers:
                await self._dismantle(worker)
            if self._leader_host is not None:
                await self._leader_host.stop()
            await asyncio.gather(renewing, *self._holding.values(), *self._endings, return_exceptions=True)

    def dial(self, node: str, endpoint: str) -> None:
        dialer = self._dialers[node] = Dialer(self, peer=node, role="node", endpoint=endpoint)
        self._holding[node] = asyncio.create_task(dialer.hold(), name=f"line to {node}")

    async def line_ended(self, dialer: Dialer, reason: str) -> bool:
        if self._dialers.get(dialer.peer) is not dialer:
            # No worker here needs it any longer.
            return False
        was_welcome = self._router.welcomed
        self._workers.carry(self._router.on_closed(dialer.peer, reason=reason))
        if dialer.peer == self._manager:
            await self._on_manager_lost(reason, was_welcome=was_welcome)
            wait_s = self._router.backoff_s(dialer.peer)
            if self._router.is_sent_away:
                log.info("no work for now: checking in again in %.0f s", wait_s)
            else:
                log.warning("%s; trying again in %.1f s", reason, wait_s)
            await asyncio.sleep(wait_s)
            # A new certificate may name another endpoint.
            self._router.know_manager(self._renewal.member.manager_endpoint, self._renewal.member.managers)
            dialer.endpoint = self._router.manager_endpoint
        else:
            wait_s = self._router.backoff_s(dialer.peer)
            log.warning("%s at %s: %s; trying again in %.1f s", dialer.peer, dialer.endpoint, reason, wait_s)
            await asyncio.sleep(wait_s)
        return True

    async def _on_manager_lost(self, reason: str, *, was_welcome: bool) -> None:
        """Raises Refused if this device was shut out for good."""
        if self._lending is not None:
            self._lending.disconnected(reason)
        if self._leader_host is not None:
            self._leader_host.out_of_touch(reason)
        if SHUT_OUT in reason:
            raise Refused(reason)
        if not was_welcome and TWICE not in reason:
            await self._renewal.not_let_in()

    def part(self, node: str, reason: str) -> None:
        dialer, holding = self._dialers.pop(node), self._holding.pop(node)
        dialer.hang_up(reason)
        # A line that waits to dial again is cancelled; an open one ends by itself.
        if not dialer.is_open:
            holding.cancel()
        self._endings.add(holding)
        holding.add_done_callback(self._endings.discard)

    async def leave(self, reason: str) -> None:
        """Say goodbye while there is a connection, so that no peer waits for us. The manager hangs up in answer."""
        dialer = self._dialers.get(self._manager)
        if dialer is None or not dialer.is_open:
            return
        self._workers.carry(self._router.leave(reason))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(dialer.hung_up.wait(), GOODBYE_TIMEOUT_S)

    def heartbeat_s(self, peer: str) -> float:
        return self._router.heartbeat_s(peer)

    def connect_timeout_s(self, peer: str) -> float:
        return self._router.connect_timeout_s(peer)

    def dialer_opened(self, dialer: Dialer) -> None:
        if self._dialers.get(dialer.peer) is not dialer:
            dialer.hang_up("nobody needs it any more")
            return
        if dialer.peer == self._manager:
            self._later(self._look_at_link(dialer.endpoint))
        leads = self._leader_host.leads() if self._leader_host is not None else ()
        lends = self._lending is not None
        self._workers.carry(self._router.greet(dialer.peer, self._facts(), time.monotonic(), leads=leads, lends=lends))

    def _facts(self) -> Facts:
        facts = replace(probe.facts(), labels=own_labels.remembered(self._places))
        # An engine that it has is none for this cluster.
        return replace(facts, torch="", onnx="", is_hub=True) if self._options.hub else facts

    def has_work(self, peer: str) -> bool:
        if peer != self._manager:
            return True
        # A proxy may have chosen this manager of several: the work lane opens once it has said where it is.
        is_reached = self._router.welcomed or not self._renewal.member.managers
        return is_reached and (bool(self._router.jobs) or self._is_hosting())

    def dialer_beat(self, dialer: Dialer, now_s: float) -> None:
        if self._dialers.get(dialer.peer) is dialer:
            if dialer.peer == self._manager:
                self._rest_unless_needed(dialer)
            self._workers.carry(
                self._router.beat(
                    dialer.peer,
                    now_s,
                    load=probe.load(),
                    memory_free_mb=probe.memory_free_mb(),
                    link_bytes_per_s=self._link_bytes_per_s,
                    hosts=self._is_hosting(),
                    preparing=next(filter(None, (w.worker_driver.preparing for w in self._workers.workers)), ""),
                )
            )

    def _rest_unless_needed(self, dialer: Dialer) -> None:
        # At the second heartbeat without work: by then what a role said last has left.
        was_waiting, self._is_waiting = self._is_waiting, not self.has_work(dialer.peer)
        if self._is_waiting and was_waiting:
            dialer.rest()

    def _is_hosting(self) -> bool:
        """Whether others count on this device beside its own jobs."""
        is_leading = self._leader_host is not None and not self._leader_host.is_idle
        return is_leading or bool(self._to_host) or self._lending is not None

    def beat_now(self, node: str) -> None:
        dialer = self._dialers.get(node)
        if dialer is not None:
            dialer.beat_now()

    def dialer_payload_limit(self, dialer: Dialer, message: Message) -> int:
        if isinstance(message, Checkpoint) and dialer.peer == self._manager:
            awaited = self._leader_host is not None and self._leader_host.has(message.job)
            return PAYLOAD_MAX_BYTES if awaited else 0
        if self._lending is not None and dialer.peer == self._manager and message.rule.to == "pool":
            return self._lending.payload_limit(message)
        if not self._router.expects(message, dialer.peer):
            return 0
        match message:
            case SetUpAggregator():
                # A part of the model, two of its outer step, what was not given out of it, and the last mean.
                return min(5 * VALUE_BYTES * (message.stop - message.start), PAYLOAD_MAX_BYTES)
            case ModelShard():
                return min(VALUE_BYTES * (message.stop - message.start), PAYLOAD_MAX_BYTES)
            case _:
                return PAYLOAD_MAX_BYTES

    def dialer_payload_buffer(self, dialer: Dialer, message: Message, size_bytes: int) -> memoryview | None:
        """A model is received where the trainer reads it; from its leader alone."""
        if not isinstance(message, Work) or not self._router.is_led_by(message.job, dialer.peer):
            return None
        worker = self._workers.get(message.job)
        return worker.worker_driver.model_buffer(size_bytes) if worker is not None else None

    async def dialer_received(self, dialer: Dialer, message: Message, size_bytes: int) -> None:
        if self._dialers.get(dialer.peer) is not dialer:
            return
        self._usage.bytes_down += size_bytes
        is_manager = dialer.peer == self._manager
        if message.rule.to == "pool":
            if self._lending is not None and is_manager:
                await self._lending.received(message, size_bytes)
            return
        if isinstance(message, Welcome) and is_manager:
            if not self._router.welcomed:
                told = f": {message.reason}" if message.reason else ""
                log.info("connected to %s as %s%s", dialer.endpoint, self.identity.node, told)
            self._renewal.heard(message.time_s)
            endpoint = message.managers[0] if message.managers else dialer.endpoint
            await asyncio.to_thread(self._renewal.reached, endpoint, message.managers)
        if isinstance(message, Assign) and message.role == "worker" and is_manager:
            # In a thread: the modules are many, numpy among them, and heartbeats do not wait. What else the manager
            # says of jobs comes behind this message, on the same stream, and is read after it. A small board may take
            # longer than the manager is waited for: then the next session waits for the same import.
            self._worker_driver = self._worker_driver or asyncio.create_task(asyncio.to_thread(_import_worker))
            await asyncio.shield(self._worker_driver)
        event = Received(sender=dialer.peer, message=message, size_bytes=size_bytes)
        for duty in self._router.on_received(event, hosts=self._is_hosting()):
            # Tensors are waited for: the memory that they lie in is used again for the next message.
            if (reading := self._workers.reading(duty)) is not None:
                await reading[0].host.deliver(reading[1])
            elif (
                isinstance(duty, ToHosted)
                and isinstance(message, SetUpAggregator | RelayModel)
                and self._leader_host is not None
            ):
                await self._leader_host.deliver(message, sender=duty.sender)
            else:
                self._workers.carry([duty])
        if isinstance(message, Welcome) and is_manager:
            dialer.welcomed_at(endpoint)
            if self._leader_host is not None:
                self._leader_host.in_touch()

    # Jobs ---------------------------------------------------------------------------------------------

    def employ(self, assign: Assign) -> _Job:
        if assign.role == "hub":
            from shoal.runtime.hub_driver import HubDriver

            driver = HubDriver(assign.job, self.ended)
            host = RoleHost(f"hub in {assign.job}", driver.perform, send=self.send, at_once=driver.act)
            host.post(self._link())
            log.info("[%s] hub for %s: %s", assign.job, assign.leader, assign.reason)
            return _Job(host, driver)
        assert self._worker_driver is not None, "imported before the assignment is read"
        worker_driver = self._worker_driver.result()(
            assign.spec,
            self,
            member=self.identity,
            cache=self._places.cache,
            child_module=self._options.child_module,
            pace_s=self._options.pace_s,
            own=self._places.node,
            usage=self._usage,
            card=assign.card,
        )
        host = RoleHost(f"worker in {assign.job}", worker_driver.perform, send=self.send, at_once=worker_driver.act)
        host.post(self._link())
        log.info("[%s] assigned: %s; leader: %s", assign.job, assign.reason, assign.leader)
        return _Job(host, worker_driver)

    def send(self, to: str, message: Message) -> None:
        dialer = self._dialers.get(to)
        if dialer is not None:
            self._usage.bytes_up += sum(array.nbytes for array in getattr(message, "tensors", {}).values())
            dialer.post(message)

    def hang_up(self, node: str, reason: str) -> None:
        dialer = self._dialers.get(node)
        if dialer is not None:
            dialer.hang_up(reason)

    def ended(self, job: str, reason: str) -> None:
        worker = self._workers.end(job)
        if worker is not None:
            log.info("[%s] done: %s", job, reason)
            self._later(self._dismantle(worker))

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _dismantle(self, worker: _Job) -> None:
        await worker.host.stop()
        await worker.worker_driver.stop()

    # Leading -------------------------------------------------------------------------------------------

    def tell_hosted(self, duty: ToHosted) -> None:
        if self._leader_host is not None:
            self._leader_host.tell(duty.message, sender=duty.sender)
        elif self._to_host or isinstance(duty.message, Assign | SetUpAggregator):
            self._to_host.append(duty)
            if len(self._to_host) == 1:
                self._later(self._begin_to_host())

    async def _begin_to_host(self) -> None:
        """Import the leader host now: most devices never lead, and need not pay for it."""
        # In a thread: the modules are many, and a lease that comes meanwhile does not wait for them.
        leader_host = await asyncio.to_thread(_import_leader_host)
        self._leader_host = leader_host(
            self,
            manager=self._manager,
            manager_endpoint=self._renewal.member.manager_endpoint,
            port=self._options.lead_port,
        )
        duties, self._to_host = self._to_host, []
        for duty in duties:
            self.tell_hosted(duty)

    # The link ------------------------------------------------------------------------------------------

    def _link(self) -> LinkMeasured:
        if self._options.hub and (rate := self._options.hub_bytes_per_s):
            return LinkMeasured(up_bytes_per_s=rate, down_bytes_per_s=rate, medium=self._medium)
        # What it sends is not measured: nothing large goes out before the first lease.
        return LinkMeasured(down_bytes_per_s=self._link_bytes_per_s, medium=self._medium)

    def _tell_link(self) -> None:
        for worker in self._workers.workers:
            worker.host.post(self._link())

    async def _look_at_link(self, endpoint: str) -> None:
        """In a thread: a name may take long to look up, and heartbeats do not wait."""
        self._medium = await asyncio.to_thread(probe.medium, endpoint)
        self._tell_link()

    # Blobs ---------------------------------------------------------------------------------------------

    def check_job(self, spec: JobSpec) -> None:
        """Raise PeerViolation unless this device may run the code of this job."""
        own, pinned = self.identity, pinned_operator(self._places.node)
        check_on_device(spec, ca_pem=own.ca_pem, cluster=own.cluster, pinned=pinned)

    async def fetch(self, sha256: str) -> Path:
        """Bring a blob into the cache: once, verified by its hash, shared by all jobs."""
        return await self._fetcher.fetch(sha256)

    def _manager_link(self) -> GrpcLink:
        dialer = self._dialers.get(self._manager)
        if dialer is None or dialer.link is None:
            raise Unreachable("not connected; the download goes on when the manager is back")
        return dialer.link

    def _on_received(self, size_bytes: int, seconds: float) -> None:
        # The best of late: a link is as fast as it was when nobody else used it.
        self._link_bytes_per_s = max(size_bytes / max(seconds, 1e-3), 0.9 * self._link_bytes_per_s)
        self._tell_link()


def _import_worker() -> type[WorkerDriver]:
    """The modules that a device needs with its first job and not before: the one place where an agent loads them."""
    import shoal.roles.worker.worker  # noqa: F401  made by the table of workers
    from shoal.runtime.worker_driver import WorkerDriver

    return WorkerDriver


def _import_leader_host() -> type[LeaderHost]:
    from shoal.runtime.leader_host import LeaderHost

    return LeaderHost


async def run_agent(options: AgentOptions, *, resting: Resting | None = None) -> None:
    """Run until SIGINT or SIGTERM."""
    places, metrics = options.places, options.metrics

    def begin() -> Agent:
        # Loaded again: its certificate may have been renewed since it last worked.
        return Agent(Enrolled.load(places.node), options)

    agent = begin()
    log_lines.name_lines(cluster=agent.identity.cluster, node=agent.identity.node)
    exporter = device_exporter(metrics, options.metrics_token_file, lambda: agent.reading()) if metrics else None
    if exporter is not None:
        exporter.start()
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    stopping = asyncio.create_task(told.wait())
    supervisor = Supervisor()
    # Also while its manager is away: an agent that dials is well.
    supervisor.ready(f"works for cluster {agent.identity.cluster} as {agent.identity.node}")
    supervised = asyncio.create_task(supervisor.run())
    try:
        while not told.is_set():
            if resting is not None and not await _first(asyncio.create_task(resting.until_work()), stopping):
                break
            if not await _work(agent, resting, stopping):
                break
            agent = begin()
    finally:
        stopping.cancel()
        supervised.cancel()
        supervisor.stopping()
        if exporter is not None:
            await asyncio.to_thread(exporter.stop)
    if told.is_set() and (pid := successor(places.node)) is not None:
        log.warning("`shoal join` was started again from this home (process %d): this agent ends", pid)


async def _work(agent: Agent, resting: Resting | None, stopping: asyncio.Task[bool]) -> bool:
    """Run until the agent ends, is told to, or has to rest. True: it rests, and comes back."""
    running = asyncio.create_task(agent.run())
    watching = asyncio.create_task(resting.until_rest()) if resting is not None else None
    await asyncio.wait({running, stopping, *([watching] if watching else [])}, return_when=asyncio.FIRST_COMPLETED)
    rests = watching is not None and watching.done() and not stopping.done() and not running.done()
    if not running.done():
        await agent.leave(
            f"it rests: {watching.result()}" if watching is not None and rests else "the agent was stopped"
        )
        running.cancel()
    if watching is not None:
        watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return rests


async def _first(work: asyncio.Task[None], stopping: asyncio.Task[bool]) -> bool:
    """Whether this was done before the agent was told to stop."""
    await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
    is_done = work.done()
    work.cancel()
    return is_done


def _begin(options: AgentOptions) -> Resting | None:
    """Set this process up as its options say. Return what makes it rest, if its owner set limits."""
    places = options.places
    folder = expose(places, options.data)
    own_share.expose(places, options.part)
    own_processor.expose(places, device=options.device, threads=options.threads)
    own_processor.keep_to(options.cores)
    own_processor.choose_engine(options.engine)
    limits = DeviceLimits.of(hours=options.hours, max_temperature_c=options.max_temperature_c)
    resting = Resting(limits, root=options.sensors_root) if limits != DeviceLimits() else None
    if folder is not None:
        log.info("examples of its own are in %s", folder)
    return resting


def main() -> int:
    options = AgentOptions.parse(sys.argv[1:])
    try:
        set_out(quiet=options.quiet, leash=options.leash, log_format=options.log_format)
        resting = _begin(options)
        with sole_agent(options.places.node):
            asyncio.run(run_agent(options, resting=resting))
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 4 if isinstance(error, Refused) else 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
