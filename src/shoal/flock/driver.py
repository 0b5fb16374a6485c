"""A device of a flock: its server, its links to the others, its trainer and its disk, around one peer. Decides nothing.

Run as ``python -m shoal.flock.driver --home DIR``, where the command line wrote its orders. There is no manager: every
peer dials every other, sends only over that link, and receives only at its own server.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from shoal.errors import Corrupt, PeerViolation, ShoalError
from shoal.flock.pairing.resources import Thresholds
from shoal.flock.peer import Peer, Version
from shoal.flock.peer_discovery import PeerDiscovery
from shoal.flock.peer_options import PeerOptions
from shoal.flock.secret import FlockSecret
from shoal.flock.settings import FlockSettings
from shoal.identity.identity import Identity, load_private_json, save_private_json
from shoal.identity.join_code import endpoint
from shoal.identity.names import RemoteIdentity
from shoal.identity.signing import sign
from shoal.learning.layout import Layout
from shoal.net.access import AnyKey, NotHere
from shoal.net.base import Session
from shoal.net.grpc import GrpcLink, GrpcServer
from shoal.roles.actions import Action, End, Record, Save
from shoal.roles.events import Connected, Disconnected, Felt, Received, Saved, SaveFailed, StopRequested
from shoal.runtime import probe, sensors
from shoal.runtime.dialer import PersistentLink
from shoal.runtime.log_lines import log_event
from shoal.runtime.own_data import expose
from shoal.runtime.paths import Paths
from shoal.runtime.process_setup import set_out
from shoal.runtime.role_host import RoleHost
from shoal.runtime.worker_driver import WorkerDriver
from shoal.store.blobs import BlobStore
from shoal.store.files import DiskFull, remove_stale
from shoal.store.readable import write_readable
from shoal.trainer.prepared_job import first_model
from shoal.wire import tensors
from shoal.wire.encoding import from_json, to_json
from shoal.wire.limits import VALUE_BYTES
from shoal.wire.messages import Blob, Contribute, JobSpec, Lane, Message, ModelTransfer, PartialSum, Renew, figure_of

log = logging.getLogger("shoal")

#: The file with the orders, and the file with the newest version.
ORDERS_FILE = "flock.json"
MODEL_FILE = "model.safetensors"

DIAL_AGAIN_S = 1.0
CONNECT_TIMEOUT_S = 10.0
SENSE_EVERY_S = 2.0


def stored_model(home: Path, plan_sha256: str) -> Path:
    """Return the file in which a device keeps the newest version of one plan."""
    return home / "flock" / plan_sha256[:16] / MODEL_FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class Orders:
    """The settings of one device of a flock, as its user gave them."""

    secret: FlockSecret
    node: str
    spec: JobSpec
    plan_sha256: str
    settings: FlockSettings
    thresholds: Thresholds
    #: The address at which others reach this device, or empty for that of its first network.
    host: str = ""
    port: int = 0
    #: Peers given by hand, for a network without multicast: name -> endpoint.
    peers: dict[str, str] = field(default_factory=dict)
    multicast: bool = True


class Flock(AnyKey):
    """A service and a listener (see ``net.base``), and the environment of a worker's driver."""

    def __init__(
        self, orders: Orders, places: Paths, *, child_module: str = "shoal.trainer.child", pace_s: float = 0.0
    ) -> None:
        self._orders = orders
        self._places = places
        identity, operator = orders.secret.identities(orders.node)
        self._identity: Identity = identity
        spec = sign(orders.spec, operator)
        self._blobs = BlobStore(places.cache / "blobs")
        self._layout, first = first_model(self._blobs.path(spec.initial))
        #: The file with the newest version.
        self.model_file = stored_model(places.home, orders.plan_sha256)
        self.model_file.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(self.model_file.parent)
        version = self._stored() or Version(number=0, model=first)
        self.peer = Peer(
            node=orders.node,
            spec=spec,
            plan_sha256=orders.plan_sha256,
            settings=orders.settings,
            first=version,
            thresholds=orders.thresholds,
        )
        self._worker_driver = WorkerDriver(
            spec, self, member=identity, cache=places.cache, child_module=child_module, pace_s=pace_s
        )
        # A thread merges large models: the loop stays free, so other peers do not consider this device lost meanwhile.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="merge")
        self._host = RoleHost("peer", self._perform, send=self.send, executor=self._executor)
        self._lines: dict[str, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Future[str] | None = None
        self._saving = asyncio.Lock()

    # Lifecycle ---------------------------------------------------------------------------------------------

    async def run(self) -> str:
        """Run until the last version is made or the peer cannot continue. Return why it ended."""
        orders = self._orders
        self._ended = asyncio.get_running_loop().create_future()
        here = orders.host or probe.own_address()
        door = GrpcServer(self._identity, self, members=self)
        port = await door.start(here, orders.port)
        log.info("%s of %s listens at %s", orders.node, orders.secret.flock, endpoint(here, port))
        discovery = None
        try:
            for name, where in orders.peers.items():
                self._found(name, where)
            if orders.multicast:
                discovery = PeerDiscovery(
                    flock=orders.secret.flock, node=orders.node, host=here, port=port, found=self._found
                )
                await discovery.start()
            self._host.start(self.peer)
            self._begin(self._sense())
            return await self._ended
        finally:
            await self._host.stop()
            async with self._saving:
                pass
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._worker_driver.stop()
            if discovery is not None:
                await discovery.stop()
            await door.stop()
            self._executor.shutdown(wait=False)

    def stop(self, reason: str) -> None:
        self._host.post(StopRequested(reason=reason))

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The peer's actions --------------------------------------------------------------------------------

    async def _perform(self, host: RoleHost, action: Action) -> None:
        match action:
            case Save():
                self._begin(self._save(action))
            case Record():
                log_event(log, action.kind, action.reason)
            case End():
                self.ended("", action.reason)
            case _:
                await self._worker_driver.perform(host, action)

    def send(self, to: str, message: Message) -> None:
        line = self._lines.get(to)
        if line is not None:
            line.post(message)

    async def fetch(self, sha256: str) -> Path:
        return self._blobs.path(sha256)

    def ended(self, job: str, reason: str) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(reason)

    async def _sense(self) -> None:
        """Read the sensors, so that the peer can decide whether this device has time for merges."""
        before = None
        while True:
            own_s = time.process_time() + self._worker_driver.cpu_s()
            after = sensors.processors(own_s=own_s)
            in_use = sensors.used_by_others(before, after)
            before = after
            self._host.post(Felt(condition=sensors.condition(in_use=in_use)))
            await asyncio.sleep(SENSE_EVERY_S)

    # Disk --------------------------------------------------------------------------------------------------

    async def _save(self, save: Save) -> None:
        async with self._saving:
            try:
                await asyncio.to_thread(self._write, save)
            except (OSError, DiskFull) as error:
                self._host.post(SaveFailed(version=save.version, reason=str(error)))
                return
        self._host.post(Saved(version=save.version))

    def _write(self, save: Save) -> None:
        notes = {
            "version": str(save.version),
            "digest": str(save.state["digest"]),
            "made_of": str(save.state["made_of"]),
            "layout": self._layout.to_json(),
        }
        views = self._layout.views(save.tensors["model"])
        write_readable(self.model_file, lambda file: tensors.write(file, views, notes))

    def _stored(self) -> Version | None:
        """Return the version that this device held when it last ran, or None if it is unreadable or of another plan."""
        if not self.model_file.exists():
            return None
        try:
            arrays, notes = tensors.read(self.model_file)
            layout = Layout.from_json(notes["layout"])
            if layout.sha256 != self._layout.sha256:
                raise Corrupt("it is for another model")
            model = np.empty(layout.size, np.float32)
            for name, view in layout.views(model).items():
                view[...] = arrays[name]
            version = Version(number=int(notes["version"]), model=model, made_of=int(notes["made_of"]))
            if version.digest != notes["digest"]:
                raise Corrupt("its contents do not match its hash")
        except (ShoalError, OSError, KeyError, ValueError) as error:
            log.warning("%s is ignored: %s", self.model_file, error)
            return None
        return version

    # Links to the others -----------------------------------------------------------------------------------

    def _found(self, name: str, where: str) -> None:
        line = self._lines.get(name)
        if line is not None and line.endpoint == where:
            return
        if line is not None:
            # The peer restarted at another address.
            line.hang_up("the peer is at another address")
            line.endpoint = where
            return
        line = self._lines[name] = _Line(name, where, self._identity, self._host.post)
        self._begin(line.hold())

    @property
    def listener(self) -> Flock:
        return self

    # Messages of other peers ----------------------------------------------------------------------------

    def role_now(self, peer: RemoteIdentity) -> str:
        if peer.role != "node" or peer.node == self._orders.node:
            raise NotHere("only other peers of the flock may connect", peer=peer.node)
        return "peer"

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session, reason: str) -> None: ...

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        event = Received(sender=session.peer.node, message=message, size_bytes=size_bytes)
        if isinstance(message, PartialSum | ModelTransfer):
            # Waited for: the next message uses the same memory.
            await self._host.deliver(event)
        else:
            self._host.post(event)

    def payload_limit(self, session: Session, message: Message) -> int:
        return VALUE_BYTES * self._layout.size

    def awaits(self, session: Session, message: Message) -> bool:
        return True

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        return None

    def turned_away(self, peer: RemoteIdentity, reason: str) -> None:
        log.warning("%s was refused: %s", peer.node, reason)

    async def operate(self, peer: RemoteIdentity, message: Message) -> NoReturn:
        raise PeerViolation("a flock has no operators", peer=peer.node)

    async def renew(self, peer: RemoteIdentity, message: Renew) -> NoReturn:
        raise PeerViolation("a flock renews no certificates: a peer makes its own", peer=peer.node)

    async def find_blob(self, peer: RemoteIdentity, blob: Blob) -> NoReturn:
        raise PeerViolation("a flock has no blobs", peer=peer.node)

    async def store_blob(self, peer: RemoteIdentity, blob: Blob, chunks: AsyncIterator[memoryview]) -> NoReturn:
        raise PeerViolation("a flock has no blobs", peer=peer.node)

    async def take_entries(
        self, peer: RemoteIdentity, given: Contribute, chunks: AsyncIterator[memoryview]
    ) -> NoReturn:
        raise PeerViolation("a flock has no shared sets", peer=peer.node)


