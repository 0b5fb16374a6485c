"""The documented HAProxy: what it says is what is tested, and HAProxy itself can read it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.identity import health
from shoal.identity.certificates import issue, new_authority, new_request
from shoal.identity.names import RemoteIdentity
from testbed.servers import haproxy_server

pytestmark = pytest.mark.timeout(120)

WAIT_S = 60.0


def test_every_address_of_the_configuration_is_replaced() -> None:
    text = haproxy_server.configuration(20_000, (20_010, 20_020, 20_030))
    assert text.count("bind 127.0.0.1:2000") == 2
    assert "server b 127.0.0.1:20020 port 20021" in text
    assert "server c 127.0.0.1:20031 track managers/c" in text
    assert "mode tcp" in text, "TLS passes through"


def test_haproxy_reads_it(tmp_path: Path) -> None:
    if why := haproxy_server.missing():
        pytest.skip(why)
    path = tmp_path / "haproxy.cfg"
    path.write_text(haproxy_server.configuration(20_000, (20_010, 20_020, 20_030)))
    read = subprocess.run([haproxy_server.program(), "-c", "-f", str(path)], capture_output=True, text=True, timeout=30)
    assert read.returncode == 0, read.stderr


def test_haproxy_starts_under_any_limit_on_open_files(tmp_path: Path) -> None:
    if why := haproxy_server.missing():
        pytest.skip(why)
    door = haproxy_server.free_pair()
    (tmp_path / "haproxy.cfg").write_text(haproxy_server.configuration(door, (20_010, 20_020, 20_030)))
    limited = ["prlimit", "--nofile=1000", haproxy_server.program(), "-db", "-f", str(tmp_path / "haproxy.cfg")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(limited, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until_s = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", door), timeout=WAIT_S):
                break
            told = (tmp_path / "log").read_text(errors="replace")
            assert process.poll() is None, told
            assert time.monotonic() < until_s, told
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait(timeout=30)


@contextlib.contextmanager
def manager(folder: Path) -> Iterator[int]:
    """A port that greets each connection with a byte, and the next one, which is ready, as HAProxy's check asks."""
    authority = new_authority("home", valid_days=1, now_s=time.time())
    asked = new_request("manager")
    named = RemoteIdentity(cluster="home", role="node", node="manager")
    pem = issue(authority, asked.pem, named, serves=True, hosts=("127.0.0.1",), valid_days=1, now_s=time.time())
    (folder / "chain.pem").write_bytes(pem + asked.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "chain.pem")
    context.set_alpn_protocols([health.ALPN])
    port = haproxy_server.free_pair()
    over = threading.Event()

    def greet(listening: socket.socket) -> None:
        listening.settimeout(0.1)
        while not over.is_set():
            with contextlib.suppress(OSError):
                connection = listening.accept()[0]
                with connection:
                    connection.settimeout(WAIT_S)
                    if listening is checked:
                        with context.wrap_socket(connection, server_side=True) as asking:
                            asking.sendall(health.answer(asking.recv(4096), ""))
                    else:
                        connection.sendall(b"m")

    with (
        socket.create_server(("127.0.0.1", port), backlog=512) as greeting,
        socket.create_server(("127.0.0.1", port + 1), backlog=512) as checked,
    ):
        threads = [threading.Thread(target=greet, args=(each,), daemon=True) for each in (greeting, checked)]
        for thread in threads:
            thread.start()
        try:
            yield port
        finally:
            over.set()
            for thread in threads:
                thread.join(WAIT_S)


def dial(door: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", door), timeout=WAIT_S, source_address=(source, 0))


def is_greeted(connection: socket.socket) -> bool:
    with connection:
        try:
            return connection.recv(1) == b"m"
        except OSError:
            return False


def gets_in(door: int, source: str) -> bool:
    # One that is cut may be reset before it is connected.
    try:
        return is_greeted(dial(door, source))
    except OSError:
        return False


def test_an_address_that_floods_is_cut_and_another_gets_in(tmp_path: Path) -> None:
    if why := haproxy_server.missing():
        pytest.skip(why)
    door = haproxy_server.free_pair()
    with manager(tmp_path) as port, haproxy_server.running(tmp_path, door=door, managers=(port, port, port)):
        until_s = time.monotonic() + WAIT_S
        while not gets_in(door, "127.0.0.3"):
            assert time.monotonic() < until_s, "no manager is up"
            time.sleep(0.1)
        let_in, cut, began_s = 0, 0, time.monotonic()
        # A slow machine may need several waves until one comes faster than the limit.
        while not cut:
            assert time.monotonic() < until_s, "the flood was never cut"
            wave: list[socket.socket] = []
            for _ in range(300):
                try:
                    wave.append(dial(door, "127.0.0.1"))
                except OSError:
                    cut += 1
            # Before any connection of the wave is closed here.
            other_gets_in = gets_in(door, "127.0.0.2")
            greeted = sum([is_greeted(connection) for connection in wave])
            let_in, cut = let_in + greeted, cut + len(wave) - greeted
            assert other_gets_in, "another address is shut out by the flood"
        # 50 each second, by a window that slides: at most as many again at its beginning.
        assert let_in <= 50 * (time.monotonic() - began_s + 2)
        # It is let in again once it has slowed down.
        while not gets_in(door, "127.0.0.1"):
            assert time.monotonic() < until_s, "the address stays shut out"
            time.sleep(0.2)
