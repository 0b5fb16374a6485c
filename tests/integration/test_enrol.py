"""Joining for real: TLS over loopback, impostors, abuse, and then gRPC with the certificates that were issued."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from memory_tokens import MemoryTokens

from shoal.errors import Misuse, PeerViolation, Refused, Unreachable
from shoal.identity import certificates, reception
from shoal.identity.ask_health import readiness
from shoal.identity.enrolment import (
    Denial,
    Enrolled,
    EnrolmentServer,
    Grant,
    JoinCode,
    Newcomer,
    WrongCluster,
    enrol,
    enrol_blocking,
)
from shoal.identity.identity import (
    Authority,
    Identity,
    channel_credentials,
    channel_options,
    remote_from_auth_context,
    renewable_server_credentials,
)
from shoal.identity.join_code import new_secret
from shoal.wire.limits import ENROL_CONNECTIONS_MAX, ENROL_MESSAGE_MAX_BYTES, ENROL_PER_ADDRESS

pytestmark = pytest.mark.timeout(360)

SERVICE_PORT = 7071


class Cluster:
    """An authority, its manager and its tokens: what `shoal up` makes."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority.create(folder, "pond")
        self.manager = self.authority.identity(node="hub", role="manager")
        self.tokens = MemoryTokens(taken=["hub"])
        self.newcomers: list[Newcomer] = []

    def secret(self, *, uses: int | None = 1, role: str = "node") -> str:
        return self.tokens.create(valid_s=60, now_s=time.time(), uses=uses, role=role)

    def code(self, port: int, *, secret: str | None = None) -> JoinCode:
        pinned = self.authority.fingerprint
        return JoinCode(host="127.0.0.1", port=port, ca_sha256=pinned, secret=secret or self.secret())

    @asynccontextmanager
    async def serving(self, **options: Any) -> AsyncIterator[EnrolmentServer]:
        server = EnrolmentServer(
            self.authority,
            self.manager,
            options.pop("tokens", self.tokens),
            "127.0.0.1",
            0,
            service_port=SERVICE_PORT,
            on_enrolled=self.newcomers.append,
            **options,
        )
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "manager")


def framed(content: object) -> bytes:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return len(raw).to_bytes(4, "big") + raw


def test_a_door_that_was_shut_may_be_shut_again(cluster: Cluster) -> None:
    """As by a manager that could not prove its seat, and is then told that it has lost it."""

    async def story() -> None:
        async with cluster.serving() as server:
            await server.stop()

    asyncio.run(story())


# Joining


@pytest.mark.gate("join")
def test_a_device_joins_and_remembers_its_cluster(cluster: Cluster, tmp_path: Path) -> None:
    async def scenario() -> Enrolled:
        async with cluster.serving() as server:
            line = str(cluster.code(server.port))
            return await enrol(JoinCode.parse(line), wanted="pi-4", facts={"os": "linux", "cores": "4"})

    enrolled = asyncio.run(scenario())
    identity = enrolled.identity
    assert (identity.node, identity.role, identity.cluster) == ("pi-4", "node", "pond")
    assert (enrolled.manager_node, enrolled.manager_endpoint) == ("hub", f"127.0.0.1:{SERVICE_PORT}")
    assert identity.ca_pem == cluster.authority.certificate_pem
    expected = Newcomer(node="pi-4", role="node", address="127.0.0.1", facts={"os": "linux", "cores": "4"})
    assert cluster.newcomers == [expected]
    enrolled.save(tmp_path / "device")
    assert Enrolled.load(tmp_path / "device") == enrolled


def test_a_program_without_a_loop_joins(cluster: Cluster) -> None:
    async def scenario() -> Enrolled:
        async with cluster.serving() as server:
            return await asyncio.to_thread(enrol_blocking, cluster.code(server.port), wanted="pi-4")

    assert asyncio.run(scenario()).identity.node == "pi-4"


def test_an_operator_joins_by_an_operators_token(cluster: Cluster) -> None:
    async def scenario() -> Enrolled:
        async with cluster.serving() as server:
            code = cluster.code(server.port, secret=cluster.secret(role="operator"))
            return await enrol(code, wanted="ann")

    assert asyncio.run(scenario()).identity.role == "operator"


