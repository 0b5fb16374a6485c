"""The manager's side of offloading: its broker, and the sessions of executors and clients.

A client connects as an operator, with only a work stream. Several may connect under one name, so each session is a
separate client.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from shoal.errors import Misuse
from shoal.net.base import Session
from shoal.offload.roles.broker import Broker
from shoal.roles.actions import Action, Record
from shoal.roles.events import Connected, Disconnected, Event, Liveness, MemberHeld, PeerChanged, Received
from shoal.runtime.pool import ManagerPool
from shoal.runtime.role_host import RoleHost
from shoal.wire.limits import RIGHT_MAX_BYTES, TASK_MAX_BYTES
from shoal.wire.messages import ExecutorView, Lane, Message, RightOperand, TileResult, TileTask

log = logging.getLogger("shoal")


class Exchange(ManagerPool):
    def __init__(self, *, held: Mapping[str, str], note: Callable[[Record], None]) -> None:
        """``held``: members that an operator holds back, and how; ``note`` writes a decision down."""
        self._held = dict(held)
        self._note = note
        #: Set up with the first executor or client: most clusters never have one.
        self._broker: Broker | None = None
        #: A thread copies and hashes large matrices, so that heartbeats do not wait.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-exchange")
        self._host = RoleHost("broker", self._perform, send=self._send, executor=self._thread)
        self._numbers = itertools.count(1)
        #: Client or node -> its work stream.
        self._sessions: dict[str, Session] = {}
        self._clients: dict[Session, str] = {}
        #: Nodes that offer to multiply, and those of them that the broker knows.
        self._lends: set[str] = set()
        self._lending: set[str] = set()

    def _open(self) -> None:
        if self._broker is None:
            self._broker = Broker(held={node: hold for node, hold in self._held.items() if hold})
            self._host.start(self._broker)

    def _post(self, event: Event) -> None:
        if self._broker is not None:
            self._host.post(event)

    async def stop(self) -> None:
        await self._host.stop()
        self._thread.shutdown(wait=True)

    def views(self) -> tuple[ExecutorView, ...]:
        return self._broker.views() if self._broker is not None else ()

    # Sessions -------------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        if session.lane is not Lane.WORK:
            return
        if session.peer.role == "operator":
            self._open()
            name = f"{session.peer.node}/{next(self._numbers)}"
            self._clients[session], self._sessions[name] = name, session
            return
        node = session.peer.node
        self._over(node, "connected again")
        self._sessions[node] = session
        self._look_at(node)

    def closed(self, session: Session, reason: str) -> None:
        if session.lane is not Lane.WORK:
            return
        client = self._clients.pop(session, "")
        if client:
            del self._sessions[client]
            self._post(Disconnected(node=client, reason=reason))
        elif self._sessions.get(session.peer.node) is session:
            del self._sessions[session.peer.node]
            self._over(session.peer.node, reason)

    def said_hello(self, node: str, *, lends: bool) -> None:
        if lends:
            self._lends.add(node)
        else:
            self._lends.discard(node)
            self._over(node, "it no longer multiplies for others")
        self._look_at(node)

    def changed(self, change: PeerChanged) -> None:
        if change.state is Liveness.DORMANT:
            change = replace(change, state=Liveness.LOST)
        self._post(change)
        if change.state is Liveness.LOST:
            self._lending.discard(change.node)
        elif change.state is Liveness.ALIVE:
            # It was lost, and has sent a message again on the same session.
            self._look_at(change.node)

    def held(self, event: MemberHeld) -> None:
        self._held[event.node] = event.hold
        self._post(event)
        self._look_at(event.node)

    def _look_at(self, node: str) -> None:
        """Report a node to the broker if it offers to multiply, has a session and is approved."""
        is_here = node in self._lends and node in self._sessions and self._held.get(node) != "pending"
        if is_here and node not in self._lending:
            self._open()
            self._lending.add(node)
            self._post(Connected(node=node))

    def _over(self, node: str, reason: str) -> None:
        if node in self._lending:
            self._lending.discard(node)
            self._post(Disconnected(node=node, reason=reason))

    # Messages -------------------------------------------------------------------------------------------

    def payload_limit(self, session: Session, message: Message) -> int:
        match message:
            case TileTask() if session in self._clients:
                return TASK_MAX_BYTES
            case RightOperand() if session in self._clients:
                return RIGHT_MAX_BYTES
            case TileResult() if self._broker is not None:
                return self._broker.result_limit(session.peer.node, message.task)
            case _:
                return 0

    def awaits(self, session: Session, message: Message) -> bool:
        if isinstance(message, TileResult) and self._broker is not None:
            return self._broker.awaits_result(session.peer.node, message.task)
        return True

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        """Returns once the role is done with its tensors."""
        sender = self._clients.get(session, session.peer.node)
        if self._broker is None:
            # The message is from a node that never offered to multiply.
            return
        await self._host.deliver(Received(sender=sender, message=message, size_bytes=size_bytes))

    def _send(self, to: str, message: Message) -> None:
        session = self._sessions.get(to)
        if session is not None:
            session.post(message)

    async def _perform(self, host: RoleHost, action: Action) -> None:
        match action:
            case Record():
                self._note(action)
            case _:
                raise Misuse(f"a broker does not ask for {type(action).__name__}")
