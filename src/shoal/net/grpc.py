"""gRPC with mutual TLS: serves a node to its peers and dials others. There is no plaintext path.

Handlers exchange raw frames (see ``wire.frames``): gRPC neither parses nor copies them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from shoal.errors import AnsweredElsewhere, Misuse, PeerViolation, Refused, ShoalError, Unreachable
from shoal.identity.identity import (
    Identity,
    address_of,
    channel_credentials,
    channel_options,
    remote_from_auth_context,
    renewable_server_credentials,
)
from shoal.identity.names import RemoteIdentity
from shoal.net import health
from shoal.net.access import Access, Members, ShutOut, may_answer
from shoal.net.base import BROKE_CONTRACT, RESTS, Listener, Service
from shoal.net.open_files import connections_max
from shoal.net.session import FrameSession
from shoal.net.shared_budget import SharedBudget
from shoal.wire.frames import chunk_frame, envelope_frame, read_chunk_frame, read_opening
from shoal.wire.limits import (
    CHUNK_BYTES,
    CONNECTION_IDLE_MAX_S,
    FETCHES_PER_PEER,
    HANDSHAKE_MAX_S,
    LINE_LEAST_BYTES_PER_S,
    MESSAGE_MAX_BYTES,
    NAME_MAX_CHARS,
    READ_AHEAD_BYTES,
    READ_BUFFER_BYTES,
    REPLY_MAX_BYTES,
    STREAMS_PER_CONNECTION,
)
from shoal.wire.messages import Blob, Contribute, Denied, Lane, Message, Renew, Renewed

SERVICE = "shoal.v1.Shoal"

#: The header of a stream that says which process of a node opens it.
INCARNATION = "shoal-incarnation"

#: Calls that count as use of a certificate as soon as they are allowed. A renewal does not count: an agent renews while
#: its session uses the earlier certificate. A stream counts once it is open.
_USES = frozenset({"Operate", "Fetch", "Store"})

#: Every wait for a peer ends.
CALL_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 20.0
BLOB_TIMEOUT_S = 3600.0
EXPLANATION_POLL_S = 0.02

#: Seconds after the work lane is closed until its leftovers are collected.
LET_GO_S = 1.0
EXPLANATION_POLLS = 50


def _keepalive(every_s: int, *, answer_s: int) -> list[tuple[str, Any]]:
    return [
        ("grpc.keepalive_time_ms", every_s * 1000),
        ("grpc.keepalive_timeout_ms", answer_s * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]


#: A caller without heartbeats finds out by these that its peer is gone.
_CALLER_KEEPALIVE = _keepalive(20, answer_s=10)

#: A door finds out by these which connections nobody holds any more, to free them; which devices are gone, heartbeats
#: tell long before. Seldom, for there are two connections a device, and often enough for routers that forget a
#: connection after some minutes of silence.
_DOOR_KEEPALIVE = _keepalive(60, answer_s=20)


#: Members dial each other directly, as they do to join: a proxy of the environment is for the internet, and gRPC would
#: take it even to reach this machine itself.
_NO_PROXY = ("grpc.enable_http_proxy", 0)

#: Bit 0 of gRPC's set of algorithms: bytes as they are.
_IDENTITY_ALONE = 1


def _options(keepalive: list[tuple[str, Any]], *, receive_max_bytes: int = MESSAGE_MAX_BYTES) -> list[tuple[str, Any]]:
    return [
        # A compressed message is refused, and what is refused is never decompressed: a megabyte of zeros is a kilobyte.
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ALONE),
        ("grpc.per_message_decompression", 0),
        ("grpc.max_receive_message_length", receive_max_bytes),
        ("grpc.max_send_message_length", REPLY_MAX_BYTES),
        *keepalive,
    ]


class GrpcServer:
    """The door of a node: only members of the cluster come in, each as itself."""

    def __init__(
        self,
        identity: Identity,
        service: Service,
        members: Members | None = None,
        trouble: Callable[[], str] = lambda: "",
    ) -> None:
        """``members`` has the last word on who is one; without it, certificates do. ``trouble``: why a member that
        calls now would not be served, or empty."""
        self._identity = identity
        self._trouble = trouble
        self._service = service
        self._access = Access(cluster=identity.cluster, members=members)
        self._commons = SharedBudget()
        #: A client's matrices may be large and its link slow: workers' updates do not wait for the memory they take.
        self._for_clients = SharedBudget(conduct=self._commons.conduct)
        #: Who is fetching how many blobs.
        self._fetches: Counter[str] = Counter()
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port in use."""
        options = [
            *_options(_DOOR_KEEPALIVE),
            ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION),
            # Two managers on one port would each get half of the callers.
            ("grpc.so_reuseport", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            ("grpc.max_connection_idle_ms", CONNECTION_IDLE_MAX_S * 1000),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_MAX_S * 1000),
            # Before the handshake: a stranger's silent connections must leave files for everyone else.
            ("grpc.max_allowed_incoming_connections", connections_max()),
            ("grpc.http2.lookahead_bytes", READ_AHEAD_BYTES),
            # Where this gRPC does not know it, nothing happens.
            ("grpc.experimental.tcp_max_read_buffer_size", READ_BUFFER_BYTES),
        ]
        server = grpc.aio.server(options=options)
        handlers = {
            "Control": grpc.stream_stream_rpc_method_handler(self._stream(Lane.CONTROL)),
            "Work": grpc.stream_stream_rpc_method_handler(self._stream(Lane.WORK)),
            "Operate": grpc.unary_unary_rpc_method_handler(self._operate),
            "Fetch": grpc.unary_stream_rpc_method_handler(self._fetch),
            "Store": grpc.stream_unary_rpc_method_handler(self._store),
            "Renew": grpc.unary_unary_rpc_method_handler(self._renew),
        }
        checks = {"Check": grpc.unary_unary_rpc_method_handler(self._check_health)}
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, handlers),
                grpc.method_handlers_generic_handler(health.SERVICE, checks),
            )
        )
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            credentials = renewable_server_credentials(lambda: self._identity)
            bound = server.add_secure_port(where, credentials)
        except RuntimeError as error:
            raise Misuse(f"port {port} on {host} cannot be used: is another manager running? Try --port") from error
        await server.start()
        self._server = server
        return int(bound)

    def become(self, identity: Identity) -> None:
        """Show another certificate on every new connection."""
        self._identity = identity

    async def stop(self, grace_s: float = 0.5) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None

    async def _admit(self, context: Any, verb: str) -> RemoteIdentity:
        """Return the caller, or end the call if it is not allowed."""
        try:
            peer = replace(remote_from_auth_context(context.auth_context()), address=address_of(context.peer()))
            self._commons.conduct.admit(peer.node, time.monotonic())
            await self._access.meet(peer)
            self._check(peer, verb)
            self._access.check_key(peer, verb)
        except PeerViolation as violation:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(violation))
            raise
        if verb in _USES:
            await self._let_in(peer, verb, context)
        return peer

    async def _let_in(self, peer: RemoteIdentity, verb: str, context: Any) -> None:
        """Admit a call. Its certificate counts as used, unless a newer one was used meanwhile."""
        try:
            await self._access.let_in(peer, verb)
            self._access.check_call(peer, verb)
            self._access.check_key(peer, verb)
        except PeerViolation as violation:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(violation))
            raise

    def _check(self, peer: RemoteIdentity, verb: str) -> None:
        try:
            self._access.check_call(peer, verb)
        except ShutOut:
            raise
        except PeerViolation as violation:
            self._offended(peer, violation.reason)
            raise

    async def _still(self, peer: RemoteIdentity, verb: str, context: Any) -> None:
        """End a call of one that was shut out since it began."""
        try:
            self._access.check_call(peer, verb)
        except PeerViolation as violation:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(violation))
            raise

    def _offended(self, peer: RemoteIdentity, offence: str) -> None:
        """Outside of any session: count it and write it down. An operator is not locked out of its own cluster."""
        is_counted = peer.role != "operator"
        verdict = self._commons.conduct.offend(peer.node, offence, time.monotonic()) if is_counted else ""
        self._service.turned_away(peer, f"{BROKE_CONTRACT}: {offence}" + (f"; {verdict}" if verdict else ""))

    async def _wait_to_open(self, peer: RemoteIdentity, verb: str, context: Any) -> None:
        """Calls of one peer begin at a bounded rate: each costs far more than a message."""
        try:
            wait_s = self._commons.conduct.open(peer.node, verb, time.monotonic())
        except PeerViolation as violation:
            self._offended(peer, violation.reason)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(violation))
            raise
        if wait_s:
            await asyncio.sleep(wait_s)
            await self._still(peer, verb, context)

    def _stream(self, lane: Lane) -> Callable[[Any, Any], Awaitable[None]]:
        async def serve(_: Any, context: Any) -> None:
            peer = _with_incarnation(await self._admit(context, str(lane)), context)
            await self._wait_to_open(peer, str(lane), context)
            await self._let_in(peer, str(lane), context)
            session = FrameSession(
                peer=peer,
                lane=lane,
                read=context.read,
                write=context.write,
                end=grpc.aio.EOF,
                commons=self._for_clients if peer.role == "operator" else self._commons,
                hears=self._access.heard(peer, str(lane)),
            )
            reason = await session.run(self._service.listener)
            if session.is_stuck:
                # gRPC could send no status behind the frame that is stuck: the stream is dropped without one.
                raise asyncio.CancelledError
            await self._still(peer, str(lane), context)
            if reason.startswith(BROKE_CONTRACT):
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)

        return serve

    async def _operate(self, frame: bytes, context: Any) -> bytes:
        peer = await self._admit(context, "Operate")
        await self._wait_to_open(peer, "Operate", context)
        try:
            message = read_opening(frame, hears=self._access.heard(peer, "Operate")).message
            answer = await self._service.operate(peer, message)
        except ShoalError as error:
            self._count(peer, error)
            answer = Denied(reason=str(error)[:4000])
        return envelope_frame(answer, max_bytes=REPLY_MAX_BYTES)

    async def _renew(self, frame: bytes, context: Any) -> bytes:
        peer = await self._admit(context, "Renew")
        await self._wait_to_open(peer, "Renew", context)
        try:
            message = read_opening(frame, hears=self._access.heard(peer, "Renew")).message
            if not isinstance(message, Renew):
                raise PeerViolation("a certificate is asked for with a signing request", peer=peer.node)
            answer = await self._service.renew(peer, message)
        except ShoalError as error:
            self._count(peer, error)
            answer = Denied(reason=str(error)[:4000])
        return envelope_frame(answer)

    async def _check_health(self, request: bytes, context: Any) -> bytes:
        """Answer a check of any member. It asks neither the store nor the register of members: these may be away."""
        try:
            service = health.asked_service(request)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        if service not in ("", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"this server has no service {service[:80]}")
        return health.NOT_SERVING if self._trouble() else health.SERVING

    async def _fetch(self, frame: bytes, context: Any) -> AsyncIterator[bytes]:
        peer = await self._admit(context, "Fetch")
        try:
            message = read_opening(frame, hears=self._access.heard(peer, "Fetch")).message
            if not isinstance(message, Blob):
                raise PeerViolation("a fetch must begin with a Blob, which has its hash", peer=peer.node)
            found = await self._service.find_blob(peer, message)
        except ShoalError as error:
            self._count(peer, error)
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error)[:1000])
            raise
        if self._fetches[peer.node] >= FETCHES_PER_PEER:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{FETCHES_PER_PEER} blobs at a time, not more")
        self._fetches[peer.node] += 1
        try:
            # Inside the count, so that at most as many as are counted can wait.
            await self._wait_to_open(peer, "Fetch", context)
            if isinstance(found, Blob):
                yield envelope_frame(found)
                return
            yield envelope_frame(Blob(sha256=message.sha256, size_bytes=found.stat().st_size))
            with found.open("rb") as file:
                while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                    await self._still(peer, "Fetch", context)
                    yield chunk_frame(chunk)
        finally:
            self._fetches[peer.node] -= 1
            if not self._fetches[peer.node]:
                del self._fetches[peer.node]

    def _count(self, peer: RemoteIdentity, error: ShoalError) -> None:
        """Count a call that broke the contract as an offence. A call that was merely refused is not one."""
        if isinstance(error, PeerViolation) and not isinstance(error, ShutOut):
            self._offended(peer, error.reason)

    async def _store(self, frames: AsyncIterator[bytes], context: Any) -> bytes:
        peer = await self._admit(context, "Store")
        try:
            message = read_opening(await self._first(frames, context), hears=self._access.heard(peer, "Store")).message
            answer = await self._keep(peer, message, self._chunks(peer, frames), context)
        except StopAsyncIteration:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an empty upload")
            raise
        except ShoalError as error:
            self._count(peer, error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:1000])
            raise
        return envelope_frame(answer)

    async def _first(self, frames: AsyncIterator[bytes], context: Any) -> bytes:
        """Return the first frame of an upload. A caller that says nothing would hold its stream for as long as it
        likes."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await anext(frames)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "an upload that did not begin")
            raise

    async def _keep(
        self, peer: RemoteIdentity, message: Message, chunks: AsyncIterator[memoryview], context: Any
    ) -> Message:
        """Hand an upload on. Return the answer once it is durable."""
        if isinstance(message, Contribute):
            # A device uploads at a bounded rate; an operator's uploads belong to a job.
            await self._wait_to_open(peer, "Store", context)
            return await self._service.take_entries(peer, message, chunks)
        if not isinstance(message, Blob):
            raise PeerViolation("an upload must begin with a Blob, which has its hash and size", peer=peer.node)
        await self._service.store_blob(peer, message, chunks)
        return message

    async def _chunks(self, peer: RemoteIdentity, frames: AsyncIterator[bytes]) -> AsyncIterator[memoryview]:
        async for frame in frames:
            self._access.check_call(peer, "Store")
            yield read_chunk_frame(frame)


def _with_incarnation(peer: RemoteIdentity, context: Any) -> RemoteIdentity:
    told = next((value for key, value in context.invocation_metadata() or () if key == INCARNATION), "")
    return replace(peer, incarnation=str(told)[:NAME_MAX_CHARS])


class _Outcome:
    """How a call we write to ended, in the words of the other side.

    grpc.aio lets a write that fails because the call is over replace the status that says why it is over, or come
    before it (grpc/grpc#36066); a cancellation replaces it too. The first status that explains something counts.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self.code: grpc.StatusCode | None = None
        self.details = ""
        call.add_done_callback(self._note)

    def _note(self, call: Any) -> None:
        code, details = _answered(call.code()), _answered(call.details())
        if self.code is None and code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED):
            self.code, self.details = code, details or ""

    async def write(self, frame: bytes) -> None:
        try:
            await self._call.write(frame)
        except grpc.aio.AioRpcError:
            # To give up now would cancel the call, and with it the explanation that is on its way.
            await self.known()
            raise

    async def known(self) -> None:
        """Wait a moment for the explanation of a call that has ended, if there is one."""
        for _ in range(EXPLANATION_POLLS):
            self._note(self._call)
            if self.code is not None:
                return
            await asyncio.sleep(EXPLANATION_POLL_S)


