"""Messages between an agent and its trainer: a length, then JSON. No torch."""

from __future__ import annotations

import json
import socket
from typing import Any, TypeAlias

from shoal.errors import PeerViolation
from shoal.wire.limits import TRAINER_MESSAGE_MAX_BYTES

Message: TypeAlias = dict[str, Any]

#: The length comes first: four bytes, big end first.
PREFIX_BYTES = 4

#: One read takes in most messages completely.
READ_BYTES = 1 << 16

_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder()


def encode(message: Message) -> bytes:
    """Encode one message for the socket. JSON has no NaN: callers send None instead."""
    body = _ENCODER.encode(message).encode()
    if len(body) > TRAINER_MESSAGE_MAX_BYTES:
        raise PeerViolation(f"a trainer message of {len(body):,} bytes is refused: {message.get('kind')}")
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


def body_bytes(prefix: bytes | bytearray) -> int:
    """Return the length of the body that a prefix announces. Checks it before anything is read or allocated."""
    length = int.from_bytes(prefix, "big")
    if not 2 <= length <= TRAINER_MESSAGE_MAX_BYTES:
        raise PeerViolation(f"a trainer message of {length:,} bytes is refused")
    return length


def decode(body: bytes | bytearray) -> Message:
    """Read one body. Every message is an object with a text ``kind``."""
    try:
        message = _DECODER.decode(str(body, "utf-8"))
    except (ValueError, RecursionError):
        raise PeerViolation("a trainer message is not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise PeerViolation("a trainer message has no kind")
    return message


class Incoming:
    """Bytes as they come, and the messages in them."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __len__(self) -> int:
        return len(self._bytes)

    def feed(self, part: bytes) -> None:
        self._bytes += part

    def next(self) -> Message | None:
        """Return the next message, or None if it is incomplete. After a PeerViolation nothing more can be read."""
        if len(self._bytes) < PREFIX_BYTES:
            return None
        end = PREFIX_BYTES + body_bytes(self._bytes[:PREFIX_BYTES])
        if len(self._bytes) < end:
            return None
        body = self._bytes[PREFIX_BYTES:end]
        del self._bytes[:end]
        return decode(body)


class Channel:
    """The trainer's end: blocking, one reader and one writer."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._incoming = Incoming()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        self._socket.sendall(encode(message))

    def receive(self) -> Message | None:
        """Return the next message, or None if the other end has closed."""
        while (message := self._incoming.next()) is None:
            try:
                part = self._socket.recv(READ_BYTES)
            except ConnectionError:
                return None
            if not part:
                return None
            self._incoming.feed(part)
        return message
