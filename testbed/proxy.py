"""A bad line for TCP: a proxy that delivers late, stalls and hangs up. Knows bytes, not what they mean.

    python -m testbed.proxy --listen 127.0.0.1:7070 --to 198.18.0.2:7070 --delay-ms 40 --jitter-ms 10 --loss 0.01

It ends one TCP connection and begins another, so packets cannot be lost in it. *Loss* is modelled by what it does to
those who talk: for each segment of ``SEGMENT_BYTES`` there is a chance, and if any of a piece is lost, that piece and
all behind it in its direction come one retransmission timeout (``rto_ms``) late. Real TCP often does better, for it
sees a gap after one round trip when more segments follow, and sometimes worse, for it also sends less from then on.

The delay is one-way and the same in both directions. Opening a connection is not delayed, only what is sent over it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from shoal.runtime.die_with_parent import end_with_starter
from shoal.sim.rng import Rng, Stream
from testbed.commands import NoNamespaces

SEGMENT_BYTES = 1_448
_PIECE_BYTES = 1 << 16
#: What may be under way in one direction, each of up to 64 kB. A line that is full makes its sender wait.
_PIECES_MAX = 512
_CONNECT_TIMEOUT_S = 10.0
#: When it is due, and what it is; nothing at the end.
_Pieces: TypeAlias = "asyncio.Queue[tuple[float, bytes]]"
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """How bad it is."""

    delay_ms: float = 0.0
    #: Each piece has up to this much more. None overtakes another.
    jitter_ms: float = 0.0
    #: The chance of a segment to be lost.
    loss: float = 0.0
    #: Linux waits no less than 200 ms before it sends again.
    rto_ms: float = 200.0
    #: A connection breaks after this time on average; 0: never.
    breaks_after_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.delay_ms, self.jitter_ms, self.rto_ms, self.breaks_after_s) < 0 or not 0 <= self.loss < 1:
            raise NoNamespaces(f"a line has times of at least 0 and a loss of 0 to 1 (not included), not {self}")


def lateness_s(line: Line, size_bytes: int, chance: Stream) -> tuple[float, float]:
    """How much later a piece of this size comes by its way, and by having been lost."""
    way_s = (line.delay_ms + line.jitter_ms * chance.random()) / 1000
    segments = -(-size_bytes // SEGMENT_BYTES)
    is_lost = chance.happens(1 - (1 - line.loss) ** segments)
    return way_s, line.rto_ms / 1000 if is_lost else 0.0


class Proxy:
    """``async with Proxy(...) as proxy``: listens at ``proxy.port`` and passes on to ``to``, in both directions."""

    def __init__(self, line: Line, *, to: tuple[str, int], host: str = "127.0.0.1", port: int = 0) -> None:
        self._line = line
        self._to = to
        self._host = host
        self.port = port
        self._chance = Rng(line.seed)
        self._connections = 0
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, self._host, self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        writers = [writer]
        # A connection that the other end broke, or that we are told to give up, is over on both sides.
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                onward_reader, onward_writer = await asyncio.open_connection(*self._to)
            writers.append(onward_writer)
            await self._pass_on((reader, onward_writer), (onward_reader, writer))
        except (OSError, TimeoutError, asyncio.CancelledError):
            for each in writers:
                _reset(each)
        finally:
            self._serving.discard(task)
            for each in writers:
                each.close()

    async def _pass_on(self, *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._connections += 1
        name = str(self._connections)
        passing = []
        for purpose, (reader, writer) in zip(("there", "back"), ways, strict=True):
            under_way: _Pieces = asyncio.Queue(_PIECES_MAX)
            chance = self._chance.stream(purpose, name)
            passing.append(asyncio.create_task(_take_in(reader, under_way, self._line, chance)))
            passing.append(asyncio.create_task(_give_out(under_way, writer)))
        after_s = self._line.breaks_after_s
        # Breaks without memory: the time to the next one is exponential.
        limit_s = -after_s * math.log1p(-self._chance.stream("breaks", name).random()) if after_s else None
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*passing)
        finally:
            for task in passing:
                task.cancel()
            await asyncio.gather(*passing, return_exceptions=True)


async def _take_in(reader: asyncio.StreamReader, under_way: _Pieces, line: Line, chance: Stream) -> None:
    loop = asyncio.get_running_loop()
    due_s = 0.0
    piece = b"first"
    while piece:
        piece = await reader.read(_PIECE_BYTES)
        way_s, lost_s = lateness_s(line, len(piece), chance)
        # TCP keeps the order: nothing is delivered before what was sent before it.
        due_s = max(due_s, loop.time() + way_s + lost_s)
        await under_way.put((due_s, piece))


async def _give_out(under_way: _Pieces, writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due_s, piece = await under_way.get()
        await asyncio.sleep(due_s - loop.time())
        if not piece:
            # The end is passed on too; what comes back may go on.
            writer.write_eof()
            return
        writer.write(piece)
        await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """As when a line breaks and the other end comes back without knowing of it."""
    peer: socket.socket | None = writer.get_extra_info("socket")
    if peer is not None:
        with contextlib.suppress(OSError):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def _place(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


async def _run(line: Line, listen: tuple[str, int], to: tuple[str, int]) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with Proxy(line, to=to, host=listen[0], port=listen[1]) as proxy:
        print(proxy.port, flush=True)
        await stopping.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="testbed.proxy", description="Pass TCP on, late. Prints its port when up.")
    parser.add_argument("--listen", type=_place, default=("127.0.0.1", 0), metavar="HOST:PORT")
    parser.add_argument("--to", type=_place, required=True, metavar="HOST:PORT")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--jitter-ms", type=float, default=0.0)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--rto-ms", type=float, default=200.0)
    parser.add_argument("--breaks-after-s", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--leash", action="store_true", help="end when standard input closes")
    given = vars(parser.parse_args(arguments))
    if given.pop("leash"):
        end_with_starter()
    listen, to = given.pop("listen"), given.pop("to")
    try:
        asyncio.run(_run(Line(**given), listen, to))
    except NoNamespaces as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