class _Line(PersistentLink):
    """A link to one peer that is dialled again and again. Only this side sends over it: others answer over their
    own."""

    def __init__(self, name: str, where: str, identity: Identity, post: Callable[[Any], None]) -> None:
        super().__init__(name)
        self.endpoint = where
        self._identity = identity
        self._post = post
        #: The reason last logged: repeated failures with the same reason are logged once.
        self._logged: str | None = None

    async def connect_once(self) -> str:
        link = GrpcLink(self._identity, server_node=self.peer, server_role="node", endpoint=self.endpoint)
        return await link.run(self, connect_timeout_s=CONNECT_TIMEOUT_S)

    async def may_dial_again(self, reason: str) -> bool:
        if reason != self._logged:
            log.info("link to %s at %s: %s", self.peer, self.endpoint, reason)
            self._logged = reason
        await asyncio.sleep(DIAL_AGAIN_S)
        return True

    def opened(self, session: Session) -> None:
        super().opened(session)
        if len(self._sessions) == len(Lane):
            self._post(Connected(node=self.peer))

    def closed(self, session: Session, reason: str) -> None:
        if len(self._sessions) == len(Lane):
            self._post(Disconnected(node=self.peer, reason=reason))
        super().closed(session, reason)


# As a process --------------------------------------------------------------------------------------------


