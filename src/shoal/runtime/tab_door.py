"""The door for tabs of browsers, as a manager knows it. Provided by a feature.

An origin says where the door is and what it may be: https with a certificate that the operator brings, or http on this
machine's loopback. A page over plain http from elsewhere has no key of its own, and is replaced by anyone on the way.
"""

from __future__ import annotations

import re
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
#: Each is compared with every request, and all of them are in a header of every answer.
ORIGINS_MAX = 32
_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?|\[[0-9a-f:.]+\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class TabDoorOptions:
    """``origin``: as a browser shows it, such as ``https://shoal.example:7075``. ``operator`` and ``purpose``: who asks
    visitors to take part, and what for, in the operator's words. ``origins``: other sites whose pages may use the door,
    and show its page in a frame of theirs."""

    origin: str
    certificate: Path | None = None
    key: Path | None = None
    operator: str = ""
    purpose: str = ""
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.origin:
            raise Misuse("the other options of --browser go with --browser ORIGIN")
        if max(len(self.operator), len(self.purpose)) > WORDS_MAX_CHARS:
            raise Misuse(f"--browser-operator and --browser-purpose have at most {WORDS_MAX_CHARS} characters each")
        parts = _origin_parts(self.origin)
        if parts is None:
            raise Misuse(f"--browser {self.origin}: write it as https://NAME:PORT, or http://127.0.0.1:PORT")
        if parts.scheme == "http" and not listens_on_loopback(parts.hostname or ""):
            raise Misuse(
                f"--browser {self.origin} is reached from other machines, so it needs TLS: write https://, and name"
                " --browser-certificate and --browser-key. A browser keeps no key for a page that anyone could replace"
            )
        if (parts.scheme == "https") != (self.certificate is not None and self.key is not None):
            raise Misuse("--browser https://... goes with --browser-certificate and --browser-key, and http:// without")
        self._check_origins()

    def _check_origins(self) -> None:
        """Raise Misuse if an origin of others is not written as browsers write it, or anyone could pose as it."""
        if len(self.origins) > ORIGINS_MAX:
            raise Misuse(f"--browser-origin was given {len(self.origins)} times. {ORIGINS_MAX} is the most.")
        for origin in self.origins:
            parts = _origin_parts(origin)
            if parts is None or origin.lower() != _as_browsers_name(parts):
                raise Misuse(
                    f"--browser-origin {origin}: write it as https://NAME or https://NAME:PORT, without a path, and"
                    " without a port that is the scheme's own"
                )
            if parts.scheme == "http" and not listens_on_loopback(parts.hostname or ""):
                raise Misuse(
                    f"--browser-origin {origin} has no TLS, so anyone on the way could replace its page. Write https://,"
                    " or http://127.0.0.1:PORT for a page of this machine"
                )

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


def _origin_parts(origin: str) -> urllib.parse.SplitResult | None:
    """Return the parts of an origin, or None if the text is not one."""
    try:
        parts = urllib.parse.urlsplit(origin)
        _ = parts.port
    except ValueError:
        return None
    is_plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
    return parts if is_plain and parts.scheme in ("http", "https") and parts.hostname else None


def _as_browsers_name(parts: urllib.parse.SplitResult) -> str | None:
    """Return an origin as browsers send it, or None if its host is not one. A header lists it: a space or a semicolon
    in it would let other sites in."""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    is_usual = parts.port in (None, 443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{host}{'' if is_usual else f':{parts.port}'}" if _HOST.fullmatch(host) else None


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
