"""Three managers behind HAProxy: whoever would not serve a device says so, and HAProxy sends nobody there."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import shutil
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from unittest import mock

import grpc.aio
import psycopg
import pytest
from kit import WAIT_S, cluster_in, run

from shoal.exporter.managers import Managers, SeenManager, samples_of_managers
from shoal.identity.ask_health import readiness
from shoal.identity.enrolment import Enrolled
from shoal.identity.identity import Identity, channel_credentials, channel_options
from shoal.net import health
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from testbed.servers import haproxy_server, object_servers, postgres_server
from testbed.servers.object_servers import BUCKET

pytestmark = pytest.mark.timeout(600)


def asked(port: int, path: str) -> tuple[int, str]:
    """What the join port of a manager answers over HTTP; 0 if nobody answers."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
    try:
        connection.request("GET", path)
        with connection.getresponse() as answer:
            return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
    finally:
        connection.close()


async def shown(port: int) -> str:
    """Return the certificate of whoever answers where devices join, or an empty text if nobody does."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(5):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    except (OSError, TimeoutError):
        return ""
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ssl.DER_cert_to_PEM_cert(der)


async def checked(home: Path, port: int) -> bytes:
    """The answer of the gRPC health service to an operator; empty if there is none."""
    access = Enrolled.load(Paths(home).operator)
    credentials, options = channel_credentials(access.identity), channel_options(access.manager_node)
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        check = channel.unary_unary(f"/{health.SERVICE}/Check")
        with contextlib.suppress(grpc.aio.AioRpcError):
            return bytes(await check(b"", timeout=5))
    return b""


async def until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    give_up_s = time.monotonic() + WAIT_S
    while not await holds():
        assert time.monotonic() < give_up_s, what
        await asyncio.sleep(0.2)


@contextlib.asynccontextmanager
async def manager(home: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    with (home / "manager.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "shoal.runtime.manager_main", "--home", str(home), *options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        assert process.stdout is not None
        assert b"endpoint" in await asyncio.wait_for(process.stdout.readline(), WAIT_S)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def test_haproxy_sends_nobody_to_a_manager_that_would_not_serve(tmp_path: Path) -> None:
    found = postgres_server.programs()
    if found is None:
        pytest.skip("no PostgreSQL server here: apt-get install postgresql")
    for why in (haproxy_server.missing(), object_servers.missing("rclone")):
        if why:
            pytest.skip(why)
    front, *ports = (haproxy_server.free_pair() for _ in range(4))
    homes = [tmp_path / name for name in ("second", "third")]

    async def story(url: str) -> None:
        def options(port: int) -> tuple[str, ...]:
            # The port of the direct address is the one that the manager listens on.
            at = ("--port", str(port), "--advertise", f"127.0.0.1:{front}", "--direct", "127.0.0.1")
            return ("--store", url, "--blobs", f"s3://{BUCKET}/cluster", *at)

        async with contextlib.AsyncExitStack() as stack:
            site = await stack.enter_async_context(
                cluster_in(tmp_path / "first", workers=0, manager_options=options(ports[0]))
            )
            running = []
            for home, port in zip(homes, ports[1:], strict=True):
                (home / "cluster").mkdir(parents=True)
                shutil.copytree(site.cluster.home / "cluster" / "authority", home / "cluster" / "authority")
                running.append(await stack.enter_async_context(manager(home, *options(port))))
            second, third = running
            first_home = site.cluster.home
            own = [Identity.load(Paths(home).manager).certificate_pem for home in (first_home, *homes)]
            certificates = [pem.decode().replace("\r", "").strip() for pem in own]

            async def through_haproxy(dials: int = 12) -> set[str]:
                answers = []
                for _ in range(dials):
                    # HAProxy lets one address in 20 times a second.
                    await asyncio.sleep(0.1)
                    answers.append(await shown(front + 1))
                return {answer.replace("\r", "").strip() for answer in answers}

            async def is_served_by(*wanted: str) -> bool:
                return {answer for answer in await through_haproxy() if answer} == set(wanted)

            await until("HAProxy sends devices to all three", lambda: is_served_by(*certificates))
            assert await asyncio.to_thread(asked, ports[1] + 1, "/healthz") == (200, "ok\n")
            assert await asyncio.to_thread(asked, ports[1] + 1, "/readyz") == (200, "ready\n")
            assert (await asyncio.to_thread(asked, ports[1] + 1, "/secrets"))[0] == 404
            assert await checked(first_home, ports[2]) == health.SERVING
            operator = await stack.enter_async_context(Operator.open(first_home))
            managers = Managers(operator)

            async def seen() -> dict[str, SeenManager]:
                return {each.address: each for each in await managers.ask()}

            everyone = {f"127.0.0.1:{port}" for port in ports}

            async def are_all_reached() -> bool:
                return {address for address, each in (await seen()).items() if each.is_reached} == everyone

            await until("the exporter reaches all three by asking one", are_all_reached)

            # The second freezes. A transaction holds the third's seat: no proof of it goes through.
            second.send_signal(signal.SIGSTOP)
            connection = await asyncio.to_thread(psycopg.connect, url)
            stack.push_async_callback(asyncio.to_thread, connection.close)
            held = "SELECT 1 FROM seats WHERE address = %s FOR UPDATE"
            await asyncio.to_thread(connection.execute, held, (f"127.0.0.1:{ports[2]}",))

            async def is_third_unready() -> bool:
                status, text = await asyncio.to_thread(asked, ports[2] + 1, "/readyz")
                # After six seconds it shuts its doors altogether.
                return status in (0, 503) and text != "ready\n"

            await until("the third is not ready", is_third_unready)
            await until("HAProxy sends devices to the first only", lambda: is_served_by(certificates[0]))

            async def is_everyone_served() -> bool:
                return await through_haproxy() == {certificates[0]}

            # On a busy machine the first may lose its own proof for a moment.
            await until("every device that dials is served", is_everyone_served)
            assert await checked(first_home, ports[2]) != health.SERVING
            assert [(await asyncio.to_thread(readiness, port + 1))[0] for port in ports] == [True, False, False]

            async def is_told() -> bool:
                now = (await seen()).values()
                told = {(s.family, s.labels["manager"]): s.value for s in samples_of_managers(now)}
                ready = {address for address in everyone if told.get(("shoal_manager_ready", address)) == 1}
                family = "shoal_manager_seat_unproven_seconds"
                unproven = {address for address in everyone if told.get((family, address), 0.0) > 3}
                return ready == everyone - unproven == {f"127.0.0.1:{ports[0]}"}

            await until("the exporter says which two are not ready", is_told)
            # Frozen for long enough, the second was ended by the first, and finds that out.
            taken = await operator.manager()
            assert taken.takeovers >= 1
            second.send_signal(signal.SIGCONT)
            assert await asyncio.wait_for(second.wait(), WAIT_S) == 2
            assert third.returncode is None

    with (
        postgres_server.running(found) as server,
        object_servers.running("rclone", tmp_path / "objects") as objects,
        mock.patch.dict(os.environ, objects.environment),
        haproxy_server.running(tmp_path, door=front, managers=ports),
    ):
        run(story(server.new()))
