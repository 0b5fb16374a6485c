"""Where devices dial this machine: what an operator says, or what its interfaces say. Sends nothing."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from shoal.errors import Misuse
from shoal.identity.join_code import canonical_host, endpoint
from shoal.identity.listening import EVERYWHERE, families
from shoal.runtime import probe
from shoal.wire.limits import MANAGERS_MAX

#: Any address that is not this machine's own: the system says by which interface it would go there. Set aside for
#: documents (RFC 5737).
_ELSEWHERE = ("192.0.2.1", 9)

_LOOPBACK = (
    "{host} is reachable only from this machine. Restart with `shoal up --advertise HOST`, the name or address at which"
    " devices reach it"
)
_UNKNOWN = (
    "this machine cannot look up {host}: devices must be able to. Add the name to your DNS or to /etc/hosts on every"
    " device, or give `shoal up --advertise` an address"
)
_OTHER_FAMILY = (
    "this machine listens on {listens_on}, which takes no {family} connections, and devices dial {host} over {family}."
    " Start `shoal up` without --host to listen on both, or advertise another address"
)
_NO_NETWORK = (
    "this machine has no network, so the join line holds {host}, which other devices cannot dial. Connect it and start"
    " `shoal up` again, or say `shoal up --advertise HOST`"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reachable:
    """The host that join lines carry; 0: the port is the one that is listened on. ``warning``: why it may not do.
    ``others``: hosts and ports of the cluster's other managers."""

    host: str
    port: int = 0
    warning: str = ""
    others: tuple[tuple[str, int], ...] = ()

    def endpoints(self, listens_on_port: int) -> tuple[str, ...]:
        """Where devices find the managers of this cluster, this one first."""
        return tuple(endpoint(host, port or listens_on_port) for host, port in ((self.host, self.port), *self.others))


def reachable(listens_on: str, advertised: str = "") -> Reachable:
    """Where devices reach a manager that listens there. ``advertised``: a host, and after commas those of others."""
    if advertised:
        (host, port), *others = map(parse_advertised, advertised.split(","))
        if len(others) >= MANAGERS_MAX:
            raise Misuse(f"--advertise names {len(others) + 1} managers: devices keep at most {MANAGERS_MAX}")
        return Reachable(host=host, port=port, warning=_doubt(host, listens_on), others=tuple(others))
    if listens_on not in EVERYWHERE:
        return Reachable(host=listens_on, warning=_doubt(listens_on, listens_on))
    address = own_address()
    if is_loopback(address):
        return Reachable(host=address, warning=_NO_NETWORK.format(host=address))
    return Reachable(host=address)


def own_address() -> str:
    """The address others find this machine at: on its way out or, without one, of the first network it is on."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(_ELSEWHERE)
            return str(asking.getsockname()[0])
        except OSError:
            pass
    try:
        return probe.own_address()
    except Misuse:
        return "127.0.0.1"


def parse_advertised(text: str, *, option: str = "--advertise") -> tuple[str, int]:
    """``HOST`` or ``HOST:PORT``; an IPv6 address with a port has brackets. Port 0: none was given. ``option``: what
    errors call it."""
    host, port = text.strip(), ""
    if host.startswith("["):
        host, _, rest = host[1:].partition("]")
        if rest and not rest.startswith(":"):
            raise Misuse(f"{option} {text!r}: write [ADDRESS]:PORT")
        port = rest[1:] if rest else ""
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
        if not port:
            raise Misuse(f"{option} {text!r}: a port is missing after the colon")
    if port and not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65534):
        # Devices join over the next one.
        raise Misuse(f"{option} {text!r}: the port is a number from 1 to 65534")
    host = canonical_host(host)
    if host in EVERYWHERE:
        raise Misuse(f"{option} {host}: this means every address; name the one that devices dial")
    return host, int(port or 0)


def is_loopback(host: str) -> bool:
    """A device that dials this name would dial itself."""
    return listens_on_loopback(host) or host.endswith(".localhost")


def listens_on_loopback(host: str) -> bool:
    """A server that listens here is reached by this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _doubt(host: str, listens_on: str) -> str:
    if is_loopback(host):
        return _LOOPBACK.format(host=host)
    try:
        dialled = {found[0] for found in socket.getaddrinfo(host, None)}
    except OSError:
        return _UNKNOWN.format(host=host)
    if not dialled & families(listens_on):
        family = "IPv6" if socket.AF_INET6 in dialled else "IPv4"
        return _OTHER_FAMILY.format(listens_on=listens_on, host=host, family=family)
    return ""
