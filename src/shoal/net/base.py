"""The interface between a node and its transport."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from shoal.identity.names import RemoteIdentity
from shoal.wire.messages import Blob, Contribute, Lane, Message, Renew

#: How the reason begins for which a session ended, where the peer is to blame.
BROKE_CONTRACT = "broke the contract"

#: How a final refusal begins: the cluster no longer accepts this certificate, so trying again does not help.
SHUT_OUT = "shut out"


#: Why a device closes its work lane and stays connected: it has nothing to do there.
RESTS = "no work for now"


class Session(Protocol):
    """One stream to a peer whose identity is proven."""

    @property
    def peer(self) -> RemoteIdentity: ...

    @property
    def lane(self) -> Lane: ...

    def post(self, message: Message) -> None:
        """Queue a message. Never waits; a peer that does not read is cut off."""
        ...

    def close(self, reason: str) -> None: ...


class Listener(Protocol):
    """What a node does for its callers. A transport awaits each call before it reads the peer's next message."""

    def opened(self, session: Session) -> None: ...

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        """A message. Its tensors are valid until this returns: their memory is used again for the next."""
        ...

    def closed(self, session: Session, reason: str) -> None: ...

    def payload_limit(self, session: Session, message: Message) -> int:
        """The most bytes of tensors that may follow this message: asked before memory is taken."""
        ...

    def awaits(self, session: Session, message: Message) -> bool:
        """Whether anyone here can use the tensors of this message now. Asked before memory is taken for them, and again
        with each chunk. If not, they are read and dropped, and the message is delivered without them: its sender may
        not know that its lease or its term is over, and hears so from a role."""
        ...

    def payload_buffer(self, session: Session, message: Message, size_bytes: int) -> memoryview | None:
        """Where the tensors of this message are to be put, if the listener has a place for them."""
        ...


class Service(Protocol):
    """What a node does for the peers that call it: its listener takes their streams, and it answers single calls."""

    @property
    def listener(self) -> Listener: ...

    def turned_away(self, peer: RemoteIdentity, reason: str) -> None:
        """A call was refused before any session or command of it began: whose, and why."""
        ...

    async def operate(self, peer: RemoteIdentity, message: Message) -> Message: ...

    async def renew(self, peer: RemoteIdentity, message: Renew) -> Message: ...

    async def find_blob(self, peer: RemoteIdentity, blob: Blob) -> Path | Blob:
        """A file with the blob; or, for a peer that takes a URL, an answer that names one."""
        ...

    async def store_blob(self, peer: RemoteIdentity, blob: Blob, chunks: AsyncIterator[memoryview]) -> None: ...

    async def take_entries(
        self, peer: RemoteIdentity, given: Contribute, chunks: AsyncIterator[memoryview]
    ) -> Message: ...
