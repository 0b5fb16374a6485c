"""``shoal up``: make a cluster or bring one back, open its doors, run until told to stop."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import errno
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal import features
from shoal.errors import Misuse, ShoalError
from shoal.identity.discovery import Announcement, check_installed
from shoal.identity.enrolment import Enrolled, EnrolmentServer, Newcomer
from shoal.identity.identity import AUTHORITY_FILE, IDENTITY_FILE, MEMBER_VALID_DAYS, Authority, Identity
from shoal.identity.join_code import JoinCode, endpoint
from shoal.identity.listening import EVERYWHERE, listen
from shoal.net.grpc import GrpcServer
from shoal.net.open_files import CONNECTIONS_A_DEVICE, connections_max, raise_limit
from shoal.net.renewal import is_due
from shoal.roles.manager.retention import KeepJobs
from shoal.roles.manager.seat_watch import home_of
from shoal.roles.node.failure_detector import Patience
from shoal.runtime import log_lines
from shoal.runtime.die_with_parent import end_with_starter
from shoal.runtime.hooks import Hooks, described, load_hooks
from shoal.runtime.loop_watch import LoopWatch
from shoal.runtime.malloc import keep_freed_memory
from shoal.runtime.manager_node import ManagerNode
from shoal.runtime.member_register import MemberRegister
from shoal.runtime.paths import Paths
from shoal.runtime.reachable import own_address, parse_advertised, reachable
from shoal.runtime.renewal import LOOK_LEAST_S, LOOK_MOST_S, LOOK_SHARE
from shoal.runtime.seat_holder import SeatHolder, mind_doors, open_seat
from shoal.runtime.supervisor import Supervisor
from shoal.runtime.tab_door import TabDoorOptions, tab_door
from shoal.runtime.vitals import Vitals
from shoal.store.base import Away, Database
from shoal.store.depot import Depot
from shoal.store.files import drawn_once
from shoal.store.mending import count_start, incidents, mend, signs_in, to_note
from shoal.store.opening import StoreUsages, open_stores
from shoal.store.registry import Registry
from shoal.store.remembered import Remembered
from shoal.store.seat import Deposed, FencedDatabase, Seats, Tenure, WentBack

log = logging.getLogger("shoal")

#: After this long a manager starts over that found that its database went back.
START_OVER_S = 0.5

_TAKEN_OVER = "another manager has taken over the jobs of this one, which was silent: start it again"

MANAGER = "manager"
OPERATOR = "operator"

#: What ``--lead`` takes, and what it says of devices; None: each plan decides.
LEAD: dict[str, bool | None] = {"auto": None, "here": False, "devices": True}


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagerReady:
    """The cluster is up."""

    cluster: str
    endpoint: str
    #: Empty: none was made.
    join_line: str
    port: int
    enrol_port: int
    resumed_jobs: tuple[str, ...]
    #: Why devices may not reach the endpoint, and what to do; empty: nothing speaks against it.
    warning: str = ""
    #: How long it took, from when this manager had its seat; from its start, if it shares nothing.
    start_s: float = 0.0
    #: Where tabs of browsers come in; empty: nowhere.
    browser_origin: str = ""


def open_cluster(
    places: Paths, *, name: str, certificate_days: float = MEMBER_VALID_DAYS
) -> tuple[Authority, Identity]:
    """The cluster's authority and the manager's identity: made once, found again ever after, renewed in time.

    A home with an authority and no manager is that of a second manager, to which the authority was copied.
    """
    has_authority = (places.authority / AUTHORITY_FILE).exists()
    authority = Authority.load(places.authority) if has_authority else Authority.create(places.authority, name)
    authority.member_days = certificate_days
    if (places.manager / IDENTITY_FILE).exists():
        return authority, _fresh(authority, Identity.load(places.manager), places)
    return authority, _new_identity(authority, places)


def _new_identity(authority: Authority, places: Paths) -> Identity:
    identity = authority.identity(node=MANAGER, role="manager", hosts=())
    identity.save(places.manager)
    return identity


def _fresh(authority: Authority, identity: Identity, places: Paths) -> Identity:
    return _new_identity(authority, places) if is_due(identity, now_s=time.time()) else identity


async def _stay_fresh(
    authority: Authority, identity: Identity, places: Paths, doors: Sequence[GrpcServer | EnrolmentServer]
) -> None:
    """The manager's own certificate runs out like any other: show the next one in time."""
    while True:
        life_s = identity.expires_s - identity.issued_s
        await asyncio.sleep(min(max(life_s * LOOK_SHARE, LOOK_LEAST_S), LOOK_MOST_S))
        fresh = _fresh(authority, identity, places)
        if fresh is not identity:
            identity = fresh
            for door in doors:
                door.become(identity)
            log.info("the manager has a new certificate")


