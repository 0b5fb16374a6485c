"""A capture of everything that is sent to a door for tabs on loopback, from raw packets. Needs CAP_NET_RAW.

with DoorCapture(port) as capture:
    ...
capture.sent  # what each connection sent, as the door read it
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np

_ETH_P_IP = 0x0800
#: The kernel drops what nobody reads in time.
_BUFFER_BYTES = 256 << 20
_PACKET_BYTES = 1 << 17
_POLL_S = 0.2
_SO_RCVBUFFORCE = 33
_ETHERNET_BYTES = 14


def may_capture() -> bool:
    """Whether this process may read packets."""
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_IP)).close()
    except (AttributeError, OSError):
        return False
    return True


class DoorCapture:
    def __init__(self, port: int) -> None:
        self._port = port
        self._flows: dict[int, list[tuple[int, bytes]]] = {}
        self._over = threading.Event()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_IP))
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        self._socket.bind(("lo", _ETH_P_IP))
        self._socket.settimeout(_POLL_S)
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                self._take(memoryview(self._socket.recv(_PACKET_BYTES))[_ETHERNET_BYTES:])

    def _take(self, packet: memoryview) -> None:
        head = 4 * (packet[0] & 15)
        if packet[9] != socket.IPPROTO_TCP:
            return
        source, target, number = struct.unpack_from(">HHI", packet, head)
        if target != self._port:
            return
        data = packet[head + 4 * (packet[head + 12] >> 4) : struct.unpack_from(">H", packet, 2)[0] or len(packet)]
        flags = packet[head + 13]
        is_new = bool(flags & 2)
        if is_new:
            # The port of a connection that ended may be taken again.
            self._flows.setdefault(source, []).append((-1, b""))
        if data:
            self._flows.setdefault(source, []).append((number, bytes(data)))

    @property
    def sent(self) -> Iterator[bytes]:
        """What each connection sent. Raises ValueError if a part of one was missed."""
        for segments in self._flows.values():
            for stream in _streams(segments):
                yield b"".join(_payloads(stream))


def _streams(segments: list[tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield the bytes of each connection of one port, in their order."""
    starts = [i for i, (number, _) in enumerate(segments) if number < 0] + [len(segments)]
    for low, high in itertools.pairwise(starts):
        parts = segments[low + 1 : high]
        if not parts:
            continue
        first, whole = parts[0][0], bytearray()
        # Numbers begin anywhere, and go around.
        for place, data in sorted(((number - first) % 2**32, data) for number, data in parts):
            if place > len(whole):
                raise ValueError(f"{place - len(whole)} bytes of a connection were missed")
            whole[place:] = data if place + len(data) > len(whole) else whole[place:]
        yield bytes(whole)


def _payloads(stream: bytes) -> Iterator[bytes]:
    """Yield what HTTP and WebSocket carry: requests as they are, and frames without their masks (RFC 6455, 5.2)."""
    head, end, rest = stream.partition(b"\r\n\r\n")
    if b"upgrade: websocket" not in head.lower():
        yield stream
        return
    yield head + end
    at = 0
    while at + 2 <= len(rest):
        length, at = rest[at + 1] & 127, at + 2
        if length >= 126:
            size = 2 if length == 126 else 8
            length, at = int.from_bytes(rest[at : at + size], "big"), at + size
        mask, body = np.frombuffer(rest[at : at + 4], np.uint8), np.frombuffer(rest[at + 4 : at + 4 + length], np.uint8)
        at += 4 + length
        if len(mask) == 4:
            yield (body ^ np.resize(mask, len(body))).tobytes()
