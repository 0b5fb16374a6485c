"""The yardstick of ``round_overhead``: gRPC alone, moving a round's bytes with the same TLS, chunks and processes.

A server takes one update from each of N client processes, then sends each of them one model; nothing is decoded,
checked, merged, trained or saved.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from shoal.identity.identity import Identity, channel_credentials, channel_options, server_credentials
from shoal.wire.limits import CHUNK_BYTES

_PATH = "/bare.Bare/Round"
_OPTIONS = [("grpc.max_receive_message_length", CHUNK_BYTES + 64), ("grpc.max_send_message_length", CHUNK_BYTES + 64)]


def chunks(total_bytes: int) -> list[bytes]:
    """Real bytes, each chunk its own: one chunk sent three times would stay in the cache, as no model does."""
    data = os.urandom(total_bytes)
    return [data[at : at + CHUNK_BYTES] for at in range(0, total_bytes, CHUNK_BYTES)]


class BareServer:
    """Rounds with a barrier: what a synchronous star moves, and no more."""

    def __init__(self, identity: Identity, *, workers: int, update_bytes: int) -> None:
        self._identity = identity
        self._workers = workers
        self._model = chunks(update_bytes)
        self._arrived = 0
        self._next_round = asyncio.Event()
        self._running = asyncio.Event()
        self._server: Any = None
        self.rounds = 0
        self.connected = 0

    async def start(self) -> int:
        self._server = grpc.aio.server(options=_OPTIONS)
        handler = grpc.method_handlers_generic_handler(
            "bare.Bare", {"Round": grpc.stream_stream_rpc_method_handler(self._serve)}
        )
        self._server.add_generic_rpc_handlers((handler,))
        port = self._server.add_secure_port("127.0.0.1:0", server_credentials(self._identity))
        await self._server.start()
        return int(port)

    async def stop(self) -> None:
        await self._server.stop(0)

    async def _serve(self, _: Any, context: Any) -> None:
        self.connected += 1
        while True:
            for _chunk in self._model:
                if await context.read() is grpc.aio.EOF:
                    return
            await self._barrier()
            for chunk in self._model:
                await context.write(chunk)

    async def _barrier(self) -> None:
        self._arrived += 1
        following = self._next_round
        if self._arrived == self._workers:
            self._arrived = 0
            self.rounds += 1
            self._next_round = asyncio.Event()
            # Held here while the other side is measured.
            await self._running.wait()
            following.set()
        else:
            await following.wait()

    async def measure(self, seconds: float) -> float:
        """Rounds a second over a stretch; silent before and after."""
        self._running.set()
        await asyncio.sleep(0.5)
        rounds, began_s = self.rounds, time.monotonic()
        await asyncio.sleep(seconds)
        rate = (self.rounds - rounds) / (time.monotonic() - began_s)
        self._running.clear()
        await asyncio.sleep(0.5)
        return rate


async def client(home: Path, *, port: int, update_bytes: int) -> None:
    options = [*_OPTIONS, *channel_options("manager")]
    credentials = channel_credentials(Identity.load(home))
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        call = channel.stream_stream(_PATH)()
        update = chunks(update_bytes)
        with contextlib.suppress(grpc.RpcError):
            while True:
                for chunk in update:
                    await call.write(chunk)
                for _ in update:
                    if await call.read() is grpc.aio.EOF:
                        return


@contextlib.asynccontextmanager
async def clients(homes: list[Path], *, port: int, update_bytes: int) -> AsyncIterator[list[int]]:
    """One process a worker, as agents are; gives their ids."""
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.bare_grpc", "--home", str(home)),
            *("--port", str(port), "--bytes", str(update_bytes)),
        )
        for home in homes
    ]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(*(process.wait() for process in processes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A client of the bare server. Started by round_overhead.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bytes", type=int, required=True)
    given = parser.parse_args()
    asyncio.run(client(given.home, port=given.port, update_bytes=given.bytes))
