"""A leader, its aggregators and their workers: where updates are summed."""

from __future__ import annotations

import math
from dataclasses import field
from typing import get_args

from shoal.errors import Misuse, PeerViolation
from shoal.learning.layout import ENTRIES_MAX
from shoal.learning.outer_rule import BETA2, EPSILON, OuterRule
from shoal.trust import DEVICES_MAX, Rule
from shoal.wire.limits import COUNTED_MAX, TOLD_BYTES_MAX
from shoal.wire.messages.base import Message, Tensors, check_codecs, is_endpoint, is_id, message


@message(to="aggregator", answered_by={"Work": ("manager", "node")})
class SetUpAggregator(Message):
    """A leader makes a node an aggregator: it sums up a share of the updates of these workers from now on.

    In a tree that share is the whole model, for a group of workers. In a shard it is a part of the model, for all of
    them, and the aggregator also takes the step for it: the tensors are where its part stands. Said again, it changes
    the members.
    """

    job: str
    term: int
    formation: int
    #: ``tree`` or ``shard``.
    kind: str
    version: int
    start: int
    stop: int
    #: Of its part, how many values are parameters: they have momentum, and come first.
    parameters: int = 0
    momentum: float = 0.0
    members: tuple[str, ...] = ()
    #: How pieces are coded, and what the parts are of the tensors that lie in its part.
    codec: str = "dense"
    sizes: tuple[int, ...] = ()
    #: The most values that a piece may name.
    entries: int = 0
    #: Of a shard, whose aggregator takes the step: how what it gives out is coded, and how far it goes.
    codec_down: str = "dense"
    outer_rate: float = 1.0
    outer: str = "sgd"
    #: The largest norm of a piece that is taken; 0: any that is finite.
    norm_max: float = 0.0
    #: The rest of the step that it takes (``learning.outer_rule``), and how many steps were taken before.
    outer_beta2: float = BETA2
    outer_epsilon: float = EPSILON
    weight_decay: float = 0.0
    inner_rate: float = 1.0
    outer_steps: int = 0
    #: Bits of the words that pieces are where updates are sealed; 0: they are not. Words are not decoded here.
    word_bits: int = 0
    #: Of a shard: the leader takes the step, and the aggregator sums up and relays alone.
    sums_only: bool = False
    #: In a shard: ``model`` and ``velocity``; of an adaptive step ``second``; with a codec the ``residual``, which was
    #: not given out yet; and where updates are cut back to it, the ``centre``: the last version's mean.
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not 0 <= self.start < self.stop or not 0 <= self.parameters <= self.stop - self.start:
            raise PeerViolation(f"no part of a model: {self.start} to {self.stop}, {self.parameters} parameters")
        if self.kind not in ("tree", "shard"):
            raise PeerViolation(f"no formation that this release knows: {self.kind[:80]!r}")
        if self.word_bits not in (0, 16, 32):
            raise PeerViolation(f"words of {self.word_bits} bits: there are words of 32 and of 16")
        if self.outer_steps < 0:
            raise PeerViolation(f"an aggregator after {self.outer_steps} steps")
        try:
            _ = self.outer_rule
        except Misuse as error:
            raise PeerViolation(f"no step that this release knows: {str(error)[:200]}") from None
        _check_norm(self.norm_max)
        if self.codec != "dense" or self.codec_down != "dense":
            if len(self.sizes) > ENTRIES_MAX or any(size < 1 for size in self.sizes):
                raise PeerViolation("a part of a model has parts of tensors, each of at least one value")
            if sum(self.sizes) != self.stop - self.start or not 0 <= self.entries <= self.stop - self.start:
                raise PeerViolation(f"tensors of {sum(self.sizes)} values in a part from {self.start} to {self.stop}")
            check_codecs(self.codec, self.codec_down)
        if not all(is_id(node) for node in self.members):
            raise PeerViolation("a member is named by its id")

    @property
    def outer_rule(self) -> OuterRule:
        """The step that an aggregator of a shard takes."""
        return OuterRule(
            kind=self.outer,
            rate=self.outer_rate,
            momentum=self.momentum,
            beta2=self.outer_beta2,
            epsilon=self.outer_epsilon,
            weight_decay=self.weight_decay,
            inner_rate=self.inner_rate,
        )


@message(to="leader", said_by={"Work": ("node", "worker")}, cost=20.0)
class AggregatorReady(Message):
    """An aggregator is set up, and its members find it there; without an endpoint: it could not be."""

    job: str
    term: int
    formation: int
    endpoint: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.endpoint and not is_endpoint(self.endpoint):
            raise PeerViolation(f"not where anyone can be dialled: {self.endpoint[:80]!r}")


@message()
class Hop(Message):
    """An aggregator, and the part of an update that goes to it."""

    node: str
    endpoint: str
    start: int
    stop: int

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not is_endpoint(self.endpoint):
            raise PeerViolation(f"not where anyone can be dialled: {self.endpoint[:80]!r}")
        if not 0 <= self.start < self.stop:
            raise PeerViolation(f"no part of a model: {self.start} to {self.stop}")


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Route(Message):
    """By which aggregators a worker's updates go in a formation. It gets ready for it; a lease says when it holds."""

    job: str
    term: int
    formation: int
    hops: tuple[Hop, ...] = ()

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        ends = [0, *(hop.stop for hop in self.hops)]
        if not self.hops or [hop.start for hop in self.hops] != ends[:-1]:
            raise PeerViolation("the hops of a route have the parts of a model in order, without a gap")
        if len({hop.node for hop in self.hops}) != len(self.hops):
            raise PeerViolation("two hops of a route are one node")


