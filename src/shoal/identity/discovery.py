"""Clusters on the local network, by multicast DNS: where they are and how to recognise them.

The announcements grant nothing and are not authenticated: anyone on the network can send them. Joining takes a line
with a secret, which also pins the cluster's authority. Needs the package `zeroconf` (the extra `discovery`), imported
where it is used.
"""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shoal.errors import Misuse, ShoalError
from shoal.identity.join_code import PINNED_BYTES, endpoint
from shoal.identity.names import check_name, is_name

KIND = "_shoal._tcp.local."

#: Enough for a household; a flood of names is not listed.
FOUND_MAX = 100

#: What one cluster may take to say where it is.
_ASK_MS = 1000

_FINGERPRINT = re.compile(rf"[0-9a-f]{{{2 * PINNED_BYTES}}}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A cluster that says it is there."""

    cluster: str
    host: str
    #: Where devices join.
    port: int
    #: The hash of its authority, as far as a join line pins it.
    fingerprint: str

    @property
    def endpoint(self) -> str:
        return endpoint(self.host, self.port)


def is_installed() -> bool:
    return importlib.util.find_spec("zeroconf") is not None


def check_installed(what: str = "looking for clusters on the network", otherwise: str = "") -> None:
    """``otherwise``: what to do where it cannot be installed."""
    if not is_installed():
        raise Misuse(f"{what} needs one more package on this device: pip install zeroconf{otherwise}")


class Announcement:
    """Says on the network that a cluster is here, until it is stopped."""

    def __init__(self, *, cluster: str, host: str, port: int, authority_sha256: bytes) -> None:
        check_installed()
        check_name("cluster", cluster)
        self._found = Found(
            cluster=cluster, host=_address(host), port=port, fingerprint=authority_sha256[:PINNED_BYTES].hex()
        )
        self._zeroconf: Any = None
        self._service: Any = None

    async def start(self) -> None:
        from zeroconf import Error
        from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

        found = self._found
        # Two clusters may have one name: the fingerprint keeps their names on the network apart.
        name = f"{found.cluster}-{found.fingerprint[:8]}"
        address = ipaddress.ip_address(found.host)
        self._service = AsyncServiceInfo(
            KIND,
            f"{name[-63:].lstrip('-')}.{KIND}",
            addresses=[address.packed],
            port=found.port,
            properties={"v": "1", "cluster": found.cluster, "ca": found.fingerprint},
            server=f"shoal-{found.fingerprint[:16]}.local.",
        )
        # On the network where devices are to reach it, and on no other.
        self._zeroconf = AsyncZeroconf(interfaces=[found.host])
        try:
            await self._zeroconf.async_register_service(self._service, cooperating_responders=True)
        except BaseException as error:
            await self._zeroconf.async_close()
            self._zeroconf = None
            if isinstance(error, Error):
                raise ShoalError(f"the network does not take the announcement: {error!r}") from error
            raise

    async def stop(self) -> None:
        if self._zeroconf is not None:
            await self._zeroconf.async_unregister_service(self._service)
            await self._zeroconf.async_close()
            self._zeroconf = None


async def find(*, seconds: float, interfaces: Sequence[str] = ()) -> list[Found]:
    """The clusters that answer within this time, in the order of their names. Where no interface is named: on all."""
    check_installed()
    from zeroconf import InterfaceChoice, IPVersion
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

    names: dict[str, None] = {}

    def heard(*, name: str, **_: object) -> None:
        if len(names) < FOUND_MAX:
            names[name] = None

    browsing = AsyncZeroconf(interfaces=list(interfaces) or InterfaceChoice.All)
    try:
        browser = AsyncServiceBrowser(browsing.zeroconf, KIND, handlers=[heard])
        await asyncio.sleep(seconds)
        await browser.async_cancel()
        found = []
        for name in names:
            service = AsyncServiceInfo(KIND, name)
            if await service.async_request(browsing.zeroconf, _ASK_MS):
                found += heard_of(service.properties, service.addresses_by_version(IPVersion.All), service.port)
    finally:
        await browsing.async_close()
    return sorted(set(found), key=lambda each: (each.cluster, each.endpoint, each.fingerprint))


def heard_of(said: Mapping[bytes, bytes | None], addresses: Sequence[bytes], port: int | None) -> list[Found]:
    """Return the clusters in an announcement, or nothing if it is malformed. A terminal shows them."""
    try:
        cluster, fingerprint = ((said.get(key) or b"").decode("ascii") for key in (b"cluster", b"ca"))
        hosts = [str(ipaddress.ip_address(address)) for address in addresses]
    except (UnicodeDecodeError, ValueError):
        return []
    if not (is_name(cluster) and _FINGERPRINT.fullmatch(fingerprint) and port and 1 <= port <= 65535):
        return []
    return [Found(cluster=cluster, host=host, port=port, fingerprint=fingerprint) for host in hosts]


def _address(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return socket.gethostbyname(host)
    except OSError as error:
        raise Misuse(f"{host!r} has no address to announce ({error}): give `shoal up` one with --host") from error