def test_a_crowd_larger_than_the_limit_joins_and_no_two_share_a_name(cluster: Cluster) -> None:
    crowd = ENROL_CONNECTIONS_MAX + 16

    async def scenario() -> list[Enrolled]:
        async with cluster.serving() as server:
            code = cluster.code(server.port, secret=cluster.secret(uses=None))
            return await asyncio.gather(*(enrol(code, wanted="raspberrypi") for _ in range(crowd)))

    names = {enrolled.identity.node for enrolled in asyncio.run(scenario())}
    assert names == {"raspberrypi", *(f"raspberrypi-{count}" for count in range(2, crowd + 1))}


# Refusals


def test_a_one_time_line_works_once(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.serving() as server:
            code = cluster.code(server.port)
            await enrol(code, wanted="pi-4")
            with pytest.raises(Refused, match="used up"):
                await enrol(code, wanted="pi-5")

    asyncio.run(scenario())
    assert [newcomer.node for newcomer in cluster.newcomers] == ["pi-4"]


def test_an_expired_line_is_refused(cluster: Cluster) -> None:
    secret = cluster.tokens.create(valid_s=60, now_s=time.time() - 61)

    async def scenario() -> None:
        async with cluster.serving() as server:
            with pytest.raises(Refused, match="expired"):
                await enrol(cluster.code(server.port, secret=secret), wanted="pi-4")

    asyncio.run(scenario())
    assert cluster.newcomers == []


def test_a_guessed_secret_is_refused(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.serving() as server:
            with pytest.raises(Refused, match="not known"):
                await enrol(cluster.code(server.port, secret=new_secret()), wanted="pi-4")

    asyncio.run(scenario())


@dataclasses.dataclass
class CarelessTokens:
    """A registry that grants whatever it was told to, as a faulty one might."""

    grant: Grant

    def redeem(
        self, secret: str, *, wanted: str, now_s: float, facts: Mapping[str, str] | None = None
    ) -> Grant | Denial:
        return self.grant


@pytest.mark.parametrize(
    ("grant", "reason"),
    [(Grant(node="hub", role="node"), "own name"), (Grant(node="pi-4", role="manager"), "nobody joins as")],
)
def test_nobody_joins_as_the_manager(cluster: Cluster, grant: Grant, reason: str) -> None:
    async def scenario() -> None:
        async with cluster.serving(tokens=CarelessTokens(grant)) as server:
            with pytest.raises(Refused, match=reason):
                await enrol(cluster.code(server.port), wanted="pi-4")

    asyncio.run(scenario())


def test_a_bad_name_is_noticed_before_anything_is_connected(cluster: Cluster) -> None:
    with pytest.raises(Misuse, match="cannot be the name"):
        enrol_blocking(cluster.code(9), wanted="Pi 4")
    with pytest.raises(Misuse, match="facts"):
        enrol_blocking(cluster.code(9), wanted="pi-4", facts={"os": "\x1b[2J"})


def test_only_a_manager_of_the_same_cluster_enrols(cluster: Cluster, tmp_path: Path) -> None:
    node = cluster.authority.identity(node="pi-4", role="node")
    other = Authority.create(tmp_path / "other", "pond")
    for authority, identity in ((cluster.authority, node), (other, cluster.manager)):
        with pytest.raises(Misuse):
            EnrolmentServer(authority, identity, cluster.tokens, "127.0.0.1", 0, service_port=SERVICE_PORT)


def test_a_supervisor_asks_in_http_where_devices_join(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    trouble = ""

    def flood(port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["http/1.1"])
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
            context.wrap_socket(plain) as connection,
        ):
            connection.sendall(b"GET /readyz HTTP/1.1\r\nX: " + b"a" * 3 * ENROL_MESSAGE_MAX_BYTES)
            connection.recv(1)

    async def scenario() -> None:
        nonlocal trouble
        async with cluster.serving(trouble=lambda: trouble) as server:
            assert await asyncio.to_thread(readiness, server.port) == (True, "ready")
            trouble = "its database fails"
            assert await asyncio.to_thread(readiness, server.port) == (False, "not ready: its database fails")
            await asyncio.to_thread(flood, server.port)
            enrolled = await enrol(cluster.code(server.port), wanted="pi-4")
            assert enrolled.identity.node == "pi-4"

    asyncio.run(scenario())
    assert not [record for record in caplog.records if record.exc_info], "odd bytes are no bug"


def test_a_taken_port_is_named(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.serving() as first:
            second = EnrolmentServer(
                cluster.authority, cluster.manager, cluster.tokens, "127.0.0.1", first.port, service_port=1
            )
            with pytest.raises(Misuse, match="cannot listen"):
                await second.start()

    asyncio.run(scenario())


# Nobody there, or somebody else


#: From a device's request to a reply.
Answer = Callable[[dict[str, Any]], object]


class Listener(asyncio.Protocol):
    """Greets, and keeps every byte it is told: from the callback, because a reset would empty a stream's buffer."""

    def __init__(self, greeting: bytes, answer: Answer | None) -> None:
        self.greeting = greeting
        self.answer = answer
        self.heard = b""
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(framed(self.greeting))

    def data_received(self, data: bytes) -> None:
        self.heard += data
        if self.answer is not None and self.heard == framed(self.heard[4:]):
            self.transport.write(framed(self.answer(json.loads(self.heard[4:]))))

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


@asynccontextmanager
async def impostor(
    identity: Identity, greeting: bytes, folder: Path, *, answer: Answer | None = None
) -> AsyncIterator[tuple[int, Listener]]:
    """A TLS server that greets like a manager. On leaving, the one device that came has hung up."""
    pem = folder / "impostor.pem"
    pem.write_bytes(identity.key_pem + identity.certificate_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    listener = Listener(greeting, answer)
    server = await asyncio.get_running_loop().create_server(lambda: listener, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1], listener
        await asyncio.wait_for(listener.ended.wait(), 5)
    finally:
        server.close()
        await server.wait_closed()


def deceive(cluster: Cluster, identity: Identity, authority: Authority, folder: Path) -> tuple[str, bytes]:
    """What the device says when this identity answers with this authority, and all that the impostor heard."""

    async def scenario() -> tuple[str, bytes]:
        async with impostor(identity, authority.certificate_der, folder) as (port, listener):
            with pytest.raises(WrongCluster) as caught:
                await enrol(cluster.code(port), wanted="pi-4")
        return str(caught.value), listener.heard

    return asyncio.run(scenario())


def test_the_true_manager_hears_the_request(cluster: Cluster, tmp_path: Path) -> None:
    # Without this, the silence in the tests below could be the listener's deafness.
    async def scenario() -> bytes:
        async with impostor(cluster.manager, cluster.authority.certificate_der, tmp_path) as (port, listener):
            with pytest.raises(Unreachable, match="did not answer"):
                await enrol(cluster.code(port), wanted="pi-4", timeout_s=0.5)
        return listener.heard

    assert b'"wanted": "pi-4"' in asyncio.run(scenario())


def test_another_cluster_hears_nothing(cluster: Cluster, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", "pond")
    error, heard = deceive(cluster, other.identity(node="hub", role="manager"), other, tmp_path)
    assert "not the cluster the join line was made for" in error
    assert heard == b""


def test_a_copied_authority_does_not_help_an_impostor(cluster: Cluster, tmp_path: Path) -> None:
    # The authority's certificate is public. Its signature under the impostor's own certificate is not to be had.
    other = Authority.create(tmp_path / "other", "pond").identity(node="hub", role="manager")
    error, heard = deceive(cluster, other, cluster.authority, tmp_path)
    assert "not issued by" in error
    assert heard == b""


@pytest.mark.parametrize("role", ["node", "operator"])
def test_a_member_cannot_pose_as_the_manager(cluster: Cluster, role: str, tmp_path: Path) -> None:
    member = cluster.authority.identity(node="mallory", role=role)
    error, heard = deceive(cluster, member, cluster.authority, tmp_path)
    assert f"and is {role}" in error
    assert heard == b""


def test_an_expired_manager_hears_nothing(cluster: Cluster, tmp_path: Path) -> None:
    stale = cluster.authority.identity(node="hub", role="manager", valid_days=1, now_s=time.time() - 2 * 86400)
    error, heard = deceive(cluster, stale, cluster.authority, tmp_path)
    assert "clock" in error
    assert heard == b""


def test_an_oversize_greeting_is_not_read(cluster: Cluster, tmp_path: Path) -> None:
    async def scenario() -> bytes:
        async with impostor(cluster.manager, bytes(9 << 10), tmp_path) as (port, listener):
            with pytest.raises(PeerViolation, match="over the limit"):
                await enrol(cluster.code(port), wanted="pi-4")
        return listener.heard

    assert asyncio.run(scenario()) == b""


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"certificate_pem": None}, "lacks a certificate"),
        ({"port": 0}, "lacks a certificate or a port"),
        ({"port": True}, "lacks a certificate or a port"),
        ({"certificate_pem": "garbage"}, "cannot be read"),
        ({"certificate_pem": "of another key"}, "for another key"),
        ({"node": "pi-5"}, "differs from its certificate"),
        ({"role": "manager"}, "differs from its certificate"),
        ({"cluster": "lake"}, "differs from its certificate"),
        ({"manager": "mallory"}, "differs from its certificate"),
    ],
)
def test_a_faulty_reply_is_not_believed(
    cluster: Cluster, changes: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    def answer(asked: dict[str, Any]) -> object:
        issued = cluster.authority.issue(node="pi-4", role="node", csr_pem=asked["csr_pem"].encode())
        reply: dict[str, object] = {
            "certificate_pem": issued.decode(),
            "node": "pi-4",
            "role": "node",
            "cluster": "pond",
        }
        reply |= {"manager": "hub", "port": SERVICE_PORT, **changes}
        if reply["certificate_pem"] == "of another key":
            reply["certificate_pem"] = cluster.authority.identity(node="pi-4", role="node").certificate_pem.decode()
        return reply

    async def scenario() -> None:
        greeting = cluster.authority.certificate_der
        async with impostor(cluster.manager, greeting, tmp_path, answer=answer) as (port, _):
            with pytest.raises(PeerViolation, match=complaint):
                await enrol(cluster.code(port), wanted="pi-4")

    asyncio.run(scenario())


@asynccontextmanager
async def plain_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


def test_nobody_there(cluster: Cluster) -> None:
    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

    async def scenario() -> None:
        async with plain_server(nothing) as port:
            pass
        with pytest.raises(Unreachable, match="cannot reach"):
            await enrol(cluster.code(port), wanted="pi-4")

    asyncio.run(scenario())


def test_something_else_answers(cluster: Cluster) -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        await reader.read()

    async def scenario() -> None:
        async with plain_server(web) as port:
            with pytest.raises(Unreachable, match="TLS"):
                await enrol(cluster.code(port), wanted="pi-4")

    asyncio.run(scenario())


def test_somebody_silent_is_left_in_time(cluster: Cluster) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def scenario() -> float:
        async with plain_server(silent) as port:
            started_s = time.monotonic()
            with pytest.raises(Unreachable, match="did not answer within"):
                await enrol(cluster.code(port), wanted="pi-4", timeout_s=0.3)
            return time.monotonic() - started_s

    assert asyncio.run(scenario()) < 5


# What strangers send to the manager


def stranger_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def knock(port: int, raw: bytes) -> bytes:
    """Send these bytes over TLS after the greeting, and return all that is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=stranger_context())
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size)
        writer.write(raw)
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


def request(**changes: object) -> dict[str, object]:
    csr_pem = certificates.new_request("pi-4").pem.decode()
    return {"secret": "0" * 32, "csr_pem": csr_pem, "wanted": "pi-4", "facts": {}} | changes


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe\x00garbage", id="garbage"),
        pytest.param(b"[" * ENROL_MESSAGE_MAX_BYTES, id="deep nesting"),
        pytest.param(b"9" * ENROL_MESSAGE_MAX_BYTES, id="a long number"),
        pytest.param([], id="a list"),
        pytest.param({}, id="no fields"),
        pytest.param(request(secret=7), id="a secret that is no text"),
        pytest.param(request(secret="\ud800"), id="a secret that cannot be encoded"),
        pytest.param(request(wanted="../../etc"), id="a name that is a path"),
        pytest.param(request(wanted="x" * 10_000), id="a long name"),
        pytest.param(request(facts=[]), id="facts that are a list"),
        pytest.param(request(facts={"a": 1}), id="a fact that is no text"),
        pytest.param(request(facts={"a": "\x1b[2J"}), id="a fact that clears the screen"),
        pytest.param(request(facts={str(n): "" for n in range(33)}), id="too many facts"),
    ],
)
def test_odd_requests_are_refused_and_the_next_device_joins(cluster: Cluster, content: object) -> None:
    async def scenario() -> bytes:
        async with cluster.serving() as server:
            answer = await knock(server.port, framed(content))
            await enrol(cluster.code(server.port), wanted="pi-4")
            return answer

    answer = asyncio.run(scenario())
    assert list(json.loads(answer[4:])) == ["refused"]
    assert [newcomer.node for newcomer in cluster.newcomers] == ["pi-4"]


@pytest.mark.parametrize("csr_pem", ["", "garbage", "ä", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n"])
def test_a_good_secret_with_a_bad_request_gets_no_certificate(cluster: Cluster, csr_pem: str) -> None:
    async def scenario() -> bytes:
        async with cluster.serving() as server:
            return await knock(server.port, framed(request(secret=cluster.secret(), csr_pem=csr_pem)))

    assert list(json.loads(asyncio.run(scenario())[4:])) == ["refused"]
    assert cluster.newcomers == []


@pytest.mark.parametrize("size", [ENROL_MESSAGE_MAX_BYTES + 1, 2**32 - 1])
def test_an_oversize_message_is_cut_off_unread(cluster: Cluster, size: int) -> None:
    async def scenario() -> bytes:
        async with cluster.serving() as server:
            answer = await knock(server.port, size.to_bytes(4, "big") + bytes(1000))
            await enrol(cluster.code(server.port), wanted="pi-4")
            return answer

    assert asyncio.run(scenario()) == b""


def test_bytes_that_are_not_tls_are_cut_off(cluster: Cluster) -> None:
    async def scenario() -> bytes:
        async with cluster.serving() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(100_000))
            try:
                answer = await asyncio.wait_for(reader.read(), 5)
            except ConnectionError:
                answer = b""
            writer.transport.abort()
            await enrol(cluster.code(server.port), wanted="pi-4")
            return answer

    assert b"CERTIFICATE" not in asyncio.run(scenario())


def test_older_tls_is_refused(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.serving() as server:
            context = stranger_context()
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection("127.0.0.1", server.port, ssl=context)

    asyncio.run(scenario())


def test_as_many_of_one_address_are_served_at_once_and_the_next_waits(cluster: Cluster) -> None:
    def knock(port: int) -> None:
        # A plain socket: a transport that is given up within its handshake is not closed.
        raw = socket.create_connection(("127.0.0.1", port), timeout=0.3)
        with raw, stranger_context().wrap_socket(raw):
            pass

    async def visit(port: int, *, timeout_s: float) -> asyncio.StreamWriter:
        opening = asyncio.open_connection("127.0.0.1", port, ssl=stranger_context())
        _, writer = await asyncio.wait_for(opening, timeout_s)
        return writer

    async def scenario() -> None:
        async with cluster.serving() as server:
            visitors = [await visit(server.port, timeout_s=5) for _ in range(ENROL_PER_ADDRESS)]
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(knock, server.port)
            visitors[-1].transport.abort()
            visitors.append(await visit(server.port, timeout_s=5))
            for writer in visitors:
                writer.transport.abort()

    asyncio.run(scenario())


async def strangers(port: int, count: int, *, first: bytes = b"") -> list[asyncio.StreamWriter]:
    """Connections of another address that say this much, and never begin a handshake."""
    crowd = []
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        writer.write(first)
        crowd.append(writer)
    await asyncio.sleep(0.1)
    return crowd


def leave(crowd: list[asyncio.StreamWriter]) -> None:
    for writer in crowd:
        writer.transport.abort()


# Transports of other tests, given up within their handshake, may be collected while this one runs.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("first", [b"", b"\x16"], ids=["silent", "stalled"])
def test_a_crowd_of_one_address_keeps_nobody_else_out(
    cluster: Cluster, first: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "ENROL_HELLO_S", 60.0)

    async def scenario() -> None:
        async with cluster.serving(deadline_s=60.0) as server:
            crowd = await strangers(server.port, 2 * ENROL_CONNECTIONS_MAX, first=first)
            assert (await enrol(cluster.code(server.port), wanted="pi-4")).identity.node == "pi-4"
            leave(crowd)
            # Their transports close in the next turns of the loop.
            await asyncio.sleep(0.1)

    asyncio.run(scenario())


def test_silent_connections_of_its_own_address_do_not_keep_a_device_out(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reception, "ENROL_HELLO_S", 60.0)

    async def scenario() -> None:
        async with cluster.serving(deadline_s=60.0) as server:
            crowd = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2 * ENROL_CONNECTIONS_MAX)]
            assert (await enrol(cluster.code(server.port), wanted="pi-4")).identity.node == "pi-4"
            leave([writer for _, writer in crowd])
            # Their transports close in the next turns of the loop.
            await asyncio.sleep(0.1)

    asyncio.run(scenario())


def test_handshakes_are_not_on_the_managers_loop(cluster: Cluster) -> None:
    def greeted(port: int) -> bytes:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as raw,
            stranger_context().wrap_socket(raw) as connection,
        ):
            return connection.recv(4)

    async def scenario() -> bytes:
        async with cluster.serving() as server:
            with ThreadPoolExecutor(1) as elsewhere:
                # The loop does nothing at all until the stranger was greeted.
                return elsewhere.submit(greeted, server.port).result(timeout=15)

    assert len(asyncio.run(scenario())) == 4


def test_those_who_dawdle_are_cut_off_and_told_together(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with cluster.serving(deadline_s=0.5) as server:
            crowd = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(ENROL_CONNECTIONS_MAX)]
            for reader, writer in crowd:
                assert await asyncio.wait_for(reader.read(), 30) == b""
                writer.close()
            hasty = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
            for _, writer in hasty:
                writer.close()
            assert (await enrol(cluster.code(server.port), wanted="pi-4")).identity.node == "pi-4"

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    lines = [record.getMessage() for record in caplog.records if "did not join" in record.getMessage()]
    first, *rest = lines
    assert first == "127.0.0.1 did not join: sent nothing for 0.5 s: disconnected before TLS"
    assert len(rest) == 1
    assert re.fullmatch(
        r"8[0-3] connections did not join within 60 s: 8[0-3] of 127\.0\.0\.1 \(the connection was closed.*\)",
        rest[0],
    )


def test_a_refusal_is_written_down_with_its_reason(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with cluster.serving() as server:
            with pytest.raises(Refused):
                await enrol(cluster.code(server.port, secret=new_secret()), wanted="pi-4")

    asyncio.run(scenario())
    (line,) = [record.getMessage() for record in caplog.records if "did not join" in record.getMessage()]
    assert line.startswith("127.0.0.1 did not join: refused: ")


def test_stopping_cuts_off_who_is_being_served(cluster: Cluster) -> None:
    async def scenario() -> bytes:
        async with cluster.serving() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=stranger_context())
            await reader.readexactly(4)
        try:
            await asyncio.wait_for(reader.read(), 5)
        except ConnectionError:
            pass
        writer.transport.abort()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", server.port)
        return b"closed"

    assert asyncio.run(scenario()) == b"closed"


def test_no_key_stays_in_the_temporary_folder(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    async def scenario() -> list[Path]:
        async with cluster.serving():
            return list(temporary.iterdir())

    assert asyncio.run(scenario()) == []


# Afterwards: gRPC with what was issued


@asynccontextmanager
async def grpc_server(identity: Identity) -> AsyncIterator[int]:
    """A service that tells callers who they are."""

    async def who_am_i(request: bytes, context: Any) -> bytes:
        peer = remote_from_auth_context(context.auth_context())
        return peer.uri.encode()

    server = grpc.aio.server()
    handlers = {"WhoAmI": grpc.unary_unary_rpc_method_handler(who_am_i)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shoal.Test", handlers),))
    port = server.add_secure_port("127.0.0.1:0", renewable_server_credentials(lambda: identity))
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def who_am_i(port: int, credentials: grpc.ChannelCredentials, *, server_node: str = "hub") -> str:
    options = channel_options(server_node)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        answer: bytes = await channel.unary_unary("/shoal.Test/WhoAmI")(b"", timeout=5)
        return answer.decode()


async def is_unavailable(port: int, credentials: grpc.ChannelCredentials, *, server_node: str = "hub") -> bool:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await who_am_i(port, credentials, server_node=server_node)
    return bool(caught.value.code() == grpc.StatusCode.UNAVAILABLE)


def test_members_know_each_other_over_grpc(cluster: Cluster) -> None:
    async def scenario() -> list[str]:
        async with cluster.serving() as server, grpc_server(cluster.manager) as port:
            code = cluster.code(server.port, secret=cluster.secret(uses=None))
            devices = [await enrol(code, wanted=wanted) for wanted in ("pi-4", "pi-5")]
            heard = [await who_am_i(port, channel_credentials(device.identity)) for device in devices]
            # A node that leads serves with the very certificate it joined with.
            async with grpc_server(devices[0].identity) as leader:
                credentials = channel_credentials(devices[1].identity)
                heard.append(await who_am_i(leader, credentials, server_node="pi-4"))
            return heard

    uris = ["shoal://pond/node/pi-4", "shoal://pond/node/pi-5", "shoal://pond/node/pi-5"]
    assert asyncio.run(scenario()) == uris


def test_a_caller_without_a_certificate_is_refused(cluster: Cluster) -> None:
    async def scenario() -> bool:
        async with grpc_server(cluster.manager) as port:
            anonymous = grpc.ssl_channel_credentials(root_certificates=cluster.manager.ca_pem)
            return await is_unavailable(port, anonymous)

    assert asyncio.run(scenario())


def test_a_caller_from_another_cluster_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    stranger = Authority.create(tmp_path / "other", "pond").identity(node="pi-4", role="node")

    async def scenario() -> tuple[bool, bool]:
        async with grpc_server(cluster.manager) as port:
            # It believes our authority, so that only the server's check can stop it; and then it does not.
            tolerant = dataclasses.replace(stranger, ca_pem=cluster.manager.ca_pem)
            return (
                await is_unavailable(port, channel_credentials(tolerant)),
                await is_unavailable(port, channel_credentials(stranger)),
            )

    assert asyncio.run(scenario()) == (True, True)


def test_an_expired_caller_is_refused(cluster: Cluster) -> None:
    stale = cluster.authority.identity(node="pi-4", role="node", valid_days=1, now_s=time.time() - 2 * 86400)

    async def scenario() -> bool:
        async with grpc_server(cluster.manager) as port:
            return await is_unavailable(port, channel_credentials(stale))

    assert asyncio.run(scenario())


@pytest.mark.parametrize(("node", "role"), [("mallory", "node"), ("hub", "operator")])
def test_nobody_serves_under_the_managers_name(cluster: Cluster, node: str, role: str) -> None:
    # A node is not called hub; an operator may be, and its certificate is not one to serve with.
    impostor_identity = cluster.authority.identity(node=node, role=role)
    device = cluster.authority.identity(node="pi-4", role="node")

    async def scenario() -> bool:
        async with grpc_server(impostor_identity) as port:
            return await is_unavailable(port, channel_credentials(device))

    assert asyncio.run(scenario())