@message(to="leader", said_by={"Work": ("node", "worker")}, cost=20.0)
class Routed(Message):
    """A worker reaches every aggregator of its route, or all but these."""

    job: str
    term: int
    formation: int
    unreached: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not all(is_id(node) for node in self.unreached):
            raise PeerViolation("a node that is not reached is named by its id")


@message(to="aggregator", said_by={"Work": ("worker",)})
class UpdateShard(Message):
    """The part of an update that is for one aggregator: one tensor ``delta``; of a sealed update ``words``."""

    job: str
    term: int
    formation: int
    lease: int
    version: int
    #: Of a sealed update: the group whose masks its words have; 0: it is not sealed.
    group: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@message(to="leader", said_by={"Work": ("node", "worker")})
class UpdateReady(Message):
    """A lease is trained, and its pieces are on their way: what it takes from here on is not its worker's fault."""

    job: str
    term: int
    lease: int


@message(to="worker", answered_by={"Work": ("node",)})
class ShardAck(Message):
    """An aggregator has a worker's piece, checked."""

    job: str
    term: int
    formation: int
    lease: int
    #: Of a sealed update, which may come again under the masks of another group.
    group: int = 0


@message(to="leader", said_by={"Work": ("node", "worker")}, cost=20.0)
class BadShard(Message):
    """An aggregator could not take a worker's piece: what was wrong with it."""

    job: str
    term: int
    formation: int
    lease: int
    node: str
    reason: str


@message(to="aggregator", answered_by={"Work": ("manager", "node")})
class Reduce(Message):
    """The leader has these leases in its ledger: their pieces are to be summed up, each with its weight and scale.

    The last of a round asks for the sum.
    """

    job: str
    term: int
    formation: int
    #: What the sum will be part of: one after the version that the leases are of, or later.
    version: int
    leases: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    last: bool = False
    #: As in ``SetUpAggregator``, for the pieces that come next.
    norm_max: float = 0.0
    #: In a shard: how far the step of this version goes; 0: as ``SetUpAggregator`` said. The leader says it, so that no
    #: two machines work out a schedule in different last bits.
    outer_rate: float = 0.0
    #: Not to be summed up yet: by this rule of a robust plan, their pieces are to be compared, and stay.
    weigh: str = ""
    #: How much of its way from the centre each piece keeps, which makes up for the rest; empty: all of it.
    kept: tuple[float, ...] = ()
    #: Of sealed updates: the group whose words are summed up.
    group: int = 0

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        _check_norm(self.norm_max)
        if self.weigh not in ("", *get_args(Rule)) or (self.weigh and self.last):
            raise PeerViolation(f"no rule by which pieces are compared: {self.weigh[:80]!r}")
        if self.weigh == "nearest" and len(self.leases) > DEVICES_MAX:
            raise PeerViolation(f"{len(self.leases)} pieces to compare; {DEVICES_MAX} are at most")
        if self.kept and (len(self.kept) != len(self.leases) or not all(0 < each <= 1 for each in self.kept)):
            raise PeerViolation("a piece keeps all or some of its way, and each is said")
        if not len(self.leases) == len(self.weights) == len(self.scales) <= COUNTED_MAX:
            raise PeerViolation(f"each lease has a weight and a scale, and at most {COUNTED_MAX} are counted at a time")
        if not all(0 < number < math.inf for number in (*self.weights, *self.scales)):
            raise PeerViolation("a weight or a scale that is not positive")
        if not 0 <= self.outer_rate < math.inf:
            raise PeerViolation(f"a step that goes as far as {self.outer_rate}")


@message(to="leader", said_by={"Work": ("node", "worker")})
class ReduceResult(Message):
    """The mean over an aggregator's counted pieces, with the leases in it: one tensor ``mean``.

    In a shard with a codec also ``moved``: how its part of the model moved by that, as it was given out. Of sealed
    updates one tensor ``words``: their sum, with every mask that is in it. Or, where pieces were to be compared, no
    sum: one tensor ``products``, and the leases that it is of in their order.
    """

    job: str
    term: int
    formation: int
    version: int
    leases: tuple[int, ...] = ()
    weight: float = 0.0
    #: Bytes of tensors that came from its members, and went to them, since its last sum.
    bytes_up: int = 0
    bytes_down: int = 0
    #: The rule by which pieces were compared; empty: they were summed up.
    weighed: str = ""
    #: Of sealed updates: their group.
    group: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not (0 <= self.bytes_up <= TOLD_BYTES_MAX and 0 <= self.bytes_down <= TOLD_BYTES_MAX):
            raise PeerViolation("bytes that no aggregator can have moved")


def _check_norm(norm_max: float) -> None:
    if not 0 <= norm_max < math.inf:
        raise PeerViolation(f"a largest norm of {norm_max}")


@message(to="aggregator", answered_by={"Work": ("manager", "node")})
class RelayModel(Message):
    """A version, for an aggregator of a tree to give to its members: as in ``Work``, the model or changes."""

    job: str
    term: int
    formation: int
    version: int
    base: int = -1
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@message(to="worker", answered_by={"Work": ("node",)})
class ModelShard(Message):
    """An aggregator's part of a version, for a worker: as in ``Work``, this part of the model or changes to it."""

    job: str
    term: int
    formation: int
    version: int
    start: int
    stop: int
    base: int = -1
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not 0 <= self.start < self.stop:
            raise PeerViolation(f"no part of a model: {self.start} to {self.stop}")


@message(to="worker", answered_by={"Work": ("manager", "node")})
class TearDown(Message):
    """A formation is over: drop its aggregators and routes up to this number."""

    job: str
    term: int
    formation: int
    reason: str = ""
