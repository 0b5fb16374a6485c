"""A flock: devices that train without a manager."""

from __future__ import annotations

import math
from dataclasses import field

from shoal.errors import PeerViolation
from shoal.wire.limits import LABELLED_MAX, PEERS_MAX
from shoal.wire.messages.base import Message, Tensors, is_id, is_sha256, message
from shoal.wire.messages.metrics import MetricView, check_views

#: The phases of a peer, and the commands of a coordinator (see ``PeerStatus.phase`` and ``Command.kind``).
PEER_PHASES = ("idle", "training", "holding", "resting", "failed")
CALLS = ("train", "keep", "take", "rest", "anew", "make", "fetch", "over")


@message(to="peer", said_by={"Control": ("peer",)})
class PeerStatus(Message):
    """A peer's state, sent to all peers of its flock every second and whenever it changes."""

    #: The hash of task and plan: peers train together only if theirs are equal.
    plan: str
    term: int = 0
    #: The coordinator that it follows, whether the two are in contact, and the number of the last command that it
    #: carried out.
    coordinator: str = ""
    in_touch: bool = False
    heard: int = 0
    #: The model it holds: its version, its hash, and how many updates it was made of.
    version: int = -1
    digest: str = ""
    made_of: int = 0
    #: ``idle``, ``training``, ``holding`` updates, ``resting`` after it handed them on, or ``failed``.
    phase: str = "idle"
    round: int = 0
    #: The peers whose updates it holds, their weight, the term since which it holds them, and the last merge that it
    #: accepted.
    of: tuple[str, ...] = ()
    weight: float = 0.0
    token_term: int = 0
    took: int = 0
    #: Whether it may be asked for a merge now, and why not.
    is_free: bool = True
    reason: str = ""
    spent_joules: float = 0.0
    #: The last version that it evaluated on its held-out examples, or -1, and how many examples it used.
    tested: int = -1
    examples: int = 0
    #: It has the final version and leaves the flock.
    is_over: bool = False
    #: The results of that evaluation.
    metrics: tuple[MetricView, ...] = ()

    def _check(self) -> None:
        _check_peers("of", self.of)
        if not is_sha256(self.plan):
            raise PeerViolation(f"PeerStatus.plan is {self.plan[:80]!r}; it must be a SHA-256 in hex")
        if self.phase not in PEER_PHASES:
            raise PeerViolation(f"PeerStatus.phase is {self.phase[:40]!r}; it must be one of {', '.join(PEER_PHASES)}")
        for name in ("weight", "spent_joules"):
            if not 0 <= getattr(self, name) < math.inf:
                raise PeerViolation(f"PeerStatus.{name} is {getattr(self, name)}; it must be finite and at least 0")
        check_views(self.metrics)
        for name in ("examples", "made_of"):
            if getattr(self, name) < 0:
                raise PeerViolation(f"PeerStatus.{name} is {getattr(self, name)}; it must be at least 0")


@message(to="peer", said_by={"Control": ("peer",)})
class Command(Message):
    """A coordinator's command to a peer of its flock. It replaces every earlier command."""

    term: int
    number: int
    #: ``train``, ``keep`` the updates it holds, ``take`` another peer's updates, ``rest``, begin ``anew`` with only its
    #: own, ``make`` the next version, ``fetch`` a version, or ``over``: the job has ended.
    kind: str
    round: int = 0
    version: int = -1
    digest: str = ""
    merge: int = 0
    #: The peer whose updates to take, or from which to fetch.
    other: str = ""
    reason: str = ""

    def _check(self) -> None:
        if self.kind not in CALLS:
            raise PeerViolation(f"Command.kind is {self.kind[:40]!r}; it must be one of {', '.join(CALLS)}")
        if self.other and not is_id(self.other):
            raise PeerViolation(f"Command.other is not an id: {self.other[:80]!r}")


@message(to="peer", said_by={"Control": ("peer",)})
class Request(Message):
    """A peer asks another for its updates, to merge them; or for the model of a version if ``merge`` is 0."""

    term: int
    #: The coordinator that commanded it. For a while a term may have two, if they cannot reach each other.
    coordinator: str
    round: int
    merge: int = 0
    version: int = -1
    digest: str = ""


@message(to="peer", said_by={"Work": ("peer",)})
class PartialSum(Message):
    """The weighted mean of some peers' updates, and its weight: MDLdroid's (W, θ)."""

    term: int
    coordinator: str
    round: int
    merge: int
    of: tuple[str, ...]
    weight: float
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def _check(self) -> None:
        _check_peers("of", self.of)
        if not 0 < self.weight <= LABELLED_MAX * len(self.of):
            raise PeerViolation(
                f"PartialSum.weight is {self.weight} for {len(self.of)} updates; it must be above 0 and at most"
                f" {LABELLED_MAX} per update"
            )


@message(to="peer", said_by={"Work": ("peer",)})
class ModelTransfer(Message):
    """The complete model of a version."""

    version: int
    digest: str
    made_of: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


def _check_peers(name: str, peers: tuple[str, ...]) -> None:
    if len(peers) > PEERS_MAX or not all(map(is_id, peers)) or len(set(peers)) != len(peers):
        raise PeerViolation(f"{name} has {len(peers)} entries; it must list at most {PEERS_MAX} different ids of peers")
