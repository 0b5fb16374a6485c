"""The door for tabs of browsers, as a manager knows it. Provided by a feature.

An origin says where the door is and what it may be: https with a certificate that the operator brings, or http on this
machine's loopback. A page over plain http from elsewhere has no key of its own, and is replaced by anyone on the way.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shoal import features
from shoal.errors import Misuse
from shoal.extras import install_command
from shoal.identity.enrolment import Newcomer
from shoal.identity.identity import Authority, Identity
from shoal.net.base import Service
from shoal.runtime.member_register import MemberRegister
from shoal.runtime.reachable import listens_on_loopback
from shoal.runtime.tab_offers import TabOffer

#: A person reads them on a phone.
WORDS_MAX_CHARS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class TabDoorOptions:
    """``origin``: as a browser shows it, such as ``https://shoal.example:7075``. ``operator`` and ``purpose``: who asks
    visitors to take part, and what for, in the operator's words."""

    origin: str
    certificate: Path | None = None
    key: Path | None = None
    operator: str = ""
    purpose: str = ""

    def __post_init__(self) -> None:
        if not self.origin:
            raise Misuse("the other options of --browser go with --browser ORIGIN")
        if max(len(self.operator), len(self.purpose)) > WORDS_MAX_CHARS:
            raise Misuse(f"--browser-operator and --browser-purpose have at most {WORDS_MAX_CHARS} characters each")
        try:
            parts = urllib.parse.urlsplit(self.origin)
            is_plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
            _ = parts.port
        except ValueError:
            is_plain = False
        if not is_plain or parts.scheme not in ("http", "https") or not parts.hostname:
            raise Misuse(f"--browser {self.origin}: write it as https://NAME:PORT, or http://127.0.0.1:PORT")
        if parts.scheme == "http" and not listens_on_loopback(parts.hostname):
            raise Misuse(
                f"--browser {self.origin} is reached from other machines, so it needs TLS: write https://, and name"
                " --browser-certificate and --browser-key. A browser keeps no key for a page that anyone could replace"
            )
        if (parts.scheme == "https") != (self.certificate is not None and self.key is not None):
            raise Misuse("--browser https://... goes with --browser-certificate and --browser-key, and http:// without")

    @property
    def is_tls(self) -> bool:
        return self.origin.startswith("https:")

    @property
    def host(self) -> str:
        """The name that browsers use."""
        host = urllib.parse.urlsplit(self.origin).hostname or ""
        return f"[{host}]" if ":" in host else host

    @property
    def port(self) -> int:
        port = urllib.parse.urlsplit(self.origin).port
        return (443 if self.is_tls else 80) if port is None else port

    @property
    def listens_on(self) -> str:
        """A name with a certificate may lead to any address of this machine; loopback stays loopback."""
        return "0.0.0.0" if self.is_tls else self.host.strip("[]")


class DoorForTabs(Protocol):
    async def start(self) -> str:
        """Listen; returns the origin, with the port in use."""
        ...

    async def stop(self) -> None: ...


def tab_door(
    options: TabDoorOptions,
    *,
    home: Path,
    authority: Authority,
    identity: Identity,
    service: Service,
    register: MemberRegister,
    on_enrolled: Callable[[Newcomer], None],
    offers: Callable[[], Awaitable[tuple[TabOffer, ...]]],
) -> DoorForTabs:
    try:
        make: Callable[..., DoorForTabs] = features.provided("tab_door")
    except ImportError as error:
        raise Misuse(f"the door for tabs needs more packages: {install_command('browser')} ({error})") from None
    return make(
        options,
        home=home,
        authority=authority,
        identity=identity,
        service=service,
        register=register,
        on_enrolled=on_enrolled,
        offers=offers,
    )
