"""Messages between an agent and its trainer: a length, then JSON. Knows no command; knows no torch."""

from __future__ import annotations

import json
import socket
from typing import Any, TypeAlias

from shoal.errors import PeerViolation
from shoal.wire.limits import TRAINER_MESSAGE_MAX_BYTES

Message: TypeAlias = dict[str, Any]

#: The length comes first: four bytes, big end first.
PREFIX_BYTES = 4


def encode(message: Message) -> bytes:
    """One message as it crosses the socket. JSON has no NaN: say None instead."""
    body = json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
    if len(body) > TRAINER_MESSAGE_MAX_BYTES:
        raise PeerViolation(f"a trainer message of {len(body):,} bytes is refused: {message.get('kind')}")
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


def body_bytes(prefix: bytes) -> int:
    """How long the body is that this prefix announces; checked before anything is read or allocated."""
    length = int.from_bytes(prefix, "big")
    if not 2 <= length <= TRAINER_MESSAGE_MAX_BYTES:
        raise PeerViolation(f"a trainer message of {length:,} bytes is refused")
    return length


def decode(body: bytes) -> Message:
    """Read one body. Every message is an object with a text ``kind``."""
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise PeerViolation("a trainer message is not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise PeerViolation("a trainer message has no kind")
    return message


class Channel:
    """The trainer's end: blocking, one reader and one writer."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def send(self, message: Message) -> None:
        self._socket.sendall(encode(message))

    def receive(self) -> Message | None:
        """The next message; None when the other end is gone."""
        prefix = self._exactly(PREFIX_BYTES)
        body = self._exactly(body_bytes(prefix)) if prefix else None
        return decode(body) if body else None

    def _exactly(self, count: int) -> bytes | None:
        parts: list[bytes] = []
        while count:
            try:
                part = self._socket.recv(count)
            except ConnectionError:
                return None
            if not part:
                return None
            parts.append(part)
            count -= len(part)
        return b"".join(parts)
