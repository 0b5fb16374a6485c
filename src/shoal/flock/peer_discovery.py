"""Finds the peers of a flock on the local network by multicast DNS: announces this one and listens for others.

An announcement proves nothing: a peer must show a certificate from the flock's authority when it is dialled.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Mapping
from typing import Any

from shoal.errors import ShoalError
from shoal.identity.discovery import check_installed
from shoal.identity.join_code import endpoint
from shoal.identity.names import is_name
from shoal.wire.limits import PEERS_MAX

KIND = "_shoal-flock._tcp.local."

#: How long to wait for a peer's address, and how often to ask all peers again.
_ASK_MS = 1000
_ASK_EVERY_S = 2.0

#: A peer's name, and the endpoint to dial.
Found = Callable[[str, str], None]


class PeerDiscovery:
    """Announces one peer and listens for others, on one interface, until it is stopped."""

    def __init__(self, *, flock: str, node: str, host: str, port: int, found: Found) -> None:
        check_installed()
        self._flock = flock
        self._node = node
        self._host = host
        self._port = port
        self._found = found
        self._zeroconf: Any = None
        self._service: Any = None
        self._browser: Any = None
        self._names: set[str] = set()
        self._asking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        from zeroconf import Error
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

        self._service = AsyncServiceInfo(
            KIND,
            f"{self._node}-{self._flock[-8:]}"[-63:].lstrip("-") + f".{KIND}",
            addresses=[ipaddress.ip_address(self._host).packed],
            port=self._port,
            properties={"v": "1", "flock": self._flock, "node": self._node},
            server=f"shoal-{self._node}-{self._flock[-8:]}.local.",
        )
        self._zeroconf = AsyncZeroconf(interfaces=[self._host])
        try:
            await self._zeroconf.async_register_service(self._service, cooperating_responders=True)
        except BaseException as error:
            await self._zeroconf.async_close()
            self._zeroconf = None
            if isinstance(error, Error | OSError):
                raise ShoalError(
                    f"the network refused the announcement: {error!r}. Name the peers with --peer"
                ) from error
            raise
        self._browser = AsyncServiceBrowser(self._zeroconf.zeroconf, KIND, handlers=[self._heard])
        self._asking = asyncio.create_task(self._ask())

    def _heard(self, *, name: str, **_: object) -> None:
        if len(self._names) < PEERS_MAX:
            self._names.add(name)

    async def _ask(self) -> None:
        """Ask for addresses again and again: a peer that restarted may have another one."""
        from zeroconf import IPVersion
        from zeroconf.asyncio import AsyncServiceInfo

        while True:
            for name in sorted(self._names):
                service = AsyncServiceInfo(KIND, name)
                if await service.async_request(self._zeroconf.zeroconf, _ASK_MS):
                    addresses = service.addresses_by_version(IPVersion.All)
                    for peer, where in heard_of(service.properties, addresses, service.port, flock=self._flock):
                        if peer != self._node:
                            self._found(peer, where)
            await asyncio.sleep(_ASK_EVERY_S)

    async def stop(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        if self._zeroconf is not None:
            await self._browser.async_cancel()
            await self._zeroconf.async_unregister_service(self._service)
            await self._zeroconf.async_close()
            self._zeroconf = None


def heard_of(
    said: Mapping[bytes, bytes | None], addresses: list[bytes], port: int | None, *, flock: str
) -> list[tuple[str, str]]:
    """Return the peers of this flock and their endpoints in an announcement. Empty if it is invalid."""
    try:
        theirs, node = ((said.get(key) or b"").decode("ascii") for key in (b"flock", b"node"))
        hosts = [str(ipaddress.ip_address(address)) for address in addresses]
    except (UnicodeDecodeError, ValueError):
        return []
    if theirs != flock or not is_name(node) or not port or not 1 <= port <= 65535:
        return []
    return [(node, endpoint(host, port)) for host in hosts[:1]]
