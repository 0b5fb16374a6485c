"""Entries that members add to shared sets, and what an operator decides about them."""

from __future__ import annotations

from shoal.errors import PeerViolation
from shoal.wire.limits import CONTRIBUTION_MAX_BYTES, SETTLED_MAX
from shoal.wire.messages.base import Message, is_id, is_sha256, message


def _check_set(kind: str, name: str) -> None:
    if not is_id(name):
        raise PeerViolation(f"{kind}.set is {name[:80]!r}; it must be 1 to 63 of a-z, 0-9 and -")


@message(to="manager", said_by={"Store": ("node",)})
class Contribute(Message):
    """Add a file of labelled entries to a shared set. The file's chunks follow."""

    set: str
    sha256: str
    size_bytes: int

    def _check(self) -> None:
        _check_set("Contribute", self.set)
        if not is_sha256(self.sha256):
            raise PeerViolation(f"Contribute.sha256 is {self.sha256[:80]!r}; it must be a SHA-256 in hexadecimal")
        if not 1 <= self.size_bytes <= CONTRIBUTION_MAX_BYTES:
            raise PeerViolation(
                f"Contribute.size_bytes is {self.size_bytes}; it must be between 1 and {CONTRIBUTION_MAX_BYTES}"
            )


@message(to="manager", said_by={"Operate": ("operator",)})
class AskContributions(Message):
    """Ask for a page of what members added to a shared set, or to any, in the order in which they did."""

    set: str = ""
    #: Only contributions after this number.
    after: int = 0

    def _check(self) -> None:
        if self.set:
            _check_set("AskContributions", self.set)


@message()
class ContributionView(Message):
    """A file of entries, and the certificate that gave it."""

    number: int
    set: str
    sha256: str
    node: str
    #: The hash of the certificate that its contributor showed.
    certificate: str
    entries: int
    size_bytes: int
    at_s: float
    #: ``pending``, ``approved`` or ``rejected``.
    state: str
    #: The operator who decided. Empty while it is pending.
    by: str = ""

    def _check(self) -> None:
        # Operators keep files by these names.
        _check_set("ContributionView", self.set)
        if not is_sha256(self.sha256):
            raise PeerViolation(f"ContributionView.sha256 is {self.sha256[:80]!r}; it must be a SHA-256 in hexadecimal")


@message()
class ContributionList(Message):
    contributions: tuple[ContributionView, ...] = ()
    #: The number after which the next page begins. 0 if this is the last page.
    next_number: int = 0


@message(to="manager", said_by={"Operate": ("operator",)})
class SettleContributions(Message):
    """Approve contributions by their hashes, or reject them for good. All of them or none."""

    set: str
    sha256s: tuple[str, ...]
    #: False rejects them.
    approve: bool

    def _check(self) -> None:
        _check_set("SettleContributions", self.set)
        if not 1 <= len(self.sha256s) <= SETTLED_MAX:
            raise PeerViolation(
                f"SettleContributions.sha256s has {len(self.sha256s)} hashes; it must have 1 to {SETTLED_MAX}"
            )
        if not all(map(is_sha256, self.sha256s)):
            raise PeerViolation("SettleContributions.sha256s has a text that is not a SHA-256 in hexadecimal")
