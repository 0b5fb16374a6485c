"""The size of a message on the wire, and the message that arrives."""

from __future__ import annotations

from typing import Protocol

from shoal.wire.frames import envelope_frame
from shoal.wire.messages import NO_TENSORS, Message


class WireSizer(Protocol):
    def pack(self, message: Message) -> tuple[Message, int]:
        """Return the message as the other side will read it, and its size in bytes."""
        ...


class Weighed:
    """Passes the message itself. The size of its tensors is exact, that of its envelope is taken from the first of its
    kind. For fleets, where encoding every heartbeat would cost more than everything else."""

    def __init__(self) -> None:
        self._envelopes: dict[type[Message], int] = {}

    def pack(self, message: Message) -> tuple[Message, int]:
        kind = type(message)
        size_bytes = self._envelopes.get(kind)
        if size_bytes is None:
            size_bytes = self._envelopes[kind] = len(envelope_frame(message))
        tensors = getattr(message, "tensors", NO_TENSORS)
        for array in tensors.values():
            size_bytes += array.nbytes
        return message, size_bytes
