"""Sealed sums: keys of devices, groups, and the messages that open a sum (``shoal.sealing``).

They are small, but use the work stream: each follows an offer, an upload or a lease, and must not overtake it.
"""

from __future__ import annotations

from dataclasses import field

from shoal.errors import PeerViolation
from shoal.wire.limits import (
    SEAL_CARD_MAX_BYTES,
    SEAL_CERTIFICATE_MAX_BYTES,
    SEAL_EDGES_MAX_BYTES,
    SEAL_GROUP_MAX,
    SEAL_HELPER_MAX_BYTES,
    SEAL_PARTS_MAX_BYTES,
    SEAL_SIGNATURE_MAX_BYTES,
)
from shoal.wire.messages.base import Message, Tensors, message

PUBLIC_KEY_BYTES = 32
NONCE_BYTES = 16
DIGEST_BYTES = 32

#: The form of the protocol of sealed sums. Form 1 revealed edges before members had compared what each was sent.
SEAL_FORM = 2


def _check_sizes(of: Message, **most: int) -> None:
    for name, size in most.items():
        if len(getattr(of, name)) > size:
            raise PeerViolation(f"{type(of).__name__}.{name} has {len(getattr(of, name))} bytes; the maximum is {size}")


@message()
class MemberKey(Message):
    """A device's key for the sealed sums of one job and term, signed by its certificate's key."""

    node: str
    public: bytes
    #: A random number of the device. The members' nonces together decide which of them are neighbours.
    nonce: bytes
    signature: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    #: The form of the protocol that the device uses (``SEAL_FORM``). Devices with different forms share no group.
    form: int = 1
    #: The device's card (``identity.cards``), and its card key's signature over the bytes that ``signature`` covers.
    #: Empty if the plan does not ask for signed members.
    card: bytes = field(repr=False, default=b"")
    card_signature: bytes = field(repr=False, default=b"")

    def _check(self) -> None:
        if len(self.public) != PUBLIC_KEY_BYTES or len(self.nonce) != NONCE_BYTES:
            raise PeerViolation(
                f"MemberKey has a key of {len(self.public)} and a nonce of {len(self.nonce)} bytes; they must have"
                f" {PUBLIC_KEY_BYTES} and {NONCE_BYTES}"
            )
        _check_sizes(
            self,
            signature=SEAL_SIGNATURE_MAX_BYTES,
            certificate=SEAL_CERTIFICATE_MAX_BYTES,
            card=SEAL_CARD_MAX_BYTES,
            card_signature=SEAL_SIGNATURE_MAX_BYTES,
        )


@message(to="leader", said_by={"Work": ("node", "worker")}, cost=20.0)
class SealKey(Message):
    """A worker's key, sent once per term."""

    job: str
    term: int
    key: MemberKey


@message(to="worker", answered_by={"Work": ("manager", "node")})
class SealRoster(Message):
    """The keys of all workers that may be in a group. Groups refer to their order."""

    job: str
    term: int
    #: Counts a leader's rosters.
    roster: int
    keys: tuple[MemberKey, ...]

    def _check(self) -> None:
        names = [key.node for key in self.keys]
        if len(names) > SEAL_GROUP_MAX or len(set(names)) != len(names):
            raise PeerViolation(
                f"SealRoster.keys has {len(names)} keys; it must have at most {SEAL_GROUP_MAX}, and one per device"
            )


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Bind(Message):
    """The group in which an offered update must be sealed. It is sent after training, so no member waits for another
    to train."""

    job: str
    term: int
    lease: int
    #: Counts a leader's groups.
    group: int
    roster: int
    #: Bits over the roster.
    members: bytes
    #: The largest value, as a power of two, and the largest number of examples of an update.
    bound: int
    weight_most: int
    #: The formation whose aggregators get the words. 0 if they go directly to the leader.
    formation: int = 0
    #: Under the codec ``led``: the indices of the values that the words cover.
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def _check(self) -> None:
        _check_sizes(self, members=SEAL_GROUP_MAX // 8)


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Unbind(Message):
    """An offered update will be in no version: its batches are leased again."""

    job: str
    term: int
    lease: int
    reason: str


@message(to="leader", said_by={"Work": ("node", "worker")}, cost=20.0)
class SealRefused(Message):
    """A worker refuses to seal, agree or open, and why."""

    job: str
    term: int
    group: int
    reason: str
    #: The member because of which it refuses, or empty.
    node: str = ""


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Agree(Message):
    """The members whose updates are in the sum, as bits over the group."""

    job: str
    term: int
    group: int
    present: bytes

    def _check(self) -> None:
        _check_sizes(self, present=SEAL_GROUP_MAX // 8)


@message(to="leader", said_by={"Work": ("node", "worker")})
class Agreed(Message):
    """A worker's MACs, one for each other member of the sum."""

    job: str
    term: int
    group: int
    macs: bytes = field(repr=False)

    def _check(self) -> None:
        _check_sizes(self, macs=SEAL_PARTS_MAX_BYTES)


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Open(Message):
    """The other members' MACs for a sum, and the neighbours' envelopes for this member."""

    job: str
    term: int
    group: int
    macs: bytes = field(repr=False)
    envelopes: bytes = field(repr=False)
    #: Neighbours that sent nothing since their upload, as bits over the group, and their envelopes with edges.
    vanished: bytes = b""
    vanished_envelopes: bytes = field(repr=False, default=b"")

    def _check(self) -> None:
        _check_sizes(
            self,
            macs=SEAL_PARTS_MAX_BYTES,
            envelopes=SEAL_PARTS_MAX_BYTES,
            vanished=SEAL_GROUP_MAX // 8,
            vanished_envelopes=SEAL_EDGES_MAX_BYTES,
        )


@message(to="leader", said_by={"Work": ("node", "worker")})
class Opened(Message):
    """Shares of the masks that are left in the sum, and the edges to neighbours that are not in it."""

    job: str
    term: int
    group: int
    shares: bytes = field(repr=False)
    edges: bytes = field(repr=False, default=b"")
    #: The vanished neighbours whose shares of edges follow, as bits over the group.
    vanished: bytes = b""
    vanished_edges: bytes = field(repr=False, default=b"")

    def _check(self) -> None:
        _check_sizes(
            self,
            shares=SEAL_PARTS_MAX_BYTES,
            edges=SEAL_PARTS_MAX_BYTES,
            vanished=SEAL_GROUP_MAX // 8,
            vanished_edges=SEAL_EDGES_MAX_BYTES,
        )


@message(to="worker", answered_by={"Work": ("manager", "node")})
class AskMasks(Message):
    """Ask a job's helper to add up the masks of these members. It has everything that their label is made of, and
    their envelopes."""

    job: str
    term: int
    group: int
    roster: int
    #: Bits over the roster.
    members: bytes
    bound: int
    weight_most: int
    #: The hashes of the model that the members trained from, and of the indices that the words cover, if they are set.
    base: bytes
    places: bytes
    #: How many words the sum has.
    words: int
    #: The members whose words are in the sum, as bits over the group, and their envelopes in that order.
    present: bytes
    envelopes: bytes = field(repr=False)

    def _check(self) -> None:
        _check_sizes(
            self,
            members=SEAL_GROUP_MAX // 8,
            base=DIGEST_BYTES,
            places=DIGEST_BYTES,
            present=SEAL_GROUP_MAX // 8,
            envelopes=SEAL_HELPER_MAX_BYTES,
        )


@message(to="leader", said_by={"Work": ("node", "worker")})
class MaskSum(Message):
    """A helper's answer: the tensor ``words`` is the sum of the requested members' masks."""

    job: str
    term: int
    group: int
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)