async def run_home(
    home: Path,
    *,
    host: str = "0.0.0.0",
    port: int = 7070,
    advertise: str = "",
    token: bool | None = True,
    devices: int = 20,
    token_hours: float = 24.0,
    name: str = "shoal",
    approve: bool = False,
    announce: bool = False,
    certificate_days: float = MEMBER_VALID_DAYS,
    patience: Patience | None = None,
    prefers_devices: bool | None = None,
    disk_quota_bytes: int = 0,
    keep_jobs: KeepJobs | None = None,
    check_in_s: float = 0.0,
    store: str = "",
    blobs: str = "",
    downloads: str = "manager",
    direct: str = "",
    tabs: TabDoorOptions | None = None,
    on_ready: Callable[[ManagerReady], None],
) -> None:
    """Serve until SIGINT or SIGTERM. With port 0 the system chooses both ports.

    ``advertise``: the HOST or HOST:PORT that devices dial, where it is not the address listened on; they join over the
    next port. After commas, those of managers that share the ``store``. ``token``: whether to make a join line; None:
    only if no device has joined yet. ``store``, ``blobs``: a database and a bucket for the cluster's state
    (``store.opening``), else all of it is in the home. ``downloads``: where devices download files of a bucket.
    ``direct``: where devices dial this manager and no other, if ``advertise`` is a proxy before several. ``tabs``:
    where tabs of browsers come in, if they may. ``keep_jobs``: which ended jobs are kept, or None for all.
    """
    if blobs and disk_quota_bytes:
        raise Misuse("--disk-quota bounds the files of this home, and --blobs keeps them elsewhere: choose one")
    began_s = time.monotonic()
    keep_freed_memory()
    files, connections = raise_limit(), connections_max()
    if announce:
        check_installed()
    # In a thread: a name may take long to look up.
    reach = await asyncio.to_thread(reachable, host, advertise)
    if reach.others and not store:
        raise Misuse("--advertise names other managers, and without --store this one is alone")
    if direct and not store:
        raise Misuse("--direct is for one of several managers, and without --store this one is alone")
    own_host, own_port = parse_advertised(direct, option="--direct") if direct else (reach.host, reach.port)
    places = Paths(home)
    hooks = load_hooks(home)
    #: Where it listens; the same again if it starts over.
    ports = (port, port + 1 if port else 0)
    is_ready = is_told_to_stop = False
    #: What was done about a database that went back, by job, until the journal has it.
    untold: list[tuple[str, str]] = []
    stopping = asyncio.Event()
    vitals = Vitals(LoopWatch(), StoreUsages())
    supervisor = Supervisor()
    vitals.loop.on_turn.append(supervisor.turn)

    def stop() -> None:
        nonlocal is_told_to_stop
        is_told_to_stop = True
        supervisor.stopping()
        stopping.set()

    async def serve(ending: contextlib.AsyncExitStack, why: str) -> None:
        nonlocal began_s, ports, is_ready, untold
        authority, identity = open_cluster(places, name=name, certificate_days=certificate_days)
        log_lines.name_lines(cluster=identity.cluster)
        stores = await asyncio.to_thread(
            open_stores,
            places.registry.parent,
            owner=authority.fingerprint.hex(),
            store=store,
            blobs=blobs,
            downloads=downloads,
            usages=vitals.usages,
        )
        ending.callback(stores.close)
        vitals.authority_until_s = authority.until_s
        for warning in stores.warnings:
            log.warning("%s", warning)
        remembered = Remembered(places.remembered)
        held = None
        if stores.seats is not None:
            await asyncio.to_thread(_check_authority, stores.database, authority)
            await asyncio.to_thread(_warm_up)
            held = await open_seat(Seats(stores.seats), _home_name(places))
            ending.push_async_callback(_give_up, held, remembered)
            began_s = time.monotonic()
            fenced = FencedDatabase(stores.database, held.tenure)
            registry = Registry(fenced, holder=held.tenure.holder)
            untold += await asyncio.to_thread(_mend, fenced, registry, remembered, stores.depot, held.tenure, why)
            await asyncio.to_thread(count_start, fenced, registry, remembered, held.tenure)
            remembered.on_counted(held.tenure.holder, held.tenure.counted.beats)
            await asyncio.to_thread(remembered.flush)
            await held.await_others()
            await asyncio.to_thread(_take_own, registry, held.tenure.holder)
        else:
            registry = Registry(stores.database)
            untold += await asyncio.to_thread(_mend, stores.database, registry, remembered, stores.depot)
        node = ManagerNode(
            identity,
            places,
            patience=patience,
            prefers_devices=prefers_devices,
            disk_quota_bytes=disk_quota_bytes,
            check_in_s=check_in_s,
            registry=registry,
            depot=stores.depot,
            is_shared=stores.is_shared,
            remembered=remembered,
            vitals=vitals,
            keep_jobs=keep_jobs,
        )
        server = GrpcServer(identity, node, members=node.register, trouble=lambda: vitals.trouble)
        if held is not None and node.shared is not None:
            node.on_deposed = held.depose
            held.keep(
                on_deposed=stopping.set,
                figures=lambda: node.figures,
                orphans=registry.orphans,
                shared=node.shared,
                own_node=identity.node,
                on_proven=remembered.on_counted,
            )
        # A device of the manager's name gets another, for a node serves under its name.
        node.register.approves_newcomers = approve
        node.register.sign_with(authority)
        node.register.reserve(MANAGER, "manager", now_s=time.time())
        # A name has one certificate that is good, and each manager issues one to its own machine.
        operator = OPERATOR if held is None else f"{OPERATOR}-{_home_name(places)[:6]}"
        node.register.reserve(operator, "operator", now_s=time.time())
        resumed = node.open_jobs
        telling = Hooks(
            hooks,
            cluster=identity.cluster,
            on_failed=lambda name, why: node.note("hook-failed", f"{name}: {why}"),
        )
        for told in described(hooks):
            log.info("hook: %s", told)
        node.on_event(telling)
        vitals.went_back += bool(untold or why)
        for job, told in await asyncio.to_thread(to_note, untold, registry):
            node.note("store-went-back", told, job=job)
        untold.clear()
        await node.start()
        ending.push_async_callback(node.stop)
        ending.push_async_callback(asyncio.to_thread, telling.stop)
        ending.push_async_callback(server.stop)
        bound = await server.start(host, ports[0])
        address = endpoint(own_host, own_port or bound)
        if stores.is_shared:
            node.managers = tuple(dict.fromkeys((address, *reach.endpoints(bound))))
        if held is not None:
            await held.move(address)
        enrolment = EnrolmentServer(
            authority,
            identity,
            node.register,
            host,
            ports[1],
            service_port=reach.port or bound,
            on_enrolled=lambda newcomer: _enrolled(node, newcomer),
            renewals=node.register,
            trouble=lambda: vitals.trouble,
        )
        ending.push_async_callback(enrolment.stop)
        await enrolment.start()
        vitals.serve(
            address,
            devices=lambda: node.figures.devices,
            jobs=lambda: len(node.open_jobs),
            note=node.note,
            held=held,
            shared=node.shared,
        )
        ending.callback(vitals.end)
        ports = (bound, enrolment.port)
        staying_fresh = asyncio.create_task(_stay_fresh(authority, identity, places, (server, enrolment)))
        ending.callback(staying_fresh.cancel)

        async def shut() -> None:
            await asyncio.gather(enrolment.stop(), server.stop())

        async def reopen() -> None:
            await server.start(host, bound)
            await enrolment.start()

        if held is not None:
            minding = asyncio.create_task(mind_doors(held, shut=shut, reopen=reopen))
            # It ends by itself only where a door cannot be opened again.
            minding.add_done_callback(lambda _: stopping.set())
            ending.push_async_callback(_cancelled, minding)
        here = _local_host(host)
        doors = endpoint(here, bound), endpoint(here, enrolment.port)
        _give_operator_access(authority, node.register, places, doors, name=operator)
        pinned = authority.fingerprint
        joining_port = reach.port + 1 if reach.port else enrolment.port

        def line(secret: str) -> str:
            return str(JoinCode(host=reach.host, port=joining_port, ca_sha256=pinned, secret=secret))

        node.register.open_to(line)
        browser_origin = ""
        if tabs is not None:
            door = tab_door(
                tabs,
                home=home,
                authority=authority,
                identity=identity,
                service=node,
                register=node.register,
                on_enrolled=lambda newcomer: _enrolled(node, newcomer),
            )
            ending.push_async_callback(door.stop)
            browser_origin = await door.start()
            # Behind the #, so that the secret is in no server's log.
            node.register.link = lambda secret: f"{browser_origin}/#join={secret}"
        # Once it listens: a command that cannot start says why, and nothing else.
        log.info(
            "up to %d devices at once that work, or %d that wait: %d open files, %d connections",
            connections // CONNECTIONS_A_DEVICE,
            connections,
            files,
            connections,
        )
        join_line = ""
        if not is_ready and (token or (token is None and not node.register.has_devices)):
            made = node.register.new_token(role="node", uses=devices, valid_s=token_hours * 3600, label="shoal up")
            join_line = made.join_line
        supervisor.ready(f"serves devices at {address}")
        if not is_ready:
            is_ready = True
            on_ready(
                ManagerReady(
                    cluster=identity.cluster,
                    endpoint=endpoint(reach.host, reach.port or bound),
                    join_line=join_line,
                    port=bound,
                    enrol_port=enrolment.port,
                    resumed_jobs=resumed,
                    warning=reach.warning,
                    start_s=time.monotonic() - began_s,
                    browser_origin=browser_origin,
                )
            )
        if announce:
            # Heard on the network that this machine is on, so it is the address there that is told.
            address = own_address() if host in EVERYWHERE else host
            announcement = Announcement(
                cluster=identity.cluster, host=address, port=enrolment.port, authority_sha256=pinned
            )
            ending.push_async_callback(announcement.stop)
            try:
                await announcement.start()
            except (ShoalError, OSError) as error:
                log.warning("the cluster cannot be announced (%s): devices can still join by the line", error)
        await stopping.wait()
        if held is not None and held.is_deposed:
            deposed_by = held.deposed_by or Deposed(_TAKEN_OVER)
            if isinstance(deposed_by, WentBack):
                # At once: a manager that starts just now must not give out a term that was given before. Without a
                # proof of the seat, which is of another past.
                plain = Registry(stores.database, holder=held.tenure.holder)
                with contextlib.suppress(Away):
                    untold += await asyncio.to_thread(
                        _mend, stores.database, plain, remembered, stores.depot, why=str(deposed_by)
                    )
            raise deposed_by

    with _alone(home):
        _check_free(host, port)
        loop = asyncio.get_running_loop()
        turning = asyncio.create_task(vitals.loop.run())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        why = ""
        try:
            while not is_told_to_stop:
                stopping.clear()
                try:
                    async with contextlib.AsyncExitStack() as ending:
                        await serve(ending, why)
                    return
                except WentBack as error:
                    why = "" if untold else str(error)
                    log.warning("this manager starts over: %s", error)
                except Deposed:
                    raise Deposed(_TAKEN_OVER) from None
                except Away as error:
                    if not is_ready:
                        raise
                    log.warning("this manager starts over once its stores answer: %s", error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stopping.wait(), START_OVER_S)
        finally:
            await _cancelled(turning)