def _answered(question: Any) -> Any:
    """The result of a coroutine that need not wait, as those of a finished call."""
    try:
        question.send(None)
    except StopIteration as done:
        return done.value
    question.close()
    raise Misuse("a finished call has its status")


class GrpcLink:
    """A node's connections to one other: control and work apart, dialled from this side only."""

    def __init__(
        self,
        identity: Identity,
        *,
        server_node: str,
        endpoint: str,
        server_role: str = "manager",
        incarnation: str = "",
        has_heartbeats: bool = False,
    ) -> None:
        """``server_role``: whether the manager is dialled, or a node that leads. Each may say other things.

        ``incarnation``: which process this is, told with each stream: a node has one at a time.

        ``has_heartbeats``: the listener sends heartbeats and hangs up when they are not answered, so the connections
        need no pings from this side."""
        self._keepalive = [] if has_heartbeats else _CALLER_KEEPALIVE
        self._identity = identity
        self._metadata = ((INCARNATION, incarnation),) if incarnation else ()
        self._server = RemoteIdentity(node=server_node, role=server_role, cluster=identity.cluster)
        self._endpoint = endpoint
        self._channels: list[grpc.aio.Channel] = []
        self._bulk: grpc.aio.Channel | None = None
        #: Blobs on their way here.
        self._fetching = 0
        #: Set while the work lane is to be open.
        self._works = asyncio.Event()
        self._commons = SharedBudget(least_bytes_per_s=LINE_LEAST_BYTES_PER_S)

    def _channel(self) -> grpc.aio.Channel:
        # A pool of its own: channels to one address would otherwise share a connection.
        options = _options(self._keepalive, receive_max_bytes=REPLY_MAX_BYTES)
        options += [("grpc.use_local_subchannel_pool", 1), _NO_PROXY]
        options += [("grpc.enable_retries", 0), *channel_options(self._server.node)]
        channel = grpc.aio.secure_channel(self._endpoint, channel_credentials(self._identity), options=options)
        self._channels.append(channel)
        return channel

    def _bulk_channel(self) -> grpc.aio.Channel:
        if self._bulk is None:
            self._bulk = self._channel()
        return self._bulk

    async def run(self, listener: Listener, *, connect_timeout_s: float = CONNECT_TIMEOUT_S, works: bool = True) -> str:
        """Hold both lanes open until either ends; returns why. ``works``: the work lane is opened at once, and not
        with ``open_work``."""
        channel = self._channel()
        if works:
            self.open_work()
        control = asyncio.create_task(self._hold(channel, Lane.CONTROL, listener))
        work = asyncio.create_task(self._hold_work(listener))
        ready = asyncio.create_task(channel.channel_ready())
        tasks: set[asyncio.Task[Any]] = {control, work, ready}
        try:
            done, _ = await asyncio.wait(tasks, timeout=connect_timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return f"{self._endpoint}: no connection within {connect_timeout_s:g} s"
            ended, _ = await asyncio.wait({control, work}, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(ended)).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.close()

    def move(self, endpoint: str) -> None:
        """Connections from now on are made to this address of the same server: what was dialled may be a proxy, which
        would lead each of them to another."""
        self._endpoint = endpoint

    def open_work(self) -> None:
        """Open the work lane, if it is not open."""
        self._works.set()

    def rest(self) -> None:
        """The session of the work lane is about to be closed with ``RESTS``: the lane stays closed until ``open_work``,
        and the control lane stays open."""
        self._works.clear()

    async def _hold_work(self, listener: Listener) -> str:
        while True:
            await self._works.wait()
            reason = await self._hold(self._bulk_channel(), Lane.WORK, listener)
            if reason != RESTS:
                return reason
            if not self._fetching and self._bulk is not None:
                # Its connection goes too: the other side has one for each device that waits.
                channel, self._bulk = self._bulk, None
                self._channels.remove(channel)
                await channel.close()
                # gRPC keeps a connection as long as a call of it is referred to, and a call and its session refer to
                # each other: a device that waits makes few objects, and Python would not look for a long time.
                asyncio.get_running_loop().call_later(LET_GO_S, gc.collect)

    async def borrow(self, listener: Listener, *, connect_timeout_s: float = CONNECT_TIMEOUT_S) -> str:
        """Hold only the work lane, as an offload client, until it ends. Return why it ended."""
        channel = self._bulk_channel()
        try:
            async with asyncio.timeout(connect_timeout_s):
                await channel.channel_ready()
            return await self._hold(channel, Lane.WORK, listener)
        except TimeoutError:
            return f"{self._endpoint}: no connection within {connect_timeout_s:g} s"
        finally:
            await self.close()

    async def _hold(self, channel: grpc.aio.Channel, lane: Lane, listener: Listener) -> str:
        call = channel.stream_stream(f"/{SERVICE}/{lane}")(metadata=self._metadata)
        outcome = _Outcome(call)
        session = FrameSession(
            peer=self._server,
            lane=lane,
            read=call.read,
            write=outcome.write,
            end=grpc.aio.EOF,
            commons=self._commons,
            hears=may_answer(self._server.role, str(lane)),
        )
        try:
            reason = await session.run(listener)
            if reason == RESTS:
                return reason
            if outcome.code not in (None, grpc.StatusCode.OK):
                reason = f"{outcome.code.name.lower().replace('_', ' ')}: {outcome.details}"
            return reason
        finally:
            call.cancel()

    async def operate(self, message: Message) -> Message:
        """One command, one answer. Raises Refused with the manager's reason, or Unreachable."""
        return await self._ask("Operate", message)

    async def renew(self, csr_pem: str) -> Renewed:
        """A certificate for this request, under the name and role of the one we call with."""
        answer = await self._ask("Renew", Renew(csr_pem=csr_pem))
        if not isinstance(answer, Renewed):
            raise PeerViolation("no certificate came of a renewal", peer=self._server.node)
        return answer

    async def _ask(self, verb: str, message: Message) -> Message:
        call = self._bulk_channel().unary_unary(f"/{SERVICE}/{verb}")
        try:
            frame = await call(envelope_frame(message), timeout=CALL_TIMEOUT_S, wait_for_ready=False)
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None
        answer = read_opening(frame, max_bytes=REPLY_MAX_BYTES).message
        if isinstance(answer, Denied):
            if answer.endpoint:
                raise AnsweredElsewhere(answer.reason, endpoint=answer.endpoint)
            raise Refused(answer.reason)
        return answer

    async def fetch(
        self, sha256: str, *, on_answer: Callable[[Blob], None] | None = None, takes_url: bool = False
    ) -> AsyncIterator[memoryview]:
        """The chunks of a blob. ``on_answer`` hears how large it is before any is read; none follow where a URL is
        given to one that takes it."""
        call = self._bulk_channel().unary_stream(f"/{SERVICE}/Fetch")(
            envelope_frame(Blob(sha256=sha256, takes_url=takes_url)), timeout=BLOB_TIMEOUT_S
        )
        self._fetching += 1
        try:
            head = await call.read()
            if head is grpc.aio.EOF:
                raise PeerViolation("the answer to a fetch is empty", peer=self._server.node)
            blob = read_opening(head).message
            if not isinstance(blob, Blob) or blob.sha256 != sha256:
                raise PeerViolation("the answer to a fetch is not the requested blob", peer=self._server.node)
            if blob.url and not takes_url:
                raise PeerViolation(
                    "the answer to a fetch has a URL, but chunks were asked for", peer=self._server.node
                )
            if on_answer is not None:
                on_answer(blob)
            while (frame := await call.read()) is not grpc.aio.EOF:
                yield read_chunk_frame(frame)
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None
        finally:
            self._fetching -= 1
            call.cancel()

    async def store(self, sha256: str, path: Path) -> None:
        """Upload a file under its hash."""
        await self.upload(Blob(sha256=sha256, size_bytes=path.stat().st_size), path)

    async def upload(self, opening: Message, path: Path) -> Message:
        """Upload a file behind the message that announces it. Return the answer."""

        async def frames() -> AsyncIterator[bytes]:
            yield envelope_frame(opening)
            with path.open("rb") as file:
                while chunk := await asyncio.to_thread(file.read, CHUNK_BYTES):
                    yield chunk_frame(chunk)

        call = self._bulk_channel().stream_unary(f"/{SERVICE}/Store")(frames(), timeout=BLOB_TIMEOUT_S)
        outcome = _Outcome(call)
        try:
            return read_opening(await call).message
        except grpc.aio.AioRpcError as error:
            await outcome.known()
            raise self._translated(error, outcome) from None

    def _translated(self, error: grpc.aio.AioRpcError, outcome: _Outcome | None = None) -> ShoalError:
        code, details = error.code(), error.details()
        if outcome is not None and outcome.code is not None:
            code, details = outcome.code, outcome.details
        text = f"{self._endpoint}: {details or code.name.lower()}"
        if code in (
            grpc.StatusCode.PERMISSION_DENIED,
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.NOT_FOUND,
        ):
            return Refused(text)
        return Unreachable(f"{text}. Is `shoal up` running there, and does `shoal doctor` find the port open?")

    async def close(self) -> None:
        channels, self._channels, self._bulk = self._channels, [], None
        for channel in channels:
            with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
                await channel.close(grace=0.2)
