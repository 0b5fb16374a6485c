"""Tokens that live as long as the process."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from shoal.errors import Misuse
from shoal.identity.join_code import new_secret
from shoal.identity.tokens import ENROLLABLE_ROLES, Denial, Grant


def free_name(wanted: str, taken: Container[str]) -> str | None:
    """Return `wanted`, or `wanted-2`, `wanted-3`, ... because many boards are called raspberrypi. None if a thousand
    names are taken."""
    for count in range(1, 1001):
        suffix = "" if count == 1 else f"-{count}"
        if (name := wanted[: 63 - len(suffix)] + suffix) not in taken:
            return name
    return None


@dataclass(kw_only=True, slots=True)
class _Token:
    digest: bytes
    role: str
    expires_s: float
    uses_left: int | None  # None if it is not limited


class MemoryTokens:
    """Tokens that live as long as the process: for tests and throw-away clusters."""

    def __init__(self, *, taken: Iterable[str] = ()) -> None:
        """`taken` are the names of members that did not join through here, the manager first of all."""
        self._tokens: list[_Token] = []
        self._taken = set(taken)

    def create(self, *, valid_s: float, now_s: float, role: str = "node", uses: int | None = 1) -> str:
        """A new secret for `uses` devices (None: any number) during `valid_s`. It is shown once and not kept."""
        if role not in ENROLLABLE_ROLES:
            raise Misuse(f"a token makes one of {', '.join(ENROLLABLE_ROLES)}, not {role!r}")
        if valid_s <= 0 or (uses is not None and uses < 1):
            raise Misuse("a token is valid for a positive time and at least one use")
        secret = new_secret()
        digest = secret_hash(secret)
        self._tokens.append(_Token(digest=digest, role=role, expires_s=now_s + valid_s, uses_left=uses))
        return secret

    def redeem(
        self, secret: str, *, wanted: str, now_s: float, facts: Mapping[str, str] | None = None
    ) -> Grant | Denial:
        token = self._find(secret)
        if token is None:
            return Denial(reason="this join line is not known here: ask the manager for a new one")
        if now_s >= token.expires_s:
            return Denial(reason="this join line has expired: ask the manager for a new one")
        if token.uses_left == 0:
            return Denial(reason="this join line was used up: ask the manager for a new one")
        node = free_name(wanted, self._taken)
        if node is None:
            return Denial(reason=f"too many devices are called {wanted}: choose another name")
        if token.uses_left is not None:
            token.uses_left -= 1
        self._taken.add(node)
        return Grant(node=node, role=token.role)

    def _find(self, secret: str) -> _Token | None:
        # Every token is compared, in constant time: how long a refusal takes says nothing about how near it was.
        digest, found = secret_hash(secret), None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found


def secret_hash(secret: str) -> bytes:
    """Return the hash of a secret, which a registry keeps in its place. 128 random bits need no salt."""
    return hashlib.sha256(secret.encode()).digest()