async def _give_up(held: SeatHolder, remembered: Remembered) -> None:
    """Other managers need not wait, and the next process of this home does not miss the seat."""
    await held.let_go()
    if not held.is_deposed:
        remembered.on_counted("", 0)
    await asyncio.to_thread(remembered.flush)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _mend(
    database: Database,
    registry: Registry,
    remembered: Remembered,
    depot: Depot,
    tenure: Tenure | None = None,
    why: str = "",
) -> list[tuple[str, str]]:
    """Compare the database with what this manager remembers, and write that again if the database went back. ``why``: a
    write of the manager found that it did. Return what is to be told, by job."""
    if not database.is_whole():
        raise Away("the database is not whole: it is being restored")
    signs = signs_in(registry, remembered, tenure=tenure) or [*filter(None, (why,))]
    if signs:
        mended = mend(database, registry, remembered, signs=signs, newest=depot.newest_checkpoints())
        return list(mended.lines())
    own = {row.job for row in registry.open_jobs() if home_of(row.manager) == home_of(registry.holder)}
    remembered.on_incident(incidents(registry))
    # Another manager has them by now, or ended or removed them.
    remembered.on_removed([job for job in remembered.submitted if job not in own])
    return []


def _home_name(places: Paths) -> str:
    """The name of this manager's home, as other managers know it. One process a home runs at a time (``_alone``)."""
    return drawn_once(places.registry.parent / "manager-name")


