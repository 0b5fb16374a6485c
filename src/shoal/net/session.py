"""One stream of frames, whichever side opened it: reads messages under limits, writes them from a bounded queue."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container
from typing import Any

from shoal.errors import PeerViolation
from shoal.identity.names import RemoteIdentity
from shoal.net.access import ShutOut
from shoal.net.base import BROKE_CONTRACT, Listener
from shoal.net.conduct import TurnedAway
from shoal.net.shared_budget import SharedBudget
from shoal.watchdog import Watchdog
from shoal.wire.frames import (
    Assembly,
    Opening,
    envelope_frame,
    payload_bytes,
    read_chunk_frame,
    read_opening,
    small_frame,
)
from shoal.wire.limits import PAYLOAD_GRACE_S, SMALL_BYTES, UNAWAITED_CHUNK_COST
from shoal.wire.messages import Lane, Message, UpdateRefused

log = logging.getLogger("shoal")

#: Messages that may wait for a peer to read them.
OUTBOX_MAX = 256

#: When a session ends, how long the frame on its way out may still take.
LAST_FRAME_S = 2.0

#: A message that waited for memory longer than this was held up by us.
HELD_UP_S = 0.5

Read = Callable[[], Awaitable[Any]]
Write = Callable[[bytes], Awaitable[Any]]


class FrameSession:
    """A session over any pair of read and write."""

    def __init__(
        self,
        *,
        peer: RemoteIdentity,
        lane: Lane,
        read: Read,
        write: Write,
        end: object,
        commons: SharedBudget,
        hears: Container[str] | None = None,
    ) -> None:
        """``hears`` names the messages that may come this way; others are refused before they are built."""
        self._peer = peer
        self._lane = lane
        self._read = read
        self._write = write
        #: What ``read`` gives when the stream is over.
        self._eof = end
        self._commons = commons
        self._chunks = commons.chunks
        self._turns = commons.turns
        self._conduct = commons.conduct
        self._hears = hears
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[Message] = deque()
        #: The writer waits for the next message.
        self._posted: asyncio.Future[None] | None = None
        self._closing: asyncio.Future[str] = self._loop.create_future()
        #: The message whose next chunk is waited for, and the guard of that wait.
        self._awaited: _Arrival | None = None
        self._guard = Watchdog(self._on_overdue)
        self._is_over = False
        self._is_writing = False
        #: Job, term and lease of the last message that waited for our memory: if it is late now, that is our doing.
        self._held_up: tuple[object, ...] = ()

    @property
    def peer(self) -> RemoteIdentity:
        return self._peer

    @property
    def lane(self) -> Lane:
        return self._lane

    @property
    def is_stuck(self) -> bool:
        """Whether it ended in the middle of a frame that the peer did not take: nothing more can be said to it."""
        return self._is_over and self._is_writing

    def post(self, message: Message) -> None:
        if len(self._outbox) < OUTBOX_MAX:
            self._outbox.append(message)
            if self._posted is not None and not self._posted.done():
                self._posted.set_result(None)
        else:
            self.close(f"does not read: {OUTBOX_MAX} messages wait for it")
        if isinstance(message, UpdateRefused) and _of_lease(message) != self._held_up:
            # An honest peer's update is rarely refused, so each one counts, unless it was late because of our memory.
            self._offended(message.reason)

    def _offended(self, offence: str) -> None:
        verdict = self._conduct.offend(self._peer.node, offence, time.monotonic())
        if verdict:
            self.close(f"{BROKE_CONTRACT}: {verdict}")

    def close(self, reason: str) -> None:
        if not self._closing.done():
            self._closing.set_result(reason)

    async def run(self, listener: Listener) -> str:
        """Serve the stream until it ends; returns why."""
        reading = asyncio.create_task(self._read_all(listener))
        writing = asyncio.create_task(self._write_all())
        listener.opened(self)
        reason = "connection closed"
        try:
            ends: set[asyncio.Future[Any]] = {reading, writing, self._closing}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            reason = self._why(reading, writing)
        finally:
            self._is_over = True
            self._guard.stop()
            reading.cancel()
            try:
                if self._is_writing:
                    # Cut in the middle of a frame, gRPC cannot say that the stream is over, and the peer waits for it.
                    await asyncio.wait({writing}, timeout=LAST_FRAME_S)
            finally:
                # Also where this very wait is cut short: a session that nobody heard the end of never ended.
                writing.cancel()
                await asyncio.gather(reading, writing, return_exceptions=True)
                listener.closed(self, reason)
        return reason

    def _why(self, *tasks: asyncio.Task[None]) -> str:
        if self._closing.done():
            return self._closing.result()
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                if isinstance(error, TurnedAway | ShutOut):
                    return error.reason
                if isinstance(error, PeerViolation):
                    return self._broke(error.reason)
                return f"the connection broke ({_brief(error)})"
        return "connection closed"

    def _broke(self, offence: str) -> str:
        """Why the session ends after a breach of the contract, which is counted here."""
        verdict = self._conduct.offend(self._peer.node, offence, time.monotonic())
        return f"{BROKE_CONTRACT}: {offence}" + (f"; {verdict}" if verdict else "")

    async def _read_all(self, listener: Listener) -> None:
        while True:
            frame = await self._read()
            if frame is self._eof or frame is None:
                return
            opening = read_opening(frame, hears=self._hears)
            message = opening.message
            cost = message.rule.cost
            wait_s = self._conduct.hear(self._peer.node, self._lane, time.monotonic(), cost=cost)
            if wait_s:
                await asyncio.sleep(wait_s)
            if not opening.infos:
                await self._deliver(listener, message, len(frame))
                continue
            size_bytes = payload_bytes(opening.infos)
            limit = listener.payload_limit(self, message)
            if size_bytes > limit:
                kind = type(message).__name__
                raise PeerViolation(f"{kind} has {size_bytes} bytes of tensors; the maximum is {limit}")
            if size_bytes <= SMALL_BYTES and opening.chunk is not None:
                whole = opening.whole() if listener.awaits(self, message) else message
                await self._deliver(listener, whole, len(frame))
                continue
            arrival = _Arrival(opening, len(frame), least_bytes_per_s=self._commons.least_bytes_per_s)
            # A frame is let go before the next is waited for: in each of many uploads, it is a chunk held idly.
            del frame, opening, message
            if not await self._take_in(listener, arrival):
                return

    async def _take_in(self, listener: Listener, arrival: _Arrival) -> bool:
        """Read the tensors of a message and deliver it with them, or without them if nobody awaits them any more.
        Return False if the stream ended."""
        # Imported here because a device without a job holds sessions without numpy.
        import numpy as np

        message, size_bytes, peer = arrival.message, arrival.size_bytes, self._peer.node
        if not listener.awaits(self, message):
            return await self._read_past(listener, arrival)
        room = self._commons.room_for(message)
        asked_s = time.monotonic()
        await room.take(size_bytes, peer=peer)
        if time.monotonic() - asked_s > HELD_UP_S:
            self._held_up = _of_lease(message)
        arrival.begin()
        try:
            given = listener.payload_buffer(self, message, size_bytes)
            buffer = room.buffer(size_bytes) if given is None else np.frombuffer(given, dtype=np.uint8)
            assembly = Assembly(message, arrival.infos, buffer=buffer)
            while listener.awaits(self, message):
                if (chunk := arrival.take()) is not None:
                    assembly.feed(chunk)
                    del chunk
                if not assembly.complete:
                    if not await self._next_chunk(arrival):
                        return False
                    continue
                whole = assembly.message()
                del assembly
                # Awaited until it is merged: the memory counts against the budget until then. Where this is
                # cancelled the buffer may still be read, and is not kept.
                await self._deliver(listener, whole, arrival.wire_bytes)
                del whole
                if given is None:
                    room.keep(buffer)
                return True
            del assembly, buffer, given
        finally:
            room.give(size_bytes, peer=peer)
        return await self._read_past(listener, arrival)

    async def _read_past(self, listener: Listener, arrival: _Arrival) -> bool:
        """Read and drop tensors that nobody awaits, without memory for them. Return False if the stream ended."""
        arrival.begin()
        arrival.take()
        while not arrival.is_complete:
            wait_s = self._conduct.hear(self._peer.node, self._lane, time.monotonic(), cost=UNAWAITED_CHUNK_COST)
            if wait_s:
                await asyncio.sleep(wait_s)
                arrival.put_off(wait_s)
            if not await self._next_chunk(arrival):
                return False
            arrival.take()
        await self._deliver(listener, arrival.message, arrival.wire_bytes)
        return True

    async def _next_chunk(self, arrival: _Arrival) -> bool:
        """Wait for the next chunk. Return False if the stream ended. The wait is bounded, because a peer that announces
        tensors and does not send them holds memory that others wait for."""
        self._awaited = arrival
        self._guard.expect_by(arrival.due_s)
        frame = await self._read()
        self._guard.rest()
        if frame is self._eof or frame is None:
            return False
        arrival.came(read_chunk_frame(frame), len(frame))
        return True

    def _on_overdue(self) -> None:
        if self._awaited is not None and not self._closing.done():
            self.close(self._broke(self._awaited.behind()))

    async def _deliver(self, listener: Listener, message: Message, size_bytes: int) -> None:
        try:
            await listener.received(self, message, size_bytes)
        except (PeerViolation, asyncio.CancelledError):
            raise
        except Exception:
            # The session ends, as for a broken connection; but this one is our own doing and must be seen.
            log.exception("%s of %s could not be handled", type(message).__name__, self._peer.node)
            raise

    async def _write_all(self) -> None:
        while not self._is_over:
            while not self._outbox:
                self._posted = self._loop.create_future()
                await self._posted
            message = self._outbox.popleft()
            frame = small_frame(message)
            if frame is not None:
                self._is_writing = True
                await self._write(frame)
                self._is_writing = False
            else:
                turn = await self._turns.take()
                try:
                    await self._write_message(message)
                finally:
                    self._turns.give(turn)
            del message, frame

    async def _write_message(self, message: Message) -> None:
        for frame in self._chunks.frames(message, envelope_frame(message)):
            if self._is_over:
                return
            await self._write_frame(frame)

    async def _write_frame(self, frame: bytes) -> None:
        self._is_writing = True
        await self._write(frame)
        self._is_writing = False


class _Arrival:
    """The tensors of one message on their way here. They may take a grace, and the time of their bytes at a least rate.

    It is asked with every chunk, so that a peer that stops is not waited for until the whole message is due.
    """

    def __init__(self, opening: Opening, wire_bytes: int, *, least_bytes_per_s: float) -> None:
        self.message = opening.message
        self.infos = opening.infos
        self.size_bytes = payload_bytes(opening.infos)
        self.wire_bytes = wire_bytes
        self._least_bytes_per_s = least_bytes_per_s
        self._chunk = opening.chunk
        self._came_bytes = len(opening.chunk) if opening.chunk is not None else 0
        self._began_s = math.inf

    def begin(self) -> None:
        """From now on the sender is waited for."""
        self._began_s = min(self._began_s, asyncio.get_running_loop().time())

    def put_off(self, wait_s: float) -> None:
        """We did not read for so long: that is not the sender's time."""
        self._began_s += wait_s

    def came(self, chunk: memoryview, wire_bytes: int) -> None:
        self._chunk = chunk
        self._came_bytes += len(chunk)
        self.wire_bytes += wire_bytes

    def take(self) -> memoryview | None:
        """The chunk that came last. The session lets go of it."""
        chunk, self._chunk = self._chunk, None
        return chunk

    @property
    def is_complete(self) -> bool:
        if self._came_bytes > self.size_bytes:
            raise PeerViolation(f"{self._came_bytes} bytes of tensors were sent, but {self.size_bytes} were announced")
        return self._came_bytes == self.size_bytes

    @property
    def due_s(self) -> float:
        return self._began_s + PAYLOAD_GRACE_S + self._came_bytes / self._least_bytes_per_s

    def behind(self) -> str:
        took_s = asyncio.get_running_loop().time() - self._began_s
        return (
            f"sent {self._came_bytes} of {self.size_bytes} bytes in {took_s:.1f} s: at least "
            f"{self._least_bytes_per_s:g} bytes a second are expected after {PAYLOAD_GRACE_S:g} s"
        )


def _of_lease(message: Message) -> tuple[object, ...]:
    """Return the fields that identify the lease of a refusal."""
    return tuple(getattr(message, name, None) for name in ("job", "term", "lease"))


def _brief(error: BaseException) -> str:
    details = getattr(error, "details", None)
    if callable(details) and (text := details()):
        return str(text)[:200]
    return str(error)[:200] or type(error).__name__
