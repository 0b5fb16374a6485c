"""Who may use the console: a link that opens once, tokens typed once, sessions in memory.

Secrets are kept as hashes and compared by them, so that the time of an answer reveals nothing about a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

#: 192 bits, as text that fits into a link.
_SECRET_BYTES = 24

LINK_S = 60.0
SESSION_S = 12 * 3600.0
SESSIONS_MAX = 64
LINKS_MAX = 8

#: How often one address may try to log in per minute, and how many addresses are remembered.
ATTEMPTS = 5
ATTEMPTS_S = 60.0
ADDRESSES_MAX = 1024

VIEWER, OPERATOR = "viewer", "operator"


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A browser that was let in."""

    #: The number of the session in this run, by which logs name it.
    number: int
    role: str
    address: str
    until_s: float
    #: Sent with the page and returned with each act: another site cannot read it.
    csrf: str = field(repr=False)
    #: Sent with every request for data. A browser sends the cookie to every port of its host (RFC 6265, 8.5); it keeps
    #: this key for the console's own port, where no server on another port can read it.
    key: str = field(repr=False)

    def __str__(self) -> str:
        return f"session {self.number} from {self.address}"


class TooManyAttempts(Exception):
    """This address tried too often, and must wait a minute."""


class ConsoleAccess:
    """``clock`` gives seconds that never go back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: Hash of a link's secret -> its role, and until when.
        self._links: dict[bytes, tuple[str, float]] = {}
        #: Hash of a token -> its role. A token lasts as long as the console does.
        self._tokens: dict[bytes, str] = {}
        self._sessions: dict[bytes, BrowserSession] = {}
        self._attempts: dict[str, deque[float]] = {}
        self._count = 0

    # Secrets that are given out ---------------------------------------------------------------------------

    def new_link(self, role: str = OPERATOR) -> str:
        """Return the secret of a link that opens once, within a minute."""
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        while len(self._links) >= LINKS_MAX:
            del self._links[next(iter(self._links))]
        self._links[_hash(secret)] = (role, self._clock() + LINK_S)
        return secret

    def new_token(self, role: str) -> str:
        """Return a secret to type on the page that asks for it, on any number of screens."""
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        self._tokens[_hash(secret)] = role
        return secret

    # Sessions -------------------------------------------------------------------------------------------

    def open_link(self, secret: str, address: str) -> tuple[str, BrowserSession] | None:
        """Return a cookie's value and its session, or None if the link was used, is too old, or never existed."""
        role, until_s = self._links.pop(_hash(secret), ("", 0.0))
        return self._begin(role, address) if role and self._clock() < until_s else None

    def log_in(self, token: str, address: str) -> tuple[str, BrowserSession] | None:
        """Return a cookie's value and its session for a typed token, or None if the token is wrong."""
        self._count_attempt(address)
        wanted, role = _hash(token), ""
        for known, its_role in self._tokens.items():
            if hmac.compare_digest(known, wanted):
                role = its_role
        return self._begin(role, address) if role else None

    def session(self, cookie: str) -> BrowserSession | None:
        """Return the session of a cookie's value, or None if there is none or it has ended."""
        place = _hash(cookie)
        found = self._sessions.get(place)
        if found is not None and found.until_s <= self._clock():
            del self._sessions[place]
            return None
        return found

    def end(self, cookie: str) -> None:
        self._sessions.pop(_hash(cookie), None)

    def _begin(self, role: str, address: str) -> tuple[str, BrowserSession]:
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        self._count += 1
        cookie = secrets.token_urlsafe(_SECRET_BYTES)
        session = BrowserSession(
            number=self._count,
            role=role,
            address=address,
            until_s=self._clock() + SESSION_S,
            csrf=secrets.token_urlsafe(_SECRET_BYTES),
            key=secrets.token_urlsafe(_SECRET_BYTES),
        )
        self._sessions[_hash(cookie)] = session
        return cookie, session

    def _count_attempt(self, address: str) -> None:
        now_s = self._clock()
        times = self._attempts.pop(address, None) or deque(maxlen=ATTEMPTS)
        # Ordered by the latest attempt: the address that has been quiet longest is forgotten first.
        self._attempts[address] = times
        while len(self._attempts) > ADDRESSES_MAX:
            del self._attempts[next(iter(self._attempts))]
        if len(times) == ATTEMPTS and now_s - times[0] < ATTEMPTS_S:
            raise TooManyAttempts
        times.append(now_s)


def is_csrf(session: BrowserSession, told: str) -> bool:
    return hmac.compare_digest(session.csrf.encode(), told.encode("utf-8", "replace"))


def is_key(session: BrowserSession, told: str) -> bool:
    return hmac.compare_digest(session.key.encode(), told.encode("utf-8", "replace"))


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
