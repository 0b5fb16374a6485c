"""Secrets that let a device join: the interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

#: A second manager could pose as the first, so no token makes one.
ENROLLABLE_ROLES = ("node", "browser", "operator")


@dataclass(frozen=True, kw_only=True, slots=True)
class Grant:
    """The secret was good: join under this name and role."""

    node: str
    role: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Denial:
    """The secret was not good, and what the person should do about it."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lapsed:
    """A member whose certificate may be replaced without a session: who it is, and the key it must prove to hold."""

    node: str
    role: str
    key_sha256: str
    #: When a newer certificate of it was first used: from then on this one gets no other.
    superseded_s: float | None = None


class Renewals(Protocol):
    """Members that come back after their certificates ran out. Called on the event loop, so it must be quick."""

    def lapsed(self, certificate_sha256: str, *, now_s: float) -> Lapsed | Denial:
        """Return the owner of an expired certificate, or why it may not have another."""
        ...

    def refuse_replaced(self, lapsed: Lapsed, *, address: str) -> str:
        """Return why a caller that holds a replaced key gets no certificate, and raise an alarm for operators."""
        ...

    def record(self, certificate_pem: bytes, *, now_s: float, replaces: str) -> object:
        """Record an issued certificate before its owner gets it. ``replaces`` is the hash of the earlier one."""
        ...


class Tokens(Protocol):
    """Secrets that let a device join. Called on the event loop, so it must be quick.

    An implementation stores a hash of the secret and never the secret: a copied registry must not let anyone join.
    It counts a use before it returns the grant, and never grants a name that another member holds: a member serves
    as `NODE.shoal`, so two of one name could pose as each other.
    """

    def redeem(
        self, secret: str, *, wanted: str, now_s: float, facts: Mapping[str, str] | None = None
    ) -> Grant | Denial:
        """Use a secret once. ``facts`` is what the device reports about itself; it is recorded with its name."""
        ...
