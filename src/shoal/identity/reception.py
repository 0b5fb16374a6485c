"""The listener for strangers, in its own thread: each sends one message and gets one answer over TLS.

A silent connection uses a file, and one that sends something uses a place. Places are limited in total and per address,
so that a stranger can only block itself. Requests are answered on the loop that started this.

A caller that offers HTTP in its handshake (ALPN) is a proxy or a supervisor that checks this manager's health: this
thread answers it in HTTP. A device offers no protocol, and gets the greeting.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from shoal.errors import PeerViolation, ShoalError
from shoal.identity import health
from shoal.identity.listening import plain_address
from shoal.wire.limits import (
    ENROL_CONNECTIONS_MAX,
    ENROL_HELLO_S,
    ENROL_MESSAGE_MAX_BYTES,
    ENROL_PER_ADDRESS,
    ENROL_TOLD_EVERY_S,
    ENROL_WAITING_MAX,
)

log = logging.getLogger(__name__)

#: After the last byte, how long the other side may take to close its half.
GOODBYE_S = 1.0

#: How long accepting pauses when the system has no file descriptor left.
_ACCEPT_PAUSE_S = 0.1

#: Addresses that one line names, and that are told apart until it is written.
_ADDRESSES_TOLD = 5
_ADDRESSES_COUNTED = 1024

#: An IPv6 host has a network of addresses to itself.
_HOST_PREFIX = 64

#: Called with a message and the address it came from: the answer, and why it is a refusal, if it is one.
Answer = Callable[[bytes, str], Awaitable[tuple[bytes, str]]]


def source_of(address: str) -> str:
    """Whose places a connection takes: its address, or the network of it that one host has."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return str(ip.ipv4_mapped)
        return str(ipaddress.ip_network((ip, _HOST_PREFIX), strict=False))
    return str(ip)


class Misses:
    """Connections that came to nothing, told in one line at a time: the first at once, the others together."""

    def __init__(self, every_s: float = ENROL_TOLD_EVERY_S) -> None:
        self._every_s = every_s
        self._counts: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, address: str, reason: str) -> None:
        if address not in self._counts and len(self._counts) >= _ADDRESSES_COUNTED:
            address = "other addresses"
        self._counts[address] += 1
        self._reasons[address] = reason
        if self._timer is None:
            self.tell()

    def tell(self) -> None:
        """Write down what there is. If there is nothing, the next is told at once again."""
        self._timer = None
        if not self._counts:
            return
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self.tell)
        total, most = self._counts.total(), self._counts.most_common(_ADDRESSES_TOLD)
        told = ", ".join(f"{count} of {address} ({self._reasons[address]})" for address, count in most)
        if len(self._counts) > len(most):
            told += f", and others of {len(self._counts) - len(most)} more addresses"
        if total == 1:
            ((address, _),) = most
            log.warning("%s did not join: %s", address, self._reasons[address])
        else:
            log.warning("%d connections did not join within %g s: %s", total, self._every_s, told)
        self._counts.clear()
        self._reasons.clear()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self.tell()
        if self._timer is not None:
            self._timer.cancel()


@dataclass(eq=False, slots=True)
class _Guest:
    connection: socket.socket
    address: str
    source: str
    task: asyncio.Task[None] | None = None
    #: It has spoken, and has a place.
    is_served: bool = False


