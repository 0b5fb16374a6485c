"""The yardstick of ``round_overhead``: gRPC alone, which moves a round's bytes with the same TLS, chunks and processes.

A server takes one update from each of N client processes, then sends each of them one model; nothing is decoded,
checked, merged, trained or saved. With ``--work`` it is: by ``bare_work``, and still by no role, ledger or trainer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from benchmarks.bare_work import Copy, Merging, an_update, frames_of
from shoal.identity.identity import Identity, channel_credentials, channel_options, renewable_server_credentials
from shoal.wire.limits import CHUNK_BYTES, READ_AHEAD_BYTES, READ_BUFFER_BYTES

_PATH = "/bare.Bare/Round"
_OPTIONS = [("grpc.max_receive_message_length", CHUNK_BYTES + 64), ("grpc.max_send_message_length", CHUNK_BYTES + 64)]
#: As Shoal's own server has them.
_SERVER_OPTIONS = [
    *_OPTIONS,
    ("grpc.http2.lookahead_bytes", READ_AHEAD_BYTES),
    ("grpc.experimental.tcp_max_read_buffer_size", READ_BUFFER_BYTES),
]
VALUE_BYTES = 4
#: A server or a client that has not answered by then never will.
ANSWER_S = 120.0

#: Device, then words -> the words that run them on this device.
On = Callable[..., Sequence[str]]


def chunks(total_bytes: int) -> list[bytes]:
    """Real bytes, each chunk its own: one chunk sent three times would stay in the cache, as no model does."""
    data = os.urandom(total_bytes)
    return [data[at : at + CHUNK_BYTES] for at in range(0, total_bytes, CHUNK_BYTES)]


class BareServer:
    """Rounds with a barrier: what a synchronous star moves, and no more."""

    def __init__(self, identity: Identity, *, workers: int, values: int, work: bool) -> None:
        self._identity = identity
        self._workers = workers
        self._values = values
        self._merging = Merging(values) if work else None
        self._model = frames_of(self._merging.model) if self._merging is not None else chunks(values * VALUE_BYTES)
        self._arrived = 0
        self._next_round = asyncio.Event()
        self._running = asyncio.Event()
        self._server: Any = None
        self.rounds = 0

    async def start(self, host: str) -> int:
        self._server = grpc.aio.server(options=_SERVER_OPTIONS)
        handler = grpc.method_handlers_generic_handler(
            "bare.Bare", {"Round": grpc.stream_stream_rpc_method_handler(self._serve)}
        )
        self._server.add_generic_rpc_handlers((handler,))
        port = self._server.add_secure_port(f"{host}:0", renewable_server_credentials(lambda: self._identity))
        await self._server.start()
        return int(port)

    async def stop(self) -> None:
        await self._server.stop(0)

    async def _serve(self, _: Any, context: Any) -> None:
        update = Copy(self._values) if self._merging is not None else None
        while True:
            for _chunk in self._model:
                frame = await context.read()
                if frame is grpc.aio.EOF:
                    return
                if update is not None:
                    update.feed(frame)
            if self._merging is not None and update is not None:
                self._merging.add(update.array)
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
            if self._merging is not None:
                self._model = self._merging.step()
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


async def client(home: Path, *, host: str, port: int, values: int, work: bool) -> None:
    options = [*_OPTIONS, *channel_options("manager")]
    credentials = channel_credentials(Identity.load(home))
    async with grpc.aio.secure_channel(f"{host}:{port}", credentials, options=options) as channel:
        call = channel.stream_stream(_PATH)()
        frames, update, model = chunks(values * VALUE_BYTES), an_update(values), Copy(values)
        with contextlib.suppress(grpc.RpcError):
            while True:
                if work:
                    frames = frames_of(update)
                for chunk in frames:
                    await call.write(chunk)
                for _ in frames:
                    frame = await call.read()
                    if frame is grpc.aio.EOF:
                        return
                    if work:
                        model.feed(frame)


@dataclass(slots=True)
class Bare:
    """A server and its clients, a process each, that run while they are measured and rest otherwise."""

    server: asyncio.subprocess.Process
    clients: list[asyncio.subprocess.Process]

    @property
    def pids(self) -> dict[str, list[int]]:
        return {"server": [self.server.pid], "clients": [process.pid for process in self.clients]}

    async def measure(self, seconds: float) -> tuple[float, float]:
        """Rounds a second; and how many were made altogether, while it warmed up too."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(f"{seconds}\n".encode())
        await self.server.stdin.drain()
        told = json.loads(await asyncio.wait_for(self.server.stdout.readline(), seconds + ANSWER_S))
        return told["rounds_per_s"], told["rounds"]


@contextlib.asynccontextmanager
async def bare(
    server_home: Path, homes: dict[str, Path], *, on: On, server: str, host: str, values: int, work: bool
) -> AsyncIterator[Bare]:
    """One process a worker, as agents are. ``homes``: device -> its identity."""
    module = (sys.executable, "-m", "benchmarks.bare_grpc", "--host", host, "--values", str(values))
    given = (*module, "--work") if work else module
    processes: list[asyncio.subprocess.Process] = []
    try:
        words = on(server, *given, "--home", str(server_home), "--serve", str(len(homes)))
        pipe = asyncio.subprocess.PIPE
        serving = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
        processes.append(serving)
        assert serving.stdout is not None
        port = json.loads(await asyncio.wait_for(serving.stdout.readline(), ANSWER_S))["port"]
        for name, home in homes.items():
            words = on(name, *given, "--home", str(home), "--port", str(port))
            processes.append(await asyncio.create_subprocess_exec(*words))
        made = Bare(serving, processes[1:])
        async with asyncio.timeout(ANSWER_S):
            while (await made.measure(0.5))[1] < 1:  # until every client is connected and warm
                pass
        yield made
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        await asyncio.gather(*(process.wait() for process in processes))


async def serve(given: argparse.Namespace) -> None:
    """Measure when a line on standard input says for how long."""
    server = BareServer(Identity.load(given.home), workers=given.serve, values=given.values, work=given.work)
    print(json.dumps({"port": await server.start(given.host)}), flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        before = server.rounds
        rate = await server.measure(float(line))
        print(json.dumps({"rounds_per_s": rate, "rounds": server.rounds - before}), flush=True)
    await server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A server or a client of bare gRPC. Started by round_overhead.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--values", type=int, required=True)
    parser.add_argument("--work", action="store_true")
    parser.add_argument("--serve", type=int, default=0, metavar="CLIENTS")
    chosen = parser.parse_args()
    if chosen.serve:
        asyncio.run(serve(chosen))
    else:
        asyncio.run(
            client(chosen.home, host=chosen.host, port=chosen.port, values=chosen.values, work=chosen.work),
        )
