"""A flock: devices that train without a manager."""

from __future__ import annotations

import math
from dataclasses import field

from shoal.errors import PeerViolation
from shoal.wire.limits import LABELLED_MAX, PEERS_MAX
from shoal.wire.messages.base import Message, Tensors, is_id, is_sha256, message
from shoal.wire.messages.metrics import MetricView, check_views

#: What a peer of a flock may be at, and what its coordinator may call for.
PEER_PHASES = ("idle", "training", "holding", "resting", "failed")


CALLS = ("train", "keep", "take", "rest", "anew", "make", "fetch", "over")


@message(to="peer", said_by={"Control": ("peer",)})
class PeerStatus(Message):
    """How a peer of a flock is, told to all of them every second and whenever it changes."""

    #: The hash of task and plan: only peers that have the same train together.
    plan: str
    term: int = 0
    #: Whom it follows, whether it hears that one, and the last of its calls that it heeded.
    coordinator: str = ""
    in_touch: bool = False
    heard: int = 0
    #: The model it holds: its number, its hash, and how many updates were in it.
    version: int = -1
    digest: str = ""
    made_of: int = 0
    #: What it is at: ``idle``, ``training``, ``holding`` updates, ``resting`` since it handed them on, ``failed``.
    phase: str = "idle"
    round: int = 0
    #: Whose updates it holds, how much they weigh, since which term, and the last merge that it took.
    of: tuple[str, ...] = ()
    weight: float = 0.0
    token_term: int = 0
    took: int = 0
    #: Whether it may be asked for a merge now; if not, why.
    is_free: bool = True
    reason: str = ""
    spent_joules: float = 0.0
    #: How the model of this version did on its held-out examples.
    tested: int = -1
    examples: int = 0
    #: It has the last version and goes.
    is_over: bool = False
    #: Of that test.
    metrics: tuple[MetricView, ...] = ()

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        _check_peers("of", self.of)
        if not is_sha256(self.plan):
            raise PeerViolation("a peer without a plan")
        if self.phase not in PEER_PHASES:
            raise PeerViolation(f"a peer that is {self.phase[:40]!r}")
        if not (0 <= self.weight < math.inf and 0 <= self.spent_joules < math.inf):
            raise PeerViolation("a weight or an energy that cannot be")
        check_views(self.metrics)
        if min(self.examples, self.made_of) < 0:
            raise PeerViolation("a test that cannot be")


@message(to="peer", said_by={"Control": ("peer",)})
class Command(Message):
    """What the coordinator of a flock wants of a peer now. It replaces every earlier one."""

    term: int
    number: int
    #: ``train``, ``keep`` what it holds, ``take`` another's updates, ``rest``, begin ``anew`` with its own, ``make``
    #: the next version, ``fetch`` one, ``over``.
    kind: str
    round: int = 0
    version: int = -1
    digest: str = ""
    merge: int = 0
    #: Whose updates to take, or of whom to fetch.
    other: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.kind not in CALLS:
            raise PeerViolation(f"no call of a coordinator: {self.kind[:40]!r}")
        if self.other and not is_id(self.other):
            raise PeerViolation("a call that names nobody")


@message(to="peer", said_by={"Control": ("peer",)})
class Request(Message):
    """One peer asks another: for its updates, to merge them, or for the model of a version where ``merge`` is 0."""

    term: int
    #: Who called for it: two may conduct in one term, for a while, where they do not hear each other.
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

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        _check_peers("of", self.of)
        if not 0 < self.weight <= LABELLED_MAX * len(self.of):
            raise PeerViolation(f"{len(self.of)} updates that weigh {self.weight}")


@message(to="peer", said_by={"Work": ("peer",)})
class ModelTransfer(Message):
    """The model of a version, whole."""

    version: int
    digest: str
    made_of: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


def _check_peers(name: str, peers: tuple[str, ...]) -> None:
    if len(peers) > PEERS_MAX or not all(map(is_id, peers)) or len(set(peers)) != len(peers):
        raise PeerViolation(f"{name}: not the names of peers")
