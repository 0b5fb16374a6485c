"""Whose place a connection takes."""

import asyncio
import socket
import ssl
import time

import pytest

from shoal.identity.reception import Reception, drop, source_of


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no address", "no address"),
    ],
)
def test_one_host_is_one_source(address: str, source: str) -> None:
    assert source_of(address) == source


def test_a_connection_that_is_closed_already_is_dropped_without_a_word() -> None:
    """Python 3.11.2 raises then: `shoal join` failed on slow devices, where the manager hangs up first."""

    class Closed(asyncio.Transport):
        def abort(self) -> None:
            raise AttributeError("'NoneType' object has no attribute '_abort'")

        def is_closing(self) -> bool:
            return True

    async def story() -> None:
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        drop(asyncio.StreamWriter(Closed(), protocol, None, loop))

    asyncio.run(story())


def test_a_door_that_closes_while_a_connection_comes_says_nothing_of_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    """A manager that was stopped for a while finds both at once when it wakes."""

    async def nothing(asked: bytes, address: str) -> tuple[bytes, str]:
        raise AssertionError("nobody asked")

    async def story(listener: socket.socket) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        reception = Reception(listener, context, greeting=b"", answer=nothing, deadline_s=5.0)
        await reception.start()
        assert reception._loop is not None
        reception._loop.call_soon_threadsafe(time.sleep, 0.3)
        with socket.create_connection(listener.getsockname(), timeout=5):
            await reception.stop()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        asyncio.run(asyncio.wait_for(story(listener), 20))
    assert not [record for record in caplog.records if record.name == "asyncio"]
