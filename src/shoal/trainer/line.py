"""The agent's end of the line to its trainer: commands out, answers in."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

from shoal.errors import PeerViolation
from shoal.trainer.channel import PREFIX_BYTES, Incoming, Message, encode
from shoal.watchdog import Watchdog
from shoal.wire.limits import TRAINER_MESSAGE_MAX_BYTES


class TrainerLine(asyncio.Protocol):
    """Decodes an answer when the agent asks for it: a process that sends more fills a bounded buffer, and then its own
    socket."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._incoming = Incoming()
        self._has_ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._watchdog = Watchdog(self._on_overdue)

    def send(self, command: Message) -> None:
        # A dead reader shows as a missing answer, with a better reason than a broken pipe.
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.write(encode(command))

    async def get(self, due_s: float) -> Message | None:
        """Return the next answer, or None if no more will come. Raises TimeoutError at ``due_s``, a time of the event
        loop."""
        while (message := self._next()) is None and not self._has_ended:
            if self._loop.time() >= due_s:
                # Checked here too: a process that keeps sending would wake us before each deadline.
                raise TimeoutError
            self._waiter = self._loop.create_future()
            self._watchdog.expect_by(due_s)
            try:
                await self._waiter
            finally:
                self._waiter = None
                self._watchdog.rest()
        return message

    def end(self) -> None:
        """Note that the process will send no more answers. Those that it sent before can still be read."""
        self._has_ended = True
        self._wake()

    def close(self) -> None:
        self._watchdog.stop()
        if self._transport is not None:
            self._transport.abort()
        self.end()

    # What the event loop calls ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._incoming.feed(data)
        if len(self._incoming) > PREFIX_BYTES + TRAINER_MESSAGE_MAX_BYTES and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self.end()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.end()

    def _next(self) -> Message | None:
        try:
            message = self._incoming.next()
        except PeerViolation:
            # There is no way to find where the next answer begins.
            self._incoming, self._has_ended = Incoming(), True
            return None
        if message is not None and self._transport is not None and not self._transport.is_reading():
            self._transport.resume_reading()
        return message

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _on_overdue(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(TimeoutError())
