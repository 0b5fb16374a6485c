"""How a server of Shoal listens: on one address, or on every address of both families, IPv4 and IPv6."""

from __future__ import annotations

import errno
import ipaddress
import socket

#: Each means every address that this machine has, of both families, as it does to gRPC.
EVERYWHERE = ("0.0.0.0", "::")

#: What a system without IPv6 answers.
_NO_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def listen(host: str, port: int, *, backlog: int | None = None) -> socket.socket:
    """Return a socket that listens there. Raises OSError if it cannot."""
    if host in EVERYWHERE and socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
        except OSError as error:
            if host == "::" or error.errno not in _NO_IPV6:
                raise
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def families(host: str) -> set[int]:
    """Return the address families that a server which listens on this host accepts."""
    if host in EVERYWHERE and socket.has_dualstack_ipv6():
        return {socket.AF_INET, socket.AF_INET6}
    return {socket.AF_INET6 if ":" in host else socket.AF_INET}


def plain_address(address: str) -> str:
    """Return an address as people write it: one that came over IPv4 to a socket of both families as IPv4."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return str(mapped) if mapped is not None else address
