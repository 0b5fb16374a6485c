"""Passes TCP connections on, until it is cut: the way of a process to its database."""

from __future__ import annotations

import asyncio
import contextlib


class Relay:
    """Passes TCP connections to a port, or to none."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self.is_cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(OSError):
            if not self.is_cut:
                there, back = await asyncio.open_connection("127.0.0.1", self._target)
                self._open.add(back)
                await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
                self._open.discard(back)
        writer.close()
        self._open.discard(writer)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    def cut(self) -> None:
        """From now on nothing passes; what is open ends."""
        self.is_cut = True
        for writer in list(self._open):
            writer.transport.abort()

    async def stop(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
