"""What a door takes before it knows anyone: connections, compressed messages, calls. Real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import resource
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from kit import WAIT_S, manager_in, run

from shoal.errors import ShoalError, Unreachable
from shoal.identity import certificates
from shoal.identity.enrolment import Enrolled, enrol
from shoal.identity.identity import Authority, channel_credentials, channel_options, renewable_server_credentials
from shoal.identity.join_code import JoinCode
from shoal.net.grpc import SERVICE, GrpcLink
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.wire.frames import envelope_frame
from shoal.wire.limits import HANDSHAKE_MAX_S, RENEWALS_BURST
from shoal.wire.messages import AskStatus, Lane, RevokeNode

#: What the manager may open here: half of the last are connections.
SOFT, HARD = 128, 256


@asynccontextmanager
async def modest_manager(home: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """A manager as a process of its own that may open few files."""
    home.mkdir(parents=True)
    with (home / "manager.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal.runtime.manager_main", "--home", str(home), "--leash"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD)),
        )
    try:
        assert process.stdout is not None
        yield process, json.loads(await asyncio.wait_for(process.stdout.readline(), WAIT_S))
    finally:
        process.terminate()
        await process.wait()


def knock(port: int, count: int) -> list[socket.socket]:
    """Connections that say nothing."""
    made = []
    for _ in range(count):
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", port))
        made.append(one)
    return made


def is_open(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


@pytest.mark.gate("connections")
def test_silent_connections_leave_files_to_others_and_are_gone_after_a_handshake(tmp_path: Path) -> None:
    async def story() -> None:
        home = tmp_path / "home"
        async with modest_manager(home) as (manager, ready):
            operator = Enrolled.load(Paths(home).operator)
            link = GrpcLink(operator.identity, server_node="manager", endpoint=ready["endpoint"])
            await link.operate(AskStatus())
            silent = knock(ready["port"], 2 * HARD)
            try:
                await asyncio.sleep(1.0)
                assert sum(map(is_open, silent)) <= HARD // 2
                assert len(os.listdir(f"/proc/{manager.pid}/fd")) < HARD - 50
                # Who is in stays in, and there are files for what it brings.
                blob = tmp_path / "blob"
                blob.write_bytes(os.urandom(1 << 20))
                await link.store(hashlib.sha256(blob.read_bytes()).hexdigest(), blob)
                # All that came before the handshake ended are gone, and a member that was away comes in.
                began_s = time.monotonic()
                async with asyncio.timeout(WAIT_S):
                    while True:
                        try:
                            async with Operator.open(home) as after:
                                await after.status()
                            break
                        except Unreachable:
                            await asyncio.sleep(0.2)
                print(f"let in after {time.monotonic() - began_s:.1f} s of a handshake's {HANDSHAKE_MAX_S}")
                async with asyncio.timeout(WAIT_S):
                    while any(map(is_open, silent)):
                        await asyncio.sleep(0.2)
            finally:
                for one in silent:
                    one.close()
                await link.close()

    run(story())


@pytest.mark.gate("compressed messages")
def test_a_compressed_message_is_refused_unread(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_in(tmp_path / "home") as ready:
            operator = Enrolled.load(Paths(tmp_path / "home").operator)
            async with grpc.aio.secure_channel(
                ready.endpoint,
                channel_credentials(operator.identity),
                options=channel_options("manager"),
                compression=grpc.Compression.Gzip,
            ) as channel:
                # As a bomb would be: it would be sound, and of allowed size, had it come as it is.
                frame = envelope_frame(RevokeNode(node="pi", reason="a" * 4000))
                call = channel.unary_unary(f"/{SERVICE}/Operate")(frame, timeout=60.0)
                assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
                assert "gzip" in await call.details()
                stream = channel.stream_stream(f"/{SERVICE}/{Lane.WORK}")(timeout=60.0)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await stream.write(frame)
                # A write that fails may take the place of the reason (grpc/grpc#36066).
                assert await stream.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)

    run(story())


def test_a_compressed_answer_is_refused_unread(tmp_path: Path) -> None:
    """A leader is a device like any other: its bombs are no better."""

    async def bomb(frame: bytes, context: Any) -> bytes:
        return bytes(64 << 20)

    async def story() -> None:
        authority = Authority.create(tmp_path / "authority", "pond")
        rogue, caller = authority.identity(node="rogue", role="manager"), authority.identity(node="a", role="operator")
        server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)], compression=grpc.Compression.Gzip)
        handlers = {"Operate": grpc.unary_unary_rpc_method_handler(bomb)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port = server.add_secure_port("127.0.0.1:0", renewable_server_credentials(lambda: rogue))
        await server.start()
        link = GrpcLink(caller, server_node="rogue", endpoint=f"127.0.0.1:{port}")
        try:
            with pytest.raises(ShoalError, match="'gzip' is disabled"):
                await link.operate(AskStatus())
        finally:
            await link.close()
            await server.stop(None)

    run(story())


def test_certificates_are_given_at_a_rate_and_other_calls_go_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with manager_in(tmp_path / "home") as ready:
            member = await enrol(JoinCode.parse(ready.join_line), wanted="pi")
            link = GrpcLink(member.identity, server_node="manager", endpoint=ready.endpoint)
            try:
                for _ in range(RENEWALS_BURST):
                    await link.renew(certificates.new_request("pi").pem.decode())
                with pytest.raises(ShoalError, match="opens more than 1 calls of Renew a minute"):
                    await link.renew(certificates.new_request("pi").pem.decode())
                with pytest.raises(ShoalError, match="no blob"):
                    async for _ in link.fetch("0" * 64):
                        pass
            finally:
                await link.close()

    run(story())


def test_a_join_is_written_down_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with manager_in(tmp_path / "home") as ready:
            await enrol(JoinCode.parse(ready.join_line), wanted="pi")

    with caplog.at_level("INFO"):
        run(story())
    joins = [record.getMessage() for record in caplog.records if record.getMessage().startswith("pi joined")]
    assert joins == ["pi joined as node from 127.0.0.1"]