def save_orders(home: Path, orders: Orders) -> None:
    """Write the orders, readable only by this user, since they contain the secret."""
    save_private_json(
        home / ORDERS_FILE,
        {
            "secret": orders.secret.text,
            "node": orders.node,
            "spec": json.dumps(to_json(orders.spec)),
            "plan_sha256": orders.plan_sha256,
            "settings": json.dumps(dataclasses.asdict(orders.settings)),
            "thresholds": json.dumps(dataclasses.asdict(orders.thresholds)),
            "host": orders.host,
            "port": str(orders.port),
            "peers": json.dumps(orders.peers),
            "multicast": "yes" if orders.multicast else "no",
        },
    )


def load_orders(home: Path) -> Orders:
    """Read the orders that the command line wrote to a device's home."""
    names = ("secret", "node", "spec", "plan_sha256", "settings", "thresholds", "host", "port", "peers", "multicast")
    texts = dict(zip(names, load_private_json(home / ORDERS_FILE, names), strict=True))
    return Orders(
        secret=FlockSecret.parse(texts["secret"]),
        node=texts["node"],
        spec=from_json(JobSpec, json.loads(texts["spec"])),
        plan_sha256=texts["plan_sha256"],
        settings=FlockSettings(**json.loads(texts["settings"])),
        thresholds=Thresholds(**json.loads(texts["thresholds"])),
        host=texts["host"],
        port=int(texts["port"]),
        peers=json.loads(texts["peers"]),
        multicast=texts["multicast"] == "yes",
    )


async def run_flock(home: Path, *, child_module: str, pace_s: float) -> dict[str, Any]:
    """Run until the flock is over or a signal comes. Return the outcome."""
    began_s = time.monotonic()
    flock = Flock(load_orders(home), Paths(home), child_module=child_module, pace_s=pace_s)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, flock.stop, "it was stopped")
    reason = await flock.run()
    status = flock.peer.status()
    return {
        "version": status.version,
        "digest": status.digest,
        "made_of": status.made_of,
        "is_over": status.is_over,
        "tested_version": status.tested,
        "accuracy": figure_of(status.metrics, "accuracy"),
        "metrics": {metric.name: metric.value for metric in status.metrics},
        "model": str(flock.model_file),
        "reason": reason,
        "seconds": round(time.monotonic() - began_s, 3),
    }


def in_words(told: Mapping[str, Any]) -> str:
    figures = [
        f"{figure:.2%} right" if name == "accuracy" else f"{name} {figure:.4g}"
        for name, figure in told["metrics"].items()
        if figure is not None
    ]
    right = f", {', '.join(figures)} here at version {told['tested_version']}" if figures else ""
    return (
        f"Version {told['version']}, made of {told['made_of']} updates{right}, after {told['seconds']:.0f} s:"
        f" {told['reason']}.\n"
        f"The model is in {told['model']}"
    )


def main() -> int:
    options = PeerOptions.parse(sys.argv[1:])
    set_out(quiet=options.quiet, leash=options.leash)
    try:
        expose(Paths(options.home), options.data)
        told = asyncio.run(run_flock(options.home, child_module=options.child_module, pace_s=options.pace_s))
    except ShoalError as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 2
    if options.out is not None:
        shutil.copyfile(told["model"], options.out)
        told["model"] = str(options.out)
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(told) if options.json else in_words(told), flush=True)
    return 0 if told["is_over"] else 1


if __name__ == "__main__":
    sys.exit(main())
