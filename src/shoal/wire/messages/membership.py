"""Who may be a member: tokens, approval, revocation, certificates."""

from __future__ import annotations

from dataclasses import field

from shoal.errors import Misuse, PeerViolation
from shoal.where import parse_labels
from shoal.wire.limits import SEAL_CARD_MAX_BYTES
from shoal.wire.messages.base import Message, message


@message()
class TokenView(Message):
    """A join secret as people see it: never the secret itself."""

    #: The start of the secret's hash: enough to name it, of no use to anyone who wants to join.
    token: str
    role: str
    uses_left: int
    #: Seconds since 1970 by the manager's clock; 0: never.
    expires_s: float = 0.0
    made_s: float = 0.0
    label: str = ""


@message(to="manager", said_by={"Operate": ("operator",)})
class MakeToken(Message):
    """Let this many devices, or operators, join within this time."""

    role: str = "node"
    uses: int = 1
    valid_s: float = 86400.0
    label: str = ""


@message()
class TokenMade(Message):
    """The only time that the line is told: the manager keeps a hash of its secret."""

    token: TokenView
    join_line: str = field(repr=False)


@message(to="manager", said_by={"Operate": ("operator",)})
class AskTokens(Message):
    """Every token, or those whose id starts so."""

    token: str = ""


@message()
class TokenList(Message):
    tokens: tuple[TokenView, ...] = ()


@message(to="manager", said_by={"Operate": ("operator",)})
class RevokeToken(Message):
    """Nobody joins with this token from now on. Devices that joined with it stay."""

    token: str


@message(to="manager", said_by={"Operate": ("operator",)})
class RevokeNode(Message):
    """Shut a member out, now and for good."""

    node: str
    reason: str = ""


@message(to="manager", said_by={"Operate": ("operator",)})
class ApproveNode(Message):
    """A newcomer may work from now on. With a card, it may also be in groups of sealed jobs with signed members."""

    node: str
    #: Signed by the operator (``identity.cards``); empty if it signed none.
    card: bytes = field(repr=False, default=b"")

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if len(self.card) > SEAL_CARD_MAX_BYTES:
            raise PeerViolation(f"ApproveNode.card has {len(self.card)} bytes; the maximum is {SEAL_CARD_MAX_BYTES}")


@message(to="manager", said_by={"Operate": ("operator",)})
class DrainNode(Message):
    """Let a node finish what it has, and give it nothing more."""

    node: str
    reason: str = ""


@message(to="manager", said_by={"Operate": ("operator",)})
class UndrainNode(Message):
    node: str


@message(to="manager", said_by={"Operate": ("operator",)})
class LabelNode(Message):
    """Say what a device is, ``NAME=VALUE`` each. The operator's word wins over the device's own; an empty value takes
    the operator's word back."""

    node: str
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        try:
            parse_labels(self.labels)
        except Misuse as error:
            raise PeerViolation(str(error)) from error


@message(to="manager", said_by={"Operate": ("operator",)})
class ForgetNode(Message):
    """A member that is lost or revoked is not listed any more, and does not come back without a new line."""

    node: str


@message(to="manager", said_by={"Renew": ("node", "pending", "operator")})
class Renew(Message):
    """A member asks for a certificate that replaces its own. Its session says who it is; the request, for which key."""

    csr_pem: str


@message()
class Renewed(Message):
    certificate_pem: str
    #: By the manager's clock.
    issued_s: float
    expires_s: float
