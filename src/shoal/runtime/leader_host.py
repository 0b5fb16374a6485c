"""A device that leads, in whole or in part: its leaders, its aggregators, and its door, which is open while it leads,
and only to its own workers.

The device's counterpart of the home. The manager keeps its versions and its records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn, Protocol

from shoal.errors import Misuse, PeerViolation, ShoalError
from shoal.identity.identity import Identity
from shoal.identity.join_code import endpoint
from shoal.identity.names import RemoteIdentity
from shoal.net.access import AnyKey, NotHere
from shoal.net.grpc import GrpcServer
from shoal.roles.actions import Record, Save
from shoal.roles.events import Event, SaveFailed
from shoal.roles.node.checkpoint_transfer import unpacked
from shoal.roles.node.failure_detector import Patience
from shoal.roles.node.host_router import HostRouter
from shoal.runtime import probe
from shoal.runtime.log_lines import log_event, numbers_in
from shoal.runtime.role_host import RoleHost
from shoal.runtime.role_server import RoleServer, make_leader, owned
from shoal.wire.messages import Assign, Blob, Checkpoint, Contribute, Hello, JobSpec, Leads, Message, Renew

log = logging.getLogger("shoal")

#: How often the door looks whether the device has a new certificate to show, and whether it is needed.
LOOK_EVERY_S = 5.0


class LeaderHostApi(Protocol):
    """What a leader host asks of the agent that has it."""

    @property
    def identity(self) -> Identity: ...

    def send(self, to: str, message: Message) -> None:
        """Over the line that this device dialled, if it did."""
        ...

    async def fetch(self, sha256: str) -> Path:
        """Bring a blob into the cache, verified; where it is."""
        ...

    def check_job(self, spec: JobSpec) -> None:
        """Raise PeerViolation unless this device may run the code of this job."""
        ...


class LeaderHost(AnyKey):
    """A service (see ``net.base``), the place of leaders and aggregators, and the judge of callers."""

    def __init__(self, around: LeaderHostApi, *, manager: str, manager_endpoint: str, port: int = 0) -> None:
        self._around = around
        self._manager = manager
        self._manager_endpoint = manager_endpoint
        self._port = port
        self._router = HostRouter(node=around.identity.node, patience=Patience(), manager=manager)
        self._role_server = RoleServer(self._router, self)
        self._door: GrpcServer | None = None
        self._endpoint = ""
        self._opening = asyncio.Lock()
        self._is_over = False
        self._role_server.spawn(self._role_server.watch(), "membership")
        self._role_server.spawn(self._mind_the_door(), "door")

    # What the agent says ----------------------------------------------------------------------------------

    def leads(self) -> tuple[Leads, ...]:
        return self._router.leads()

    @property
    def is_idle(self) -> bool:
        """No role is here, and the manager has heard every last word."""
        return self._router.is_idle

    def has(self, job: str) -> bool:
        return job in self._router.jobs

    def tell(self, message: Message, *, sender: str = "") -> None:
        """Hand the roles here a message of the manager, or of a leader to its aggregator."""
        if isinstance(message, Checkpoint):
            message = owned(message)
        self._role_server.roles.carry(self._role_server.roles.said_to_hosted(sender, message))

    async def deliver(self, message: Message, *, sender: str) -> None:
        """The same for a leader's message with tensors. Returns once they were read."""
        await self._role_server.said_to_hosted(sender, message)

    def in_touch(self) -> None:
        self._role_server.roles.carry(self._router.on_manager_reached())

    def out_of_touch(self, reason: str) -> None:
        self._role_server.roles.carry(self._router.on_manager_lost(reason=reason))

    async def stop(self) -> None:
        self._is_over = True
        await self._role_server.stop()
        await self._close()

    # The door -------------------------------------------------------------------------------------------

    async def open_door(self) -> str:
        """Where others dial this device. It listens there from now on, and on no other address."""
        async with self._opening:
            if self._door is None:
                # In a thread: a name may take long to look up, and heartbeats do not wait.
                here = await asyncio.to_thread(probe.address_towards, self._manager_endpoint)
                door = GrpcServer(self._around.identity, self, members=self)
                try:
                    port = await door.start(here, self._port)
                except Misuse as error:
                    if not self._port:
                        raise
                    raise Misuse(
                        f"port {self._port} on {here} cannot be used: another program has it. Free it, or start"
                        " `shoal join --lead-port` with another"
                    ) from error
                self._door, self._endpoint = door, endpoint(here, port)
                log.info("this device leads, and listens at %s", self._endpoint)
            return self._endpoint

    async def _close(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            await door.stop()

    async def _mind_the_door(self) -> None:
        """Show a fresh certificate in time; close behind the last job."""
        # To be cancelled is not enough: gRPC, while it closes, takes that for itself and goes on.
        while not self._is_over:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._door is None:
                continue
            self._door.become(self._around.identity)
            async with self._opening:
                if self._router.is_idle:
                    log.info("this device no longer leads and no longer listens")
                    await self._close()

    def role_now(self, peer: RemoteIdentity) -> str:
        """A node that works for a job led here is a worker; any other node is refused."""
        if peer.role == "node" and self._router.admits(peer.node):
            return "worker"
        raise NotHere(f"{peer.node} does not work for a job that is led here", peer=peer.node)

    # Callers --------------------------------------------------------------------------------------------

    @property
    def listener(self) -> RoleServer:
        return self._role_server

    def turned_away(self, peer: RemoteIdentity, reason: str) -> None:
        log.warning("%s %s", peer.node, reason)

    async def before_hello(self, hello: Hello) -> None:
        """Nothing to learn: the manager told this leader which nodes may speak to it."""

    async def code_of(self, spec: JobSpec) -> bytes:
        # In a thread: the first time imports `cryptography`, and heartbeats do not wait.
        await asyncio.to_thread(self._around.check_job, spec)
        return await asyncio.to_thread((await self._around.fetch(spec.bundle)).read_bytes)

    def checkpoint_limit(self, checkpoint: Checkpoint) -> int:
        return 0

    def awaits_checkpoint(self, sender: str, checkpoint: Checkpoint) -> bool:
        return False

    # The place of leaders on a device ---------------------------------------------------------------------

    def to_manager(self, event: Event) -> None:
        raise Misuse("the manager is not here")

    def say(self, to: str, message: Message) -> None:
        self._around.send(to, message)

    def record(self, job: str, record: Record) -> None:
        log_event(log, record.kind, record.reason, job=job, **numbers_in(record.reason))
        self._role_server.roles.carry(self._router.on_record(job, record))

    def set_up_leader(self, host: RoleHost, assign: Assign) -> None:
        """The host router has asked the manager for the checkpoint."""
        log.info("[%s] appointed: %s", assign.job, assign.reason)

    def resume(self, host: RoleHost, assign: Assign, checkpoint: Checkpoint) -> None:
        self._role_server.spawn(self._resume(host, assign, checkpoint), f"resume {assign.job}")

    async def _resume(self, host: RoleHost, assign: Assign, checkpoint: Checkpoint) -> None:
        try:
            initial = await self._around.fetch(assign.spec.initial)
            if assign.spec.plan.algorithm:
                # Now, while another node may lead instead: later it would fail the job.
                await self.code_of(assign.spec)
            version = await asyncio.to_thread(unpacked, checkpoint)
            leader = await asyncio.to_thread(make_leader, initial, assign, version, manager=self._manager)
            where = await self.open_door()
        except Exception as error:
            if not isinstance(error, ShoalError | OSError | KeyError | ValueError):
                log.exception("job %s could not be led", assign.job)
            self._role_server.roles.fail(host, assign.job, str(error))
            return
        self._role_server.roles.begin(host, assign, leader, endpoint=where)

    def save(self, host: RoleHost, job: str, save: Save) -> None:
        self._role_server.spawn(self._save(host, job, save), f"save {job}")

    async def _save(self, host: RoleHost, job: str, save: Save) -> None:
        # The leader may have been let go since it asked: its version must not be sent under its successor's term.
        if host.ended:
            return
        try:
            self._role_server.roles.carry(self._router.on_save(job, save))
        except ShoalError as error:
            # The version does not fit into a file; the role tries again, and says so.
            host.post(SaveFailed(version=save.version, reason=str(error)))

    # Calls that only a manager answers: the access table lets no caller make them here -----------------------

    async def operate(self, peer: RemoteIdentity, message: Message) -> Message:
        self._refuse(peer)

    async def renew(self, peer: RemoteIdentity, message: Renew) -> Message:
        self._refuse(peer)

    async def find_blob(self, peer: RemoteIdentity, blob: Blob) -> Path:
        self._refuse(peer)

    async def store_blob(self, peer: RemoteIdentity, blob: Blob, chunks: AsyncIterator[memoryview]) -> None:
        self._refuse(peer)

    async def take_entries(self, peer: RemoteIdentity, given: Contribute, chunks: AsyncIterator[memoryview]) -> Message:
        self._refuse(peer)

    def _refuse(self, peer: RemoteIdentity) -> NoReturn:
        raise PeerViolation("this is the door of a leader, not of the manager", peer=peer.node)
