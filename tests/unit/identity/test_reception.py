"""Whose place a connection takes."""

import asyncio

import pytest

from shoal.identity.reception import drop, source_of


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
