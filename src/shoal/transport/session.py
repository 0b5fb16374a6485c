"""One stream of frames, whichever side opened it: reads messages under limits, writes them from a bounded queue."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import numpy as np

from shoal.errors import PeerViolation
from shoal.transport.base import BROKE_CONTRACT, Lane, Listener
from shoal.transport.identity import Peer
from shoal.wire.frames import (
    Assembly,
    chunk_frames,
    envelope_frame,
    joined,
    payload_bytes,
    read_chunk_frame,
    read_opening,
)
from shoal.wire.messages import NO_TENSORS, Message

#: Messages that may wait for a peer to read them.
OUTBOX_MAX = 256

Read = Callable[[], Awaitable[Any]]
Write = Callable[[bytes], Awaitable[Any]]


class ChunkCache:
    """The frames of the tensors sent last. A new model goes to every worker: it is cut into frames once."""

    def __init__(self) -> None:
        self._key: tuple[int, ...] = ()
        self._arrays: tuple[Any, ...] = ()
        self._frames: list[bytes] = []

    def frames(self, message: Message) -> Iterable[bytes]:
        tensors = getattr(message, "tensors", NO_TENSORS)
        if not tensors:
            return []
        arrays = tuple(tensors.values())
        if any(array.flags.writeable for array in arrays):
            return chunk_frames(tensors)
        key = tuple(id(array) for array in arrays)
        if key != self._key:
            # The arrays are kept with their frames, so that an id is not reused while it is a key.
            self._key, self._arrays, self._frames = key, arrays, list(chunk_frames(tensors))
        return self._frames


class Uploads:
    """The memory for tensors that are arriving: bounded over all sessions of a node, and used again.

    It belongs to all of them together. A buffer kept by each would be a model for every worker that ever sent one.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._used_bytes = 0
        self._waiters: list[asyncio.Future[None]] = []
        #: Of one size, and no more than were in use at once: so within the budget too.
        self._spares: list[np.ndarray] = []

    async def take(self, size_bytes: int) -> None:
        """Wait for room. One message larger than the whole budget may still come alone."""
        while self._used_bytes and self._used_bytes + size_bytes > self._budget_bytes:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        self._used_bytes += size_bytes

    def buffer(self, size_bytes: int) -> np.ndarray:
        """Memory for tensors that have room: what another message left, if it fits."""
        if self._spares and self._spares[-1].size != size_bytes:
            self._spares.clear()
        return self._spares.pop() if self._spares else np.empty(size_bytes, dtype=np.uint8)

    def keep(self, buffer: np.ndarray) -> None:
        """Nobody reads this buffer any more."""
        if self._spares and self._spares[-1].size != buffer.size:
            self._spares.clear()
        self._spares.append(buffer)

    def give(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Turns:
    """Models leave one after the other rather than all at once, so that the first worker to have one begins early.

    Sent side by side, N models all arrive at the end of the stretch in which the first could have been trained on
    and answered. A turn ends when the message is out or after a moment: a slow peer never holds up a fast one.
    """

    def __init__(self, *, at_once: int = 1, hold_s: float = 0.02) -> None:
        self._free = at_once
        self._hold_s = hold_s
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> asyncio.TimerHandle:
        """Wait for a turn; what is returned is given back with ``give``."""
        loop = asyncio.get_running_loop()
        if self._free:
            self._free -= 1
        else:
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._pass_on()
                raise
        return loop.call_later(self._hold_s, self._pass_on)

    def give(self, turn: asyncio.TimerHandle) -> None:
        """The message is out. A turn that was over before has been passed on already."""
        if turn.when() > asyncio.get_running_loop().time():
            turn.cancel()
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free += 1


class FrameSession:
    """A session over any pair of read and write."""

    def __init__(
        self,
        *,
        peer: Peer,
        lane: Lane,
        read: Read,
        write: Write,
        end: object,
        chunks: ChunkCache,
        uploads: Uploads,
        turns: Turns,
    ) -> None:
        self._peer = peer
        self._lane = lane
        self._read = read
        self._write = write
        #: What ``read`` gives when the stream is over.
        self._eof = end
        self._chunks = chunks
        self._uploads = uploads
        self._turns = turns
        self._outbox: asyncio.Queue[Message] = asyncio.Queue(OUTBOX_MAX)
        self._unsent = 0
        self._sent = asyncio.Event()
        self._sent.set()
        self._closing: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.bytes_read = 0
        self.bytes_written = 0

    @property
    def peer(self) -> Peer:
        return self._peer

    @property
    def lane(self) -> Lane:
        return self._lane

    def post(self, message: Message) -> None:
        try:
            self._outbox.put_nowait(message)
        except asyncio.QueueFull:
            self.close(f"does not read: {OUTBOX_MAX} messages wait for it")
            return
        self._unsent += 1
        self._sent.clear()

    async def flush(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._sent.wait()

    def close(self, reason: str) -> None:
        if not self._closing.done():
            self._closing.set_result(reason)

    async def run(self, listener: Listener) -> str:
        """Serve the stream until it ends; returns why."""
        reading = asyncio.create_task(self._read_all(listener))
        writing = asyncio.create_task(self._write_all())
        listener.opened(self)
        reason = "the connection was cut"
        try:
            ends: set[asyncio.Future[Any]] = {reading, writing, self._closing}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            reason = self._why(reading, writing)
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            self._sent.set()
            listener.closed(self, reason)
        return reason

    def _why(self, *tasks: asyncio.Task[None]) -> str:
        if self._closing.done():
            return self._closing.result()
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                if isinstance(error, PeerViolation):
                    return f"{BROKE_CONTRACT}: {error.reason}"
                return f"the connection broke ({_brief(error)})"
        return "the connection was closed"

    async def _read_all(self, listener: Listener) -> None:
        while True:
            frame = await self._read()
            if frame is self._eof or frame is None:
                return
            opening = read_opening(frame)
            message = opening.message
            if not opening.infos:
                self.bytes_read += len(frame)
                await listener.received(self, message, len(frame))
                continue
            size_bytes = payload_bytes(opening.infos)
            limit = listener.payload_limit(self, message)
            if size_bytes > limit:
                raise PeerViolation(f"{type(message).__name__} of {size_bytes} bytes, at most {limit} are taken")
            await self._uploads.take(size_bytes)
            try:
                given = listener.payload_buffer(self, message, size_bytes)
                buffer = self._uploads.buffer(size_bytes) if given is None else np.frombuffer(given, dtype=np.uint8)
                assembly = Assembly(message, opening.infos, buffer=buffer)
                wire_bytes = len(frame)
                if opening.chunk is not None:
                    assembly.feed(opening.chunk)
                # A frame is let go before the next is waited for: in each of many uploads, it is a chunk held idly.
                del frame, opening, message
                while not assembly.complete:
                    frame = await self._read()
                    if frame is self._eof or frame is None:
                        return
                    wire_bytes += len(frame)
                    assembly.feed(read_chunk_frame(frame))
                    del frame
                self.bytes_read += wire_bytes
                whole = assembly.message()
                del assembly
                # Awaited until it is merged: the memory counts against the budget until then. Where this is
                # cancelled the buffer may still be read, and is not kept.
                await listener.received(self, whole, wire_bytes)
                del whole
                if given is None:
                    self._uploads.keep(buffer)
                del given, buffer
            finally:
                self._uploads.give(size_bytes)

    async def _write_all(self) -> None:
        while True:
            message = await self._outbox.get()
            if getattr(message, "tensors", NO_TENSORS):
                turn = await self._turns.take()
                try:
                    await self._write_message(message)
                finally:
                    self._turns.give(turn)
            else:
                await self._write_message(message)
            del message
            self._unsent -= 1
            if not self._unsent:
                self._sent.set()

    async def _write_message(self, message: Message) -> None:
        for frame in joined(envelope_frame(message), self._chunks.frames(message)):
            await self._write(frame)
            self.bytes_written += len(frame)


def _brief(error: BaseException) -> str:
    details = getattr(error, "details", None)
    if callable(details) and (text := details()):
        return str(text)[:200]
    return str(error)[:200] or type(error).__name__
