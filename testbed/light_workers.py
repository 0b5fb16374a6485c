"""Many workers in one process, for ``fan_in``: the real protocol and certificates, no trainer and no copies.

A process holds one lane of each of its nodes, so that nothing a model does to a client can delay a heartbeat on it.
It is led by lines on its standard input and answers with JSON lines:

    control   says {"welcomed": N}, {"assigned": N}; at "tell" says how long its heartbeats took; ends at end of input
    work      says {"connected": N}; at "begin JOB" asks for work, says {"held": VERSION} once all its nodes hold a
              lease of it, and at "push" lets them all send at once
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np

from shoal.identity.identity import Identity, channel_credentials, channel_options
from shoal.net.grpc import SERVICE
from shoal.wire.frames import (
    Opening,
    chunk_frames,
    envelope_frame,
    joined,
    payload_bytes,
    read_chunk_frame,
    read_opening,
)
from shoal.wire.limits import MESSAGE_MAX_BYTES
from shoal.wire.messages import (
    Assign,
    Facts,
    Finished,
    Go,
    Heartbeat,
    HeartbeatSeen,
    Hello,
    Lane,
    Message,
    Offer,
    Ready,
    Update,
    UpdateRefused,
    Wait,
    Welcome,
    Work,
)

_OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_MAX_BYTES),
    ("grpc.max_send_message_length", MESSAGE_MAX_BYTES),
    # As agents have it: a connection of its own for each lane of each node.
    ("grpc.use_local_subchannel_pool", 1),
]


def tell(**said: object) -> None:
    print(json.dumps(said), flush=True)


class Client:
    """One lane of one node."""

    def __init__(self, identity: Identity, lane: Lane, *, port: int) -> None:
        self.node = identity.node
        options = [*_OPTIONS, *channel_options("manager")]
        self._channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", channel_credentials(identity), options=options)
        self._call: Any = self._channel.stream_stream(f"/{SERVICE}/{lane}")()

    async def connected(self) -> None:
        async with asyncio.timeout(60):
            await self._call.wait_for_connection()

    async def close(self) -> None:
        self._call.cancel()
        await self._channel.close()

    async def send(self, message: Message, chunks: tuple[bytes, ...] = ()) -> None:
        for frame in joined(envelope_frame(message), chunks):
            await self.write(frame)

    async def write(self, frame: bytes) -> None:
        await self._call.write(frame)

    async def messages(self) -> AsyncIterator[Opening]:
        """What the manager says. Tensors are counted and dropped: the kernel and gRPC have done their work by then."""
        while (frame := await self._call.read()) is not grpc.aio.EOF:
            opening = read_opening(frame)
            left = payload_bytes(opening.infos) - (len(opening.chunk) if opening.chunk is not None else 0)
            while left > 0:
                left -= len(read_chunk_frame(await self._call.read()))
            yield opening


class Pulse:
    """Heartbeats of many nodes: sent on time whatever became of the last, and timed until they are seen."""

    def __init__(self, clients: list[Client], *, every_s: float) -> None:
        self._clients = clients
        self._every_s = every_s
        self._sent_s: dict[tuple[str, int], float] = {}
        self._took_s: list[float] = []
        self._welcomed = 0
        self._assigned = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number, client in enumerate(self._clients):
                tasks.create_task(self._hear(client))
                tasks.create_task(self._beat(client, phase_s=self._every_s * number / len(self._clients)))

    async def _beat(self, client: Client, *, phase_s: float) -> None:
        await client.connected()
        # A node that says it has no PyTorch is given no work.
        await client.send(Hello(node=client.node, incarnation="one", facts=Facts(torch="none needed")))
        due_s = time.monotonic() + phase_s
        for seq in range(1, 1 << 30):
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            self._sent_s[client.node, seq] = time.monotonic()
            await client.send(Heartbeat(seq=seq))
            due_s += self._every_s

    async def _hear(self, client: Client) -> None:
        async for opening in client.messages():
            match opening.message:
                case HeartbeatSeen(seq=seq):
                    self._took_s.append(time.monotonic() - self._sent_s.pop((client.node, seq)))
                case Welcome():
                    self._welcomed += 1
                    if self._welcomed == len(self._clients):
                        tell(welcomed=self._welcomed)
                case Assign():
                    self._assigned += 1
                    if self._assigned == len(self._clients):
                        tell(assigned=self._assigned)

    def took_ms(self) -> list[float]:
        """Every heartbeat so far. One that is late and still unanswered counts with its age."""
        ages_s = (time.monotonic() - sent_s for sent_s in self._sent_s.values())
        took_s = [*self._took_s, *(age_s for age_s in ages_s if age_s > self._every_s)]
        return [round(1000 * each_s, 1) for each_s in took_s]

    def tell(self) -> None:
        tell(took_ms=self.took_ms())


class Crew:
    """Workers that take leases, hold them until all have one, and push one prepared update."""

    def __init__(self, clients: list[Client], *, values: int) -> None:
        self._clients = clients
        delta = np.random.default_rng(0).normal(scale=1e-3, size=values).astype(np.float32)
        self._tensors = {"delta": delta}
        self._chunks = tuple(chunk_frames(self._tensors))
        self._held = 0
        self._push = asyncio.Event()

    async def connect(self) -> None:
        await asyncio.gather(*(client.connected() for client in self._clients))
        tell(connected=len(self._clients))

    async def run(self, job: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            for client in self._clients:
                tasks.create_task(self._work(client, job))

    def push(self) -> None:
        self._held = 0
        released, self._push = self._push, asyncio.Event()
        released.set()

    async def _work(self, client: Client, job: str) -> None:
        await client.send(Ready(job=job))
        update: Update | None = None
        async for opening in client.messages():
            match opening.message:
                case Work() as work:
                    assert opening.infos, f"{client.node} was lent version {work.version} without its model"
                    update = Update(
                        job=job, term=work.term, lease=work.lease, version=work.version, examples=len(work.batches)
                    )
                    await self._all_hold(work.version)
                    if work.credit:
                        await self._send(client, update)
                    else:
                        size_bytes = self._tensors["delta"].nbytes
                        await client.send(Offer(job=job, term=work.term, lease=work.lease, size_bytes=size_bytes))
                case Go(lease=lease):
                    assert update is not None
                    assert update.lease == lease, f"{client.node} may send lease {lease}, and holds {update.lease}"
                    await self._send(client, update)
                case Wait():
                    pass
                case Finished():
                    return
                case UpdateRefused(reason=reason):
                    raise AssertionError(f"{client.node} was refused: {reason}")

    async def _send(self, client: Client, update: Update) -> None:
        await client.send(replace(update, tensors=self._tensors), self._chunks)

    async def _all_hold(self, version: int) -> None:
        push = self._push
        self._held += 1
        if self._held == len(self._clients):
            tell(held=version)
        await push.wait()


async def commands() -> AsyncIterator[list[str]]:
    """The words of each line of the standard input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode().split()


async def serve(given: argparse.Namespace) -> None:
    lane = Lane(given.lane)
    identities = [Identity.load(home) for home in sorted(given.homes.iterdir())][
        given.first : given.first + given.count
    ]
    clients = [Client(identity, lane, port=given.port) for identity in identities]
    pulse = Pulse(clients, every_s=1.0)
    crew = Crew(clients, values=given.params)
    running = asyncio.create_task(pulse.run() if lane is Lane.CONTROL else crew.connect())
    async for words in commands():
        if running.done() and running.exception() is not None:
            break
        match words:
            case ["tell"]:
                pulse.tell()
            case ["begin", job]:
                await running
                running = asyncio.create_task(crew.run(job))
            case ["push"]:
                crew.push()
    running.cancel()
    outcome = (await asyncio.gather(running, return_exceptions=True))[0]
    await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)
    if isinstance(outcome, Exception):
        raise outcome


def main() -> None:
    parser = argparse.ArgumentParser(description="Light workers. Started by fan_in.")
    parser.add_argument("--lane", choices=[str(lane) for lane in Lane], required=True)
    parser.add_argument("--homes", type=Path, required=True, help="identities, one folder a node")
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--params", type=int, required=True)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
