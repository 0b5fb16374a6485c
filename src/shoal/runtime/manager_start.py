"""One start of a manager: it takes its state, opens its doors, and serves until it is told to stop or starts over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from shoal.errors import ShoalError
from shoal.identity.discovery import Announcement
from shoal.identity.enrolment import EnrolmentServer, Newcomer
from shoal.identity.identity import Authority, Identity
from shoal.identity.join_code import JoinCode, endpoint
from shoal.identity.listening import EVERYWHERE
from shoal.net.grpc import GrpcServer
from shoal.net.open_files import CONNECTIONS_A_DEVICE
from shoal.roles.node.failure_detector import Patience
from shoal.runtime import log_lines
from shoal.runtime.hooks import Hook, Hooks, described
from shoal.runtime.loop_watch import LoopWatch
from shoal.runtime.manager_node import ManagerNode
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.manager_state import ManagerState, home_name, take_state
from shoal.runtime.own_cluster import MANAGER, OPERATOR, give_operator_access, open_cluster, stay_fresh
from shoal.runtime.reachable import Reachable, own_address, parse_advertised
from shoal.runtime.seat_holder import mind_doors
from shoal.runtime.supervisor import Supervisor
from shoal.runtime.tab_door import tab_door
from shoal.runtime.vitals import Vitals
from shoal.store.base import Away
from shoal.store.mending import to_note
from shoal.store.opening import StoreUsages
from shoal.store.seat import Deposed, WentBack

log = logging.getLogger("shoal")

TAKEN_OVER = "another manager has taken over the jobs of this one, which was silent: start it again"


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagerReady:
    """The cluster is up."""

    cluster: str
    endpoint: str
    #: Empty if none was made.
    join_line: str
    port: int
    enrol_port: int
    resumed_jobs: tuple[str, ...]
    #: Why devices may not reach the endpoint, and what to do. Empty if nothing speaks against it.
    warning: str = ""
    #: How long it took, from when this manager had its seat; from its start, if it shares nothing.
    start_s: float = 0.0
    #: Where tabs of browsers come in. Empty if they may not.
    browser_origin: str = ""


class ManagerRun:
    """What outlives a start: a manager starts over when its database went back, or when its stores were away."""

    def __init__(
        self,
        options: ManagerOptions,
        *,
        reach: Reachable,
        hooks: tuple[Hook, ...],
        room: tuple[int, int],
        began_s: float,
        patience: Patience | None,
        on_ready: Callable[[ManagerReady], None],
    ) -> None:
        """``room``: how many files it may open, and how many connections it takes."""
        self.options = options
        self.reach = reach
        self.hooks = hooks
        self.room = room
        self.patience = patience
        self.on_ready = on_ready
        self.began_s = began_s
        #: Where it listens; the same again if it starts over.
        self.ports = (options.port, options.port + 1 if options.port else 0)
        self.is_ready = self.is_told_to_stop = False
        #: What was done about a database that went back, by job, until the journal has it.
        self.untold: list[tuple[str, str]] = []
        self.stopping = asyncio.Event()
        self.vitals = Vitals(LoopWatch(), StoreUsages())
        self.supervisor = Supervisor()
        self.vitals.loop.on_turn.append(self.supervisor.turn)

    def stop(self) -> None:
        self.is_told_to_stop = True
        self.supervisor.stopping()
        self.stopping.set()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Doors:
    """Where a manager serves its members, and where devices join."""

    #: Where devices dial it.
    address: str
    #: The port of the first door, which may differ from what devices dial.
    port: int
    enrolment: EnrolmentServer


async def serve(run: ManagerRun, ending: contextlib.AsyncExitStack, why: str) -> None:
    """Serve until the run is told to stop. ``why``: the database went back, as the start before this one found."""
    options = run.options
    authority, identity = open_cluster(options.places, name=options.name, certificate_days=options.certificate_days)
    log_lines.name_lines(cluster=identity.cluster)
    run.vitals.authority_until_s = authority.until_s
    state = await take_state(options, authority, usages=run.vitals.usages, untold=run.untold, why=why, ending=ending)
    if state.seated_s:
        run.began_s = state.seated_s
    start = _Start(run, authority, identity, state, ending)
    start.reserve_names()
    await start.tell_what_happened(why)
    doors = await start.open_doors()
    start.keep_doors(doors)
    start.let_members_in(doors)
    origin = await start.let_tabs_in()
    start.tell_ready(doors, origin)
    if options.announce:
        await start.announce(doors)
    await run.stopping.wait()
    if state.held is not None and state.held.is_deposed:
        deposed_by = state.held.deposed_by or Deposed(TAKEN_OVER)
        if isinstance(deposed_by, WentBack):
            with contextlib.suppress(Away):
                run.untold += await state.mend_again(str(deposed_by))
        raise deposed_by


class _Start:
    """The steps of ``serve``, in its order. ``ending`` undoes them."""

    def __init__(
        self,
        run: ManagerRun,
        authority: Authority,
        identity: Identity,
        state: ManagerState,
        ending: contextlib.AsyncExitStack,
    ) -> None:
        self._run = run
        self._options = run.options
        self._authority, self._identity = authority, identity
        self._held, self._is_shared = state.held, state.stores.is_shared
        self._registry = state.registry
        self._ending = ending
        self._node = node = ManagerNode(
            identity,
            run.options,
            patience=run.patience,
            registry=state.registry,
            depot=state.stores.depot,
            is_shared=state.stores.is_shared,
            remembered=state.remembered,
            vitals=run.vitals,
        )
        self._server = GrpcServer(identity, node, members=node.register, trouble=lambda: run.vitals.trouble)
        if state.held is not None and node.shared is not None:
            node.on_deposed = state.held.depose
            state.held.keep(
                on_deposed=run.stopping.set,
                figures=lambda: node.figures,
                orphans=state.registry.orphans,
                shared=node.shared,
                own_node=identity.node,
            )
        # A name has one certificate that is good, and each manager issues one to its own machine.
        self._operator = OPERATOR if state.held is None else f"{OPERATOR}-{home_name(run.options.places)[:6]}"
        self._resumed = node.open_jobs

    def reserve_names(self) -> None:
        """A device of the manager's name gets another, for a node serves under its name."""
        register = self._node.register
        register.approves_newcomers = self._options.approve
        register.sign_with(self._authority)
        register.reserve(MANAGER, "manager", now_s=time.time())
        register.reserve(self._operator, "operator", now_s=time.time())

    async def tell_what_happened(self, why: str) -> None:
        """Tell hooks what this manager does from now on, and write down what was done about its database."""
        node, run = self._node, self._run
        telling = Hooks(
            run.hooks,
            cluster=self._identity.cluster,
            on_failed=lambda name, why: node.note("hook.failed", f"{name}: {why}"),
        )
        for told in described(run.hooks):
            log.info("hook: %s", told)
        node.on_event(telling)
        run.vitals.went_back += bool(run.untold or why)
        for job, told in await asyncio.to_thread(to_note, run.untold, self._registry):
            node.note("store.reverted", told, job=job)
        run.untold.clear()
        await node.start()
        self._ending.push_async_callback(node.stop)
        self._ending.push_async_callback(asyncio.to_thread, telling.stop)

    async def open_doors(self) -> _Doors:
        options, node, run, reach = self._options, self._node, self._run, self._run.reach
        own_host, own_port = reach.host, reach.port
        if options.direct:
            own_host, own_port = parse_advertised(options.direct, option="--direct")
        self._ending.push_async_callback(self._server.stop)
        bound = await self._server.start(options.host, run.ports[0])
        address = endpoint(own_host, own_port or bound)
        if self._is_shared:
            node.managers = tuple(dict.fromkeys((address, *reach.endpoints(bound))))
        if self._held is not None:
            await self._held.move(address)
        enrolment = EnrolmentServer(
            self._authority,
            self._identity,
            node.register,
            options.host,
            run.ports[1],
            service_port=reach.port or bound,
            on_enrolled=self._on_enrolled,
            renewals=node.register,
            trouble=lambda: run.vitals.trouble,
        )
        self._ending.push_async_callback(enrolment.stop)
        await enrolment.start()
        run.vitals.serve(
            address,
            devices=lambda: node.figures.devices,
            jobs=lambda: len(node.open_jobs),
            note=node.note,
            held=self._held,
            shared=node.shared,
        )
        self._ending.callback(run.vitals.end)
        run.ports = (bound, enrolment.port)
        return _Doors(address=address, port=bound, enrolment=enrolment)

    def _on_enrolled(self, newcomer: Newcomer) -> None:
        self._node.register.record(newcomer.certificate_pem, now_s=time.time())
        self._node.standings.apply(newcomer.node)

    def keep_doors(self, doors: _Doors) -> None:
        """Renew the certificate that they show, and shut them while this manager cannot prove its seat."""
        server, enrolment, host = self._server, doors.enrolment, self._options.host
        fresh = stay_fresh(self._authority, self._identity, self._options.places, (server, enrolment))
        staying_fresh = asyncio.create_task(fresh)
        self._ending.callback(staying_fresh.cancel)

        async def shut() -> None:
            await asyncio.gather(enrolment.stop(), server.stop())

        async def reopen() -> None:
            await server.start(host, doors.port)
            await enrolment.start()

        if self._held is not None:
            minding = asyncio.create_task(mind_doors(self._held, shut=shut, reopen=reopen))
            # It ends by itself only where a door cannot be opened again.
            minding.add_done_callback(lambda _: self._run.stopping.set())
            self._ending.push_async_callback(cancelled, minding)

    def let_members_in(self, doors: _Doors) -> None:
        """Give this machine's operator access, and make join lines from now on."""
        options, register, reach = self._options, self._node.register, self._run.reach
        here = _local_host(options.host)
        own = endpoint(here, doors.port), endpoint(here, doors.enrolment.port)
        give_operator_access(self._authority, register, options.places, own, name=self._operator)
        pinned = self._authority.fingerprint
        joining_port = reach.port + 1 if reach.port else doors.enrolment.port

        def line(secret: str) -> str:
            return str(JoinCode(host=reach.host, port=joining_port, ca_sha256=pinned, secret=secret))

        register.open_to(line)

    async def let_tabs_in(self) -> str:
        """Open the door for tabs of browsers. Return its origin, or nothing if there is none."""
        options, node = self._options, self._node
        if options.tabs is None:
            return ""
        door = tab_door(
            options.tabs,
            home=options.home,
            authority=self._authority,
            identity=self._identity,
            service=node,
            register=node.register,
            on_enrolled=self._on_enrolled,
            offers=node.offers_to_tabs,
        )
        self._ending.push_async_callback(door.stop)
        origin = await door.start()
        # Behind the #, so that the secret is in no server's log.
        node.register.link = lambda secret: f"{origin}/#join={secret}"
        return origin

    def tell_ready(self, doors: _Doors, origin: str) -> None:
        """Once it listens: a command that cannot start says why, and nothing else."""
        run, reach = self._run, self._run.reach
        files, connections = run.room
        log.info(
            "capacity: %s working or %s idle devices (limits: %s open files, %s connections)",
            *(f"{number:,}" for number in (connections // CONNECTIONS_A_DEVICE, connections, files, connections)),
        )
        join_line = "" if run.is_ready else self._join_line()
        run.supervisor.ready(f"serves devices at {doors.address}")
        if run.is_ready:
            return
        run.is_ready = True
        run.on_ready(
            ManagerReady(
                cluster=self._identity.cluster,
                endpoint=endpoint(reach.host, reach.port or doors.port),
                join_line=join_line,
                port=doors.port,
                enrol_port=doors.enrolment.port,
                resumed_jobs=self._resumed,
                warning=reach.warning,
                start_s=time.monotonic() - run.began_s,
                browser_origin=origin,
            )
        )

    def _join_line(self) -> str:
        options, register = self._options, self._node.register
        if options.token == "never" or (options.token == "first" and register.has_devices):
            return ""
        valid_s = options.token_hours * 3600
        return register.new_token(role="node", uses=options.devices, valid_s=valid_s, label="shoal up").join_line

    async def announce(self, doors: _Doors) -> None:
        # Devices of the same network hear it, so they are told this machine's address there.
        address = own_address() if self._options.host in EVERYWHERE else self._options.host
        announcement = Announcement(
            cluster=self._identity.cluster,
            host=address,
            port=doors.enrolment.port,
            authority_sha256=self._authority.fingerprint,
        )
        self._ending.push_async_callback(announcement.stop)
        try:
            await announcement.start()
        except (ShoalError, OSError) as error:
            log.warning("the cluster cannot be announced (%s): devices can still join by the line", error)


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _local_host(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
