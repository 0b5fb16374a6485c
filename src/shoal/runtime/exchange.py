"""The manager's side of lending: its scheduler, and the sessions of those who lend and those who borrow.

An analyst comes as an operator, with a work stream and nothing else; several may come under one name, so each session
is an analyst of its own. Decides nothing.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from shoal.errors import Misuse
from shoal.roles.actions import Action, Record, Send
from shoal.roles.events import Connected, Disconnected, Event, Liveness, MemberHeld, PeerChanged, Received
from shoal.roles.scheduler import Scheduler
from shoal.runtime.host import RoleHost
from shoal.transport.base import Session
from shoal.wire.limits import RIGHT_MAX_BYTES, TASK_MAX_BYTES
from shoal.wire.messages import Lane, LenderView, Message, Result, Right, Task

log = logging.getLogger("shoal")


class Exchange:
    def __init__(self, *, held: Mapping[str, str], note: Callable[[Record], None]) -> None:
        """``held``: members that an operator holds back, and how; ``note`` writes a decision down."""
        self._held = dict(held)
        self._note = note
        #: Set up when someone first lends or borrows: most clusters never do.
        self._scheduler: Scheduler | None = None
        #: Large matrices are copied and hashed there, so that heartbeats do not wait.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-exchange")
        self._host = RoleHost("scheduler", self._perform, executor=self._thread)
        self._numbers = itertools.count(1)
        #: Analyst or node -> its work stream.
        self._sessions: dict[str, Session] = {}
        self._analysts: dict[Session, str] = {}
        #: Nodes that said they lend, and those of which the scheduler knows.
        self._lends: set[str] = set()
        self._lending: set[str] = set()

    def _open(self) -> None:
        if self._scheduler is None:
            self._scheduler = Scheduler(held={node: hold for node, hold in self._held.items() if hold})
            self._host.start(self._scheduler)

    def _post(self, event: Event) -> None:
        if self._scheduler is not None:
            self._host.post(event)

    async def stop(self) -> None:
        await self._host.stop()
        self._thread.shutdown(wait=True)

    def views(self) -> tuple[LenderView, ...]:
        return self._scheduler.views() if self._scheduler is not None else ()

    # Sessions -------------------------------------------------------------------------------------------

    def opened(self, session: Session) -> None:
        if session.lane is not Lane.WORK:
            return
        if session.peer.role == "operator":
            self._open()
            name = f"{session.peer.node}/{next(self._numbers)}"
            self._analysts[session], self._sessions[name] = name, session
            return
        node = session.peer.node
        self._over(node, "connected again")
        self._sessions[node] = session
        self._look_at(node)

    def closed(self, session: Session, reason: str) -> None:
        if session.lane is not Lane.WORK:
            return
        analyst = self._analysts.pop(session, "")
        if analyst:
            del self._sessions[analyst]
            self._post(Disconnected(node=analyst, reason=reason))
        elif self._sessions.get(session.peer.node) is session:
            del self._sessions[session.peer.node]
            self._over(session.peer.node, reason)

    def said_hello(self, node: str, *, lends: bool) -> None:
        if lends:
            self._lends.add(node)
        else:
            self._lends.discard(node)
            self._over(node, "it lends no more")
        self._look_at(node)

    def changed(self, change: PeerChanged) -> None:
        self._post(change)
        if change.state is Liveness.LOST:
            self._lending.discard(change.node)
        elif change.state is Liveness.ALIVE:
            # It was given up, and is heard again on the same session.
            self._look_at(change.node)

    def held(self, event: MemberHeld) -> None:
        self._held[event.node] = event.hold
        self._post(event)
        self._look_at(event.node)

    def _look_at(self, node: str) -> None:
        """Who lends, is here, and may speak: one that waits to be approved may not answer."""
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
            case Task() if session in self._analysts:
                return TASK_MAX_BYTES
            case Right() if session in self._analysts:
                return RIGHT_MAX_BYTES
            case Result() if self._scheduler is not None:
                return self._scheduler.result_limit(session.peer.node, message.task)
            case _:
                return 0

    def awaits(self, session: Session, message: Message) -> bool:
        if isinstance(message, Result) and self._scheduler is not None:
            return self._scheduler.awaits_result(session.peer.node, message.task)
        return True

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        """Returns once its tensors are not needed any more."""
        sender = self._analysts.get(session, session.peer.node)
        if self._scheduler is None:
            # From a node that never said it lends.
            return
        await self._host.deliver(Received(sender=sender, message=message, size_bytes=size_bytes))

    async def _perform(self, host: RoleHost, action: Action) -> None:
        match action:
            case Send():
                session = self._sessions.get(action.to)
                if session is not None:
                    session.post(action.message)
            case Record():
                self._note(action)
            case _:
                raise Misuse(f"a scheduler does not ask for {type(action).__name__}")
