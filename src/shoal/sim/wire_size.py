"""What a message weighs on the wire, and what arrives of it."""

from __future__ import annotations

from typing import Protocol

from shoal.wire.frames import envelope_frame, frames, read_message
from shoal.wire.messages import NO_TENSORS, Heartbeat, HeartbeatSeen, Message


class WireSizer(Protocol):
    def pack(self, message: Message) -> tuple[Message, int]:
        """What the other side will read, and its size in bytes."""
        ...


class Encoded:
    """Through the real frames and back, byte for byte: finds what the wire would lose."""

    def __init__(self) -> None:
        #: Heartbeats are most of what is said, and every device counts its own from one.
        self._heartbeats: dict[Message, tuple[Message, int]] = {}

    def pack(self, message: Message) -> tuple[Message, int]:
        if not isinstance(message, Heartbeat | HeartbeatSeen):
            return _through_the_wire(message)
        packed = self._heartbeats.get(message)
        if packed is None:
            packed = self._heartbeats[message] = _through_the_wire(message)
        return packed


def _through_the_wire(message: Message) -> tuple[Message, int]:
    data = list(frames(message))
    return read_message(iter(data)), sum(len(frame) for frame in data)


class Weighed:
    """The message itself. Its tensors are weighed exactly, its envelope as the first of its kind was: for fleets,
    where encoding every heartbeat would cost more than all else."""

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
