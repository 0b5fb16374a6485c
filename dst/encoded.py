"""Messages as they cross the wire, encoded and read again: what a simulation with real frames uses."""

from __future__ import annotations

from shoal.wire.frames import frames, read_message
from shoal.wire.messages import Heartbeat, HeartbeatSeen, Message


class Encoded:
    """Encodes messages to the real frames and back, byte for byte, and so finds what the wire would lose."""

    def __init__(self) -> None:
        #: Heartbeats are most of the messages, and every device counts its own from one.
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