def _take_own(registry: Registry, holder: str) -> None:
    """Take back, before anything else, the jobs that this home had when its last process ended, and those that had no
    manager yet."""
    for row in registry.orphans():
        if home_of(row.manager) in ("", home_of(holder)):
            registry.take_job(row)


def _check_authority(database: Database, authority: Authority) -> None:
    """A manager whose authority was revoked does not even stand by."""
    known = Registry(database).certificate(authority.own_sha256) if authority.name else None
    if known is not None and known.revoked_s is not None:
        raise Misuse(f"the authority of this manager, {authority.name}, was revoked: issue another one to it")


def _warm_up() -> None:
    """Import what a manager needs to start before it has a seat: from then on jobs may wait for it."""
    import shoal.identity.certificates  # noqa: F401

    features.provided("manager_pool")


def _enrolled(node: ManagerNode, newcomer: Newcomer) -> None:
    node.register.record(newcomer.certificate_pem, now_s=time.time())
    node.hold_or_employ(newcomer.node)


def _give_operator_access(
    authority: Authority, register: MemberRegister, places: Paths, doors: tuple[str, str], *, name: str
) -> None:
    """Commands on this machine, by this user, may operate the cluster. ``doors``: where it works, where one joins."""
    try:
        identity = Enrolled.load(places.operator).identity
        if identity.ca_pem != authority.certificate_pem:
            raise Misuse("an operator of another cluster")
        if is_due(identity, now_s=time.time()):
            raise Misuse("a certificate that has had its time")
        if identity.node != name or register.is_replaced(identity.certificate_pem):
            raise Misuse("a certificate that another manager has replaced")
    except (Misuse, OSError, ValueError):
        identity = authority.identity(node=name, role="operator", hosts=())
        register.record(identity.certificate_pem, now_s=time.time())
    work, joining = doors
    access = Enrolled(identity=identity, manager_node=MANAGER, manager_endpoint=work, enrol_endpoint=joining)
    access.save(places.operator)


