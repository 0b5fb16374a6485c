"""Membership: tokens, approval, revocation, certificates."""

from __future__ import annotations

from dataclasses import field

from shoal.errors import Misuse, PeerViolation
from shoal.where import parse_labels
from shoal.wire.limits import SEAL_CARD_MAX_BYTES
from shoal.wire.messages.base import Message, message


@message()
class TokenView(Message):
    """A token as people see it, without its secret."""

    #: The start of the secret's hash: it names the token, and nobody can join with it.
    token: str
    role: str
    uses_left: int
    #: Seconds since 1970 by the manager's clock. ``expires_s`` is 0 if the token does not expire.
    expires_s: float = 0.0
    made_s: float = 0.0
    label: str = ""


@message(to="manager", said_by={"Operate": ("operator",)})
class MakeToken(Message):
    """Let ``uses`` devices, or operators, join within ``valid_s``."""

    role: str = "node"
    uses: int = 1
    valid_s: float = 86400.0
    label: str = ""


@message()
class TokenMade(Message):
    """The join line of a new token. It is sent only once: the manager keeps only a hash of the secret."""

    token: TokenView
    join_line: str = field(repr=False)


@message(to="manager", said_by={"Operate": ("operator",)})
class AskTokens(Message):
    """Ask for every token, or for those whose id begins with ``token``."""

    token: str = ""


@message()
class TokenList(Message):
    tokens: tuple[TokenView, ...] = ()


@message(to="manager", said_by={"Operate": ("operator",)})
class RevokeToken(Message):
    """Let nobody join with this token from now on. Devices that joined with it stay members."""

    token: str


@message(to="manager", said_by={"Operate": ("operator",)})
class RevokeNode(Message):
    """Exclude a member, now and for good."""

    node: str
    reason: str = ""


@message(to="manager", said_by={"Operate": ("operator",)})
class ApproveNode(Message):
    """Let a new device work. With a card, it may also be in groups of sealed jobs with signed members."""

    node: str
    #: Signed by the operator (``identity.cards``). Empty if the operator signed none.
    card: bytes = field(repr=False, default=b"")

    def _check(self) -> None:
        if len(self.card) > SEAL_CARD_MAX_BYTES:
            raise PeerViolation(f"ApproveNode.card has {len(self.card)} bytes; the maximum is {SEAL_CARD_MAX_BYTES}")


@message(to="manager", said_by={"Operate": ("operator",)})
class DrainNode(Message):
    """Let a node finish its lease, and give it no more work."""

    node: str
    reason: str = ""


@message(to="manager", said_by={"Operate": ("operator",)})
class UndrainNode(Message):
    node: str


@message(to="manager", said_by={"Operate": ("operator",)})
class LabelNode(Message):
    """Set a device's labels, each ``NAME=VALUE``. They override the device's own; an empty value removes the operator's
    label."""

    node: str
    labels: tuple[str, ...]

    def _check(self) -> None:
        try:
            parse_labels(self.labels)
        except Misuse as error:
            raise PeerViolation(str(error)) from error


@message(to="manager", said_by={"Operate": ("operator",)})
class ForgetNode(Message):
    """Stop listing a lost or revoked member. It needs a new join line to come back."""

    node: str


@message(to="manager", said_by={"Renew": ("node", "pending", "operator")})
class Renew(Message):
    """A member asks for a certificate that replaces its own. The session identifies it; the request has the key."""

    csr_pem: str


@message()
class Renewed(Message):
    certificate_pem: str
    #: By the manager's clock.
    issued_s: float
    expires_s: float
