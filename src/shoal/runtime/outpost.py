"""A device that leads, in whole or in part: its door, open while it does and to those alone who work for it; and its
leaders and sub-leaders.

The twin of the home for what a device hosts. What must not be lost, it sends to the manager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NoReturn, Protocol

from shoal.errors import Misuse, PeerViolation, ShoalError
from shoal.roles.actions import Record, Save
from shoal.roles.custody import unpacked
from shoal.roles.events import Event, SaveFailed
from shoal.roles.membership import Patience
from shoal.roles.switchboard import Switchboard
from shoal.runtime import probe
from shoal.runtime.host import RoleHost
from shoal.runtime.hosting import Hosting, make_leader, owned
from shoal.transport.access import AnyKey, NotHere
from shoal.transport.base import Session
from shoal.transport.grpc import GrpcServer
from shoal.transport.identity import Identity
from shoal.transport.join_code import endpoint
from shoal.transport.names import RemoteIdentity
from shoal.wire.messages import RECIPIENT, Assign, Blob, Checkpoint, Count, Disband, Form, Leads, Message, Pass, Renew

log = logging.getLogger("shoal")

#: How often the door looks whether the device has a new certificate to show, and whether it is needed.
LOOK_EVERY_S = 5.0


class Surroundings(Protocol):
    """What an outpost asks of the agent around it."""

    @property
    def identity(self) -> Identity: ...

    def send(self, to: str, message: Message) -> None:
        """Over the line that this device dialled, if it did."""
        ...

    async def fetch(self, sha256: str) -> Path:
        """Bring a blob into the cache, verified; where it is."""
        ...


class Outpost(AnyKey):
    """A service (see ``transport.base``), a place that hosts leaders and sub-leaders, and has a say on who comes in."""

    def __init__(self, around: Surroundings, *, manager: str, manager_endpoint: str, port: int = 0) -> None:
        self._around = around
        self._manager = manager
        self._manager_endpoint = manager_endpoint
        self._port = port
        self._board = Switchboard(node=around.identity.node, patience=Patience(), manager=manager)
        self._hosting = Hosting(self._board, self)
        self._door: GrpcServer | None = None
        self._endpoint = ""
        self._opening = asyncio.Lock()
        self._is_over = False
        self._hosting.spawn(self._hosting.watch(), "membership")
        self._hosting.spawn(self._mind_the_door(), "door")

    # What the agent says ----------------------------------------------------------------------------------

    def leads(self) -> tuple[Leads, ...]:
        return self._board.leads()

    def has(self, job: str) -> bool:
        return job in self._board.jobs

    def told(self, message: Message, *, sender: str = "") -> None:
        """The manager speaks to the leaders here, or makes this node one; or a leader to its sub-leaders here."""
        if isinstance(message, Form | Count | Pass | Disband):
            self._hosting.carry(self._board.on_leader_message(sender, message))
            return
        if isinstance(message, Checkpoint):
            message = owned(message)
        self._hosting.carry(self._board.on_manager_message(message))

    async def formed_by(self, leader: str, message: Form | Pass) -> None:
        """What a leader says to a sub-leader with tensors. Returns once they were taken."""
        await self._hosting.take(self._board.on_leader_message(leader, message))

    def in_touch(self) -> None:
        self._hosting.carry(self._board.on_manager_reached())

    def out_of_touch(self, reason: str) -> None:
        self._hosting.carry(self._board.on_manager_lost(reason=reason))

    async def stop(self) -> None:
        self._is_over = True
        await self._hosting.stop()
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
                if self._board.is_idle:
                    log.info("this device leads no more, and listens no more")
                    await self._close()

    def role_now(self, peer: RemoteIdentity) -> str:
        """A node that works for a job led here is a worker; whoever else may knock is nobody here."""
        if peer.role == "node" and self._board.admits(peer.node):
            return "worker"
        raise NotHere(f"{peer.node} does not work for a job that is led here", peer=peer.node)

    # Those who come in ------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        self._hosting.opened(session)

    def closed(self, session: Session, reason: str) -> None:
        self._hosting.closed(session, reason)

    def turned_away(self, peer: RemoteIdentity, reason: str) -> None:
        log.warning("%s %s", peer.node, reason)

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        await self._hosting.received(session, message, size_bytes)

    def payload_limit(self, session: Session, message: Message) -> int:
        return self._hosting.payload_limit(message)

    def awaits(self, session: Session, message: Message) -> bool:
        return self._hosting.awaits_tensors(session.peer.node, message)

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        return None

    # A place that hosts leaders ---------------------------------------------------------------------------

    def to_manager(self, event: Event) -> None:
        raise Misuse("the manager is not here")

    def send(self, node: str, message: Message) -> bool:
        """What is for a manager or a leader goes the way that this device dialled; the rest to those who dialled it."""
        if RECIPIENT.get(type(message)) not in ("manager", "leader"):
            return False
        self._around.send(node, message)
        return True

    def note(self, job: str, record: Record) -> None:
        log.info("[%s] %s: %s", job, record.kind, record.reason)
        self._hosting.carry(self._board.on_record(job, record))

    async def lead(self, assign: Assign) -> None:
        log.info("[%s] appointed: %s", assign.job, assign.reason)

    async def resume(self, assign: Assign, checkpoint: Checkpoint) -> None:
        try:
            initial = await self._around.fetch(assign.spec.initial)
            version = await asyncio.to_thread(unpacked, checkpoint)
            leader = await asyncio.to_thread(make_leader, initial, assign, version, manager=self._manager)
            where = await self.open_door()
        except Exception as error:
            if not isinstance(error, ShoalError | OSError | KeyError | ValueError):
                log.exception("job %s could not be led", assign.job)
            if self._hosting.awaits(assign):
                self._hosting.failed(assign.job, str(error))
            return
        if self._hosting.begin(assign, leader):
            self._hosting.carry(self._board.on_leading(assign.job, endpoint=where))

    async def save(self, job: str, host: RoleHost, save: Save) -> None:
        # It may have been let go of since it asked, and what it made is not to be sent under its successor's term.
        if not self._hosting.is_led_by(job, host):
            return
        try:
            self._hosting.carry(self._board.on_save(job, save))
        except ShoalError as error:
            # What does not fit into a file; the role tries again, and says so.
            host.post(SaveFailed(version=save.version, reason=str(error)))

    # What only a manager does: the access table lets nobody ask for it here -------------------------------

    async def operate(self, peer: RemoteIdentity, message: Message) -> Message:
        self._refuse(peer)

    async def renew(self, peer: RemoteIdentity, message: Renew) -> Message:
        self._refuse(peer)

    def blob_path(self, peer: RemoteIdentity, blob: Blob) -> Path:
        self._refuse(peer)

    async def store_blob(self, peer: RemoteIdentity, blob: Blob, chunks: AsyncIterator[memoryview]) -> None:
        self._refuse(peer)

    def _refuse(self, peer: RemoteIdentity) -> NoReturn:
        raise PeerViolation("this is the door of a leader, not of the manager", peer=peer.node)