class Reception:
    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        *,
        greeting: bytes,
        answer: Answer,
        deadline_s: float,
        trouble: Callable[[], str] = lambda: "",
    ) -> None:
        """``trouble``: why a device that dials now would not be served, or empty; asked in this thread."""
        self._listener = listener
        self._trouble = trouble
        #: The TLS context of the next connection.
        self.context = context
        self._greeting = greeting
        self._answer = answer
        self._deadline_s = deadline_s
        self._home: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._accepting: asyncio.Task[None] | None = None
        #: In the order they came.
        self._guests: dict[_Guest, None] = {}
        self._places: dict[str, asyncio.Semaphore] = {}

    async def start(self) -> None:
        self._home = asyncio.get_running_loop()
        started: asyncio.Future[None] = self._home.create_future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="shoal-enrol", daemon=True)
        self._thread.start()
        await started

    async def stop(self) -> None:
        """Stop accepting, and close every open connection."""
        if self._loop is None or self._thread is None or self._accepting is None:
            return
        # Its loop is closed if it was stopped before.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._accepting.cancel)
        # Not in this loop: who is being answered waits for it.
        await asyncio.to_thread(self._thread.join)

    # In the thread ------------------------------------------------------------------------------------------

    def _run(self, started: asyncio.Future[None]) -> None:
        with suppress(asyncio.CancelledError):
            asyncio.run(self._receive_all(started))

    async def _receive_all(self, started: asyncio.Future[None]) -> None:
        assert self._home is not None
        self._loop = asyncio.get_running_loop()
        self._accepting = asyncio.current_task()
        self._all_places = asyncio.Semaphore(ENROL_CONNECTIONS_MAX)
        self._misses = Misses()
        self._home.call_soon_threadsafe(_settle, started)
        try:
            while True:
                await self._accept()
        finally:
            tasks = [guest.task for guest in self._guests if guest.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._misses.stop()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        # Not loop.sock_accept: if it is cancelled in the turn in which a connection arrives, it loses the connection
        # and logs an error.
        await _readable(self._listener)
        try:
            connection, peer = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("cannot accept a device that wants to join: %s", error)
            await asyncio.sleep(_ACCEPT_PAUSE_S)
            return
        if len(self._guests) >= ENROL_WAITING_MAX:
            self._make_room()
        address = plain_address(str(peer[0]))
        guest = _Guest(connection, address, source_of(address))
        self._guests[guest] = None
        guest.task = loop.create_task(self._receive(guest))
        guest.task.add_done_callback(functools.partial(self._gone, guest))
        # Let the new task begin before the next connection is accepted.
        await asyncio.sleep(0)

    def _make_room(self) -> None:
        """Close the connection that has waited longest of the address with the most connections."""
        by_source = Counter(guest.source for guest in self._guests)
        waiting = [guest for guest in self._guests if not guest.is_served and guest.task is not None]
        if not waiting:
            return
        crowded = max((guest.source for guest in waiting), key=lambda source: (by_source[source], source))
        first = next(guest for guest in waiting if guest.source == crowded)
        assert first.task is not None
        first.task.cancel()
        self._misses.note(first.address, f"made room: {by_source[crowded]} connections of its address were open")

    def _gone(self, guest: _Guest, task: asyncio.Task[None]) -> None:
        # Here and not at the end of _receive, which never runs if it is cancelled before its first step.
        self._guests.pop(guest, None)
        guest.connection.close()
        if not any(other.source == guest.source for other in self._guests):
            self._places.pop(guest.source, None)

    async def _receive(self, guest: _Guest) -> None:
        try:
            await _first_byte(guest.connection, min(ENROL_HELLO_S, self._deadline_s))
            of_address = self._places.setdefault(guest.source, asyncio.Semaphore(ENROL_PER_ADDRESS))
            async with asyncio.timeout(self._deadline_s):
                await of_address.acquire()
            try:
                async with asyncio.timeout(self._deadline_s):
                    await self._all_places.acquire()
                try:
                    guest.is_served = True
                    async with asyncio.timeout(self._deadline_s):
                        await self._serve(guest)
                finally:
                    self._all_places.release()
            finally:
                of_address.release()
        except TimeoutError:
            self._misses.note(guest.address, f"took more than {self._deadline_s:g} s: cut off")
        except PeerViolation as error:
            self._misses.note(guest.address, error.reason)
        except (OSError, EOFError, ShoalError) as error:
            self._misses.note(guest.address, f"the connection closed before it had asked ({_brief(error)})")
        except Exception:
            # One stranger's odd bytes must never end the service; a bug must still be seen.
            log.exception("serving %s failed", guest.address)

    async def _serve(self, guest: _Guest) -> None:
        assert self._home is not None
        try:
            reader, writer = await _accept_tls(guest.connection, self.context, handshake_s=self._deadline_s)
        except OSError as error:
            raise PeerViolation(f"TLS failed ({_brief(error)})") from error
        try:
            if writer.get_extra_info("ssl_object").selected_alpn_protocol() == health.ALPN:
                await self._tell_health(reader, writer)
                return
            try:
                await send(writer, self._greeting)
                raw = await receive(reader, max_bytes=ENROL_MESSAGE_MAX_BYTES)
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                if getattr(error, "partial", b""):
                    raise
                # A proxy looks whether this manager is well (docs/operations/haproxy.cfg): nobody wanted to join.
                return
            asked = asyncio.run_coroutine_threadsafe(_as_coroutine(self._answer(raw, guest.address)), self._home)
            reply, refusal = await asyncio.wrap_future(asked)
            if refusal:
                self._misses.note(guest.address, f"refused: {refusal}")
            await send(writer, reply)
            await close(writer)
        finally:
            drop(writer)

    async def _tell_health(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise PeerViolation("the HTTP request has no end within the limit") from None
        writer.write(health.answer(asked, self._trouble()))
        await writer.drain()
        await close(writer)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _as_coroutine(answer: Awaitable[tuple[bytes, str]]) -> tuple[bytes, str]:
    return await answer


async def _readable(connection: socket.socket) -> None:
    """Wait until a socket has something to read or accept."""
    loop = asyncio.get_running_loop()
    is_so: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, _settle, is_so)
    try:
        await is_so
    finally:
        loop.remove_reader(connection)


async def _first_byte(connection: socket.socket, within_s: float) -> None:
    """Wait for the first byte. A device sends first, and at once."""
    connection.setblocking(False)
    try:
        async with asyncio.timeout(within_s):
            await _readable(connection)
        if not connection.recv(1, socket.MSG_PEEK):
            raise PeerViolation("the connection was closed before TLS")
    except TimeoutError:
        raise PeerViolation(f"sent nothing for {within_s:g} s: disconnected before TLS") from None
    except OSError as error:
        raise PeerViolation(f"the connection was closed before TLS ({_brief(error)})") from error


def _brief(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
    return str(reason)[:200] or type(error).__name__


async def _accept_tls(
    connection: socket.socket, context: ssl.SSLContext, *, handshake_s: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=ENROL_MESSAGE_MAX_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol,
        connection,
        ssl=context,
        ssl_handshake_timeout=handshake_s,
        ssl_shutdown_timeout=GOODBYE_S,
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


# Bytes, for both sides --------------------------------------------------------------------------------------


async def send(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(len(content).to_bytes(4, "big") + content)
    await writer.drain()


async def receive(reader: asyncio.StreamReader, *, max_bytes: int) -> bytes:
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > max_bytes:
        raise PeerViolation(f"a message of {size} bytes is over the limit of {max_bytes}")
    return await reader.readexactly(size)


def drop(writer: asyncio.StreamWriter) -> None:
    """End a connection at once, whatever state it is in."""
    # In Debian 12's Python (3.11.2) a TLS connection that was closed already has nothing to abort, and raises.
    with suppress(AttributeError):
        writer.transport.abort()


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):  # the conversation is over; how the other side hangs up does not matter
        await writer.wait_closed()
