"""The pool of a cluster (devices that multiply for others) as managers and agents know it. Provided by a feature.

The core carries the pool's messages and the news of its members; everything else is the feature's (``shoal.features``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from shoal import features
from shoal.net.base import Session
from shoal.roles.actions import Record
from shoal.roles.events import MemberHeld, PeerChanged
from shoal.wire.messages import ExecutorView, Message


class ManagerPool(Protocol):
    """The manager's side: it hears of every session and every member, and gets the messages of the pool."""

    async def stop(self) -> None: ...

    def opened(self, session: Session) -> None: ...

    def closed(self, session: Session, reason: str) -> None: ...

    def said_hello(self, node: str, *, lends: bool) -> None: ...

    def changed(self, change: PeerChanged) -> None: ...

    def held(self, event: MemberHeld) -> None: ...

    def payload_limit(self, session: Session, message: Message) -> int: ...

    def awaits(self, session: Session, message: Message) -> bool: ...

    async def received(self, session: Session, message: Message, size_bytes: int) -> None: ...

    def views(self) -> tuple[ExecutorView, ...]: ...


class AgentPool(Protocol):
    """An agent's side, if its device lends: it gets the messages of the pool that come from the manager."""

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def disconnected(self, reason: str) -> None: ...

    def payload_limit(self, message: Message) -> int: ...

    async def received(self, message: Message, size_bytes: int) -> None: ...


def manager_pool(*, held: Mapping[str, str], note: Callable[[Record], None]) -> ManagerPool:
    """``held``: members that an operator holds back, and how; ``note`` writes a decision down."""
    make: Callable[..., ManagerPool] = features.provided("manager_pool")
    return make(held=held, note=note)


def agent_pool(*, manager: str, send: Callable[[str, Message], None]) -> AgentPool:
    """``send`` carries a message to the manager, or to another node by name."""
    make: Callable[..., AgentPool] = features.provided("agent_pool")
    return make(broker=manager, send=send)