def _check_free(host: str, port: int) -> None:
    """Say that a port is taken before gRPC does: it prints a line of its own, which nobody can read."""
    if not port:
        return
    try:
        listen(host, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Misuse(
                f"port {port} on {host} is taken by another program: is another manager running? Stop it, or choose"
                " another pair of ports with --port"
            ) from None


def _local_host(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


class _alone:  # noqa: N801 - reads as `with _alone(home)`
    """One manager a home: a second would write the same files."""

    def __init__(self, home: Path) -> None:
        self._path = home / "cluster" / "lock"
        self._fd = -1

    def __enter__(self) -> None:
        import fcntl

        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._fd)
            raise Misuse(
                f"a manager is running on {self._path.parent} already: stop it first, or use another --home"
            ) from None

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def main() -> int:
    parser = argparse.ArgumentParser(prog="shoal-manager", description="Run a manager; prints one JSON line when up.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--advertise", default="", help="where devices dial it, and other managers after commas")
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--lead", choices=tuple(LEAD), default="auto")
    parser.add_argument("--log-format", default="", help="text or json; else as SHOAL_LOG says")
    parser.add_argument("--disk-quota-bytes", type=int, default=0)
    parser.add_argument("--keep-jobs", default="", help="which ended jobs are kept, such as 90d or 500; else all")
    parser.add_argument("--check-in-s", type=float, default=0.0, help="when devices without work come again; 0: stay")
    parser.add_argument("--store", default="", help="postgresql://HOST/DATABASE; else a file of the home")
    parser.add_argument("--blobs", default="", help="s3://BUCKET/PREFIX; else a folder of the home")
    parser.add_argument("--downloads", default="manager", help="manager, bucket, or https://CDN/PREFIX")
    parser.add_argument("--direct", default="", help="where devices dial this manager alone, behind a proxy")
    parser.add_argument("--browser", default="", help="the origin where tabs of browsers come in")
    parser.add_argument("--browser-certificate", type=Path, help="of the origin, PEM")
    parser.add_argument("--browser-key", type=Path, help="of the certificate")
    parser.add_argument("--leash", action="store_true", help="end when standard input closes")
    given = parser.parse_args()
    if given.leash:
        end_with_starter()
    log_lines.set_up(quiet=False, given=given.log_format)

    def on_ready(ready: ManagerReady) -> None:
        print(json.dumps(dataclasses.asdict(ready)), flush=True)

    try:
        serving = run_home(
            given.home,
            host=given.host,
            port=given.port,
            advertise=given.advertise,
            devices=given.devices,
            prefers_devices=LEAD[given.lead],
            disk_quota_bytes=given.disk_quota_bytes,
            keep_jobs=KeepJobs.parse(given.keep_jobs) if given.keep_jobs else None,
            check_in_s=given.check_in_s,
            store=given.store,
            blobs=given.blobs,
            downloads=given.downloads,
            direct=given.direct,
            tabs=TabDoorOptions(origin=given.browser, certificate=given.browser_certificate, key=given.browser_key)
            if given.browser
            else None,
            on_ready=on_ready,
        )
        asyncio.run(serving)
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
