"""Products computed by pools: a client in a thread of its own, with a line to each broker. ``multiply`` waits.

A pool is the folder of an operator's identity (or the home that holds one), or a line of `shoal token create --role
operator`. The program that asks needs no asyncio, and knows no executor.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import itertools
import logging
import os
import secrets
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from shoal.errors import Misuse, PeerViolation, Refused, ShoalError
from shoal.identity.enrolment import Enrolled, enrol_blocking
from shoal.identity.identity import IDENTITY_FILE
from shoal.identity.join_code import JoinCode
from shoal.net.base import SHUT_OUT, Session
from shoal.net.grpc import GrpcLink
from shoal.net.renewal import kept_fresh
from shoal.offload.products import Advert, Array, Report, Secret, check
from shoal.offload.roles.client import WAIT_S, Client
from shoal.offload.roles.product import TILE_OPERATIONS, Policy, Privacy, Verify
from shoal.offload.runtime.multiplier import Multiplier, threads_told
from shoal.roles.actions import Action, Deliver, Multiply, Record
from shoal.roles.events import (
    Connected,
    Disconnected,
    Event,
    ProductUnwanted,
    ProductWanted,
    Received,
)
from shoal.roles.node.dial_state import BACKOFF_S
from shoal.runtime.dialer import PersistentLink
from shoal.runtime.paths import Paths, default_home
from shoal.runtime.role_host import RoleHost
from shoal.wire.messages import Message, TileResult

log = logging.getLogger("shoal")

#: How long a pool may take to be reached at first, before a program hears its speed.
FIRST_S = 10.0

#: Results larger than this are checked in a thread, while the next one comes in.
CHECKED_BESIDE_BYTES = 64 << 10

CONNECT_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 10.0

#: A product that measures the link: 1 MB out, and almost no work.
_PROBE = (256, 1024, 8)
#: The first one also brings the right side.
PROBES = 3


@dataclass(frozen=True, slots=True)
class _Waiting:
    product: int
    done: concurrent.futures.Future[Array]


class Borrowed:
    """``offload.products.Products``, by pools. Close it, or use it in a ``with``, to let its threads and lines go."""

    def __init__(
        self,
        pools: str | Path | Sequence[str | Path],
        *,
        privacy: Privacy = "none",
        verify: Verify = "freivalds",
        wait_s: float = WAIT_S,
        tile_operations: int = TILE_OPERATIONS,
        purpose: str | None = None,
    ) -> None:
        """``wait_s``: how long tiles wait for a lost pool before they are computed here."""
        policy = Policy(privacy=privacy, verify=verify, tile_operations=tile_operations)
        folders = [_folder_of(pool) for pool in ([pools] if isinstance(pools, str | Path) else pools)]
        self._folders = _named(folders, must_differ=privacy == "mask")
        self._client = Client(
            pools=tuple(self._folders), policy=policy, secret=secrets.token_bytes(32), wait_s=wait_s, purpose=purpose
        )
        self._asking = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: _Waiting | None = None
        self._seconds = 0.0
        self._began_s = time.monotonic()
        self._is_over = False
        self._loop = asyncio.new_event_loop()
        self._checking = ThreadPoolExecutor(1, thread_name_prefix="shoal-check")
        self._multiplier = Multiplier(threads=threads_told(otherwise=os.cpu_count() or 1))
        self._host = RoleHost("client", self._perform, send=self._send, executor=self._checking, is_heavy=_is_heavy)
        self._lines: dict[str, _PoolLine] = {}
        self._computing: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="shoal-borrowed", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # Called by the program --------------------------------------------------------------------------------

    def multiply(self, left: Array, right: Array, *, secret: Secret, name: str) -> Array:
        check(left, right)
        with self._asking:
            if self._is_over:
                raise Misuse("these products were closed: make new ones")
            began_s = time.monotonic()
            number = next(self._numbers)
            done: concurrent.futures.Future[Array] = concurrent.futures.Future()
            self._waiting = _Waiting(number, done)
            self._post(ProductWanted(product=number, left=left, right=right, hidden=secret, name=name))
            try:
                return done.result()
            except BaseException:
                # Also Ctrl-C: the pools hear that nobody waits for the product.
                self._post(ProductUnwanted(product=number))
                raise
            finally:
                self._waiting = None
                self._seconds += time.monotonic() - began_s

    @property
    def report(self) -> Report:
        return dataclasses.replace(self._client.report, seconds=self._seconds)

    @property
    def advert(self) -> Advert | None:
        """The measured speed of the pools; at first it waits a moment for pools that are not connected yet."""
        ends_s = self._began_s + FIRST_S
        while (told := self._client.advert) is None or told.pools < len(self._folders):
            if time.monotonic() > ends_s:
                break
            time.sleep(0.05)
        if told is not None and not told.bytes_per_s:
            rows, inner, columns = _PROBE
            # The numbers are nobody's data.
            may_be_seen: Secret = "none"
            left, right = np.ones((rows, inner), dtype=np.float32), np.ones((inner, columns), dtype=np.float32)
            for _ in range(PROBES):
                self.multiply(left, right, secret=may_be_seen, name="a look at the link")
            told = self._client.advert
        return told

    @property
    def network(self) -> str:
        """``1-2-3``: a client, its brokers, the executors of each."""
        return self._client.network

    def close(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        atexit.unregister(self.close)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        waiting = self._waiting
        if waiting is not None and not waiting.done.done():
            waiting.done.set_exception(ShoalError("the products were closed while one was computed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post(self, event: Event) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._host.post, event)

    # In the thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._begin())
            self._loop.run_forever()
            self._loop.run_until_complete(self._end())
        finally:
            self._loop.close()

    async def _begin(self) -> None:
        self._host.start(self._client)
        for name, folder in self._folders.items():
            line = self._lines[name] = _PoolLine(name, folder, self._host, self._client)
            line.start()

    async def _end(self) -> None:
        for line in self._lines.values():
            await line.stop()
        await self._host.stop()
        for task in self._computing:
            task.cancel()
        await asyncio.to_thread(self._multiplier.stop)
        await asyncio.gather(*self._computing, return_exceptions=True)
        self._checking.shutdown(wait=True)
        # Tasks that gRPC leaves behind for calls that were cut off.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    def _send(self, to: str, message: Message) -> None:
        self._lines[to].post(message)

    async def _perform(self, host: RoleHost, action: Action) -> None:
        match action:
            case Multiply():
                task = asyncio.create_task(self._compute(action))
                self._computing.add(task)
                task.add_done_callback(self._computing.discard)
            case Deliver():
                waiting = self._waiting
                if waiting is None or waiting.product != action.product or waiting.done.done():
                    return
                if action.result is None:
                    waiting.done.set_exception(ShoalError(action.reason))
                else:
                    waiting.done.set_result(action.result)
            case Record():
                log.warning("%s: %s", action.kind, action.reason)
            case _:
                raise Misuse(f"a client does not ask for {type(action).__name__}")

    async def _compute(self, ask: Multiply) -> None:
        self._host.post(await self._multiplier.multiply(ask))


class _PoolLine(PersistentLink):
    """The work stream to one broker: dialled, held, dialled again."""

    def __init__(self, name: str, folder: Path, host: RoleHost, client: Client) -> None:
        super().__init__(name)
        self._folder = folder
        self._host = host
        self._client = client
        #: Whether the attempt under way came to a session, and how many attempts before it did not.
        self._was_open = False
        self._failures = 0
        self._holding: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._holding = asyncio.create_task(self.hold(), name=f"line to {self.peer}")

    async def stop(self) -> None:
        if self._holding is not None:
            self._holding.cancel()
            await asyncio.gather(self._holding, return_exceptions=True)

    async def connect_once(self) -> str:
        self._was_open = False
        try:
            # The endpoint and the certificate are read again: a manager may have moved, a certificate run out.
            access = await kept_fresh(self._folder, now_s=time.time())
            link = GrpcLink(access.identity, server_node=access.manager_node, endpoint=access.manager_endpoint)
            return await link.borrow(self, connect_timeout_s=CONNECT_TIMEOUT_S)
        except OSError as error:
            return str(error)

    async def may_dial_again(self, reason: str) -> bool:
        self._host.post(Disconnected(node=self.peer, reason=reason))
        if SHUT_OUT in reason:
            log.warning("%s: %s", self.peer, reason)
            return False
        self._failures = 0 if self._was_open else self._failures + 1
        await asyncio.sleep(BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)])
        return True

    def opened(self, session: Session) -> None:
        super().opened(session)
        self._was_open = True
        self._host.post(Connected(node=self.peer))

    async def received(self, session: Session, message: Message, size_bytes: int) -> None:
        await self._host.deliver(Received(sender=self.peer, message=message, size_bytes=size_bytes))

    def payload_limit(self, session: Session, message: Message) -> int:
        return self._client.result_limit(message.task) if isinstance(message, TileResult) else 0


def _is_heavy(event: Event) -> bool:
    match event:
        case Received():
            return event.size_bytes > CHECKED_BESIDE_BYTES
        case ProductWanted():
            return True
        case _:
            return False


# Folders of pools -------------------------------------------------------------------------------------------


def _folder_of(pool: str | Path) -> Path:
    """The folder with the identity to reach a pool by; a line is enrolled now."""
    if isinstance(pool, str) and pool.startswith("shoal://"):
        return _joined(pool)
    folder = Path(pool).expanduser()
    for place in (folder, Paths(folder).operator):
        if (place / IDENTITY_FILE).exists():
            return place
    raise Misuse(
        f"{folder} holds no operator's identity: give the home of a cluster, its operator folder, or a line of"
        " `shoal token create --role operator`"
    )


def _joined(line: str) -> Path:
    """Enrol by a line, once: the folder of an earlier enrolment is found by the authority that the line names."""
    code = JoinCode.parse(line)
    name = hashlib.sha256(str(code.ca_sha256).encode()).hexdigest()[:16]
    folder = default_home() / "pools" / name
    if not (folder / IDENTITY_FILE).exists():
        joined = enrol_blocking(code, wanted="client")
        if joined.identity.role != "operator":
            raise Refused("this line is for devices: borrowing takes one of `shoal token create --role operator`")
        joined.save(folder)
    return folder


def _named(folders: Sequence[Path], *, must_differ: bool) -> dict[str, Path]:
    """A short name for each pool: its cluster's, with a number where two have the same."""
    named: dict[str, Path] = {}
    authorities: set[bytes] = set()
    for folder in folders:
        identity = Enrolled.load(folder).identity
        if identity.role != "operator":
            raise PeerViolation(f"{folder} is the identity of a {identity.role}, not of an operator")
        if must_differ and identity.ca_pem in authorities:
            raise Misuse('privacy="mask" takes two clusters: these pools are one, which would see both halves')
        authorities.add(identity.ca_pem)
        names = itertools.chain([identity.cluster], (f"{identity.cluster}-{at}" for at in itertools.count(2)))
        named[next(name for name in names if name not in named)] = folder
    return named
