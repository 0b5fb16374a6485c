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
    """A leader makes a node an aggregator: from now on it sums these workers' updates, or a part of them.

    In a tree, an aggregator sums complete updates of a group of workers. In a shard, it sums one part of every worker's
    updates and also takes the step for that part; the tensors are the part's current state. Sent again, the message
    changes the members.
    """

    job: str
    term: int
    formation: int
    #: ``tree`` or ``shard``.
    kind: str
    version: int
    start: int
    stop: int
    #: How many values of its part are parameters. They come first and have momentum.
    parameters: int = 0
    momentum: float = 0.0
    members: tuple[str, ...] = ()
    #: The codec of pieces, and how many values of each tensor are in its part.
    codec: str = "dense"
    sizes: tuple[int, ...] = ()
    #: The most values that a piece may name.
    entries: int = 0
    #: In a shard: the codec of the versions that the aggregator sends, and the step that it takes.
    codec_down: str = "dense"
    outer_rate: float = 1.0
    outer: str = "sgd"
    #: The largest accepted norm of a piece. 0 accepts any finite norm.
    norm_max: float = 0.0
    #: The other settings of the step (``learning.outer_rule``), and how many steps were taken before.
    outer_beta2: float = BETA2
    outer_epsilon: float = EPSILON
    weight_decay: float = 0.0
    inner_rate: float = 1.0
    outer_steps: int = 0
    #: Bits per word if updates are sealed, or 0. An aggregator does not decode words.
    word_bits: int = 0
    #: In a shard: the leader takes the step, and the aggregator only sums and relays.
    sums_only: bool = False
    #: In a shard: ``model`` and ``velocity``; for an adaptive step ``second``; with a codec the ``residual``, which was
    #: not sent yet; and if updates are clipped, the ``centre`` for that: the last version's mean.
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def _check(self) -> None:
        if not 0 <= self.start < self.stop or not 0 <= self.parameters <= self.stop - self.start:
            raise PeerViolation(
                f"SetUpAggregator covers values {self.start} to {self.stop} with {self.parameters} parameters;"
                " it must cover at least one value, and at most all of them may be parameters"
            )
        if self.kind not in ("tree", "shard"):
            raise PeerViolation(f"SetUpAggregator.kind is {self.kind[:80]!r}; it must be tree or shard")
        if self.word_bits not in (0, 16, 32):
            raise PeerViolation(f"SetUpAggregator.word_bits is {self.word_bits}; it must be 0, 16 or 32")
        if self.outer_steps < 0:
            raise PeerViolation(f"SetUpAggregator.outer_steps is {self.outer_steps}; it must be at least 0")
        try:
            _ = self.outer_rule
        except Misuse as error:
            raise PeerViolation(
                f"SetUpAggregator has a step that this release does not know: {str(error)[:200]}"
            ) from None
        _check_norm(self.norm_max)
        if self.codec != "dense" or self.codec_down != "dense":
            if len(self.sizes) > ENTRIES_MAX or any(size < 1 for size in self.sizes):
                raise PeerViolation(f"SetUpAggregator.sizes must list at most {ENTRIES_MAX} sizes, each at least 1")
            if sum(self.sizes) != self.stop - self.start or not 0 <= self.entries <= self.stop - self.start:
                raise PeerViolation(
                    f"SetUpAggregator has sizes of {sum(self.sizes)} values and at most {self.entries} entries; they do"
                    f" not fit a part from {self.start} to {self.stop}"
                )
            check_codecs(self.codec, self.codec_down)
        if not all(is_id(node) for node in self.members):
            raise PeerViolation("SetUpAggregator.members has an entry that is not an id")

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
    """An aggregator is set up, and its members can dial it. It has no endpoint if that failed."""

    job: str
    term: int
    formation: int
    endpoint: str = ""
    reason: str = ""

    def _check(self) -> None:
        if self.endpoint and not is_endpoint(self.endpoint):
            raise PeerViolation(f"AggregatorReady.endpoint is {self.endpoint[:80]!r}; it must be HOST:PORT")


@message()
class Hop(Message):
    """An aggregator, and the part of an update that goes to it."""

    node: str
    endpoint: str
    start: int
    stop: int

    def _check(self) -> None:
        if not is_endpoint(self.endpoint):
            raise PeerViolation(f"Hop.endpoint is {self.endpoint[:80]!r}; it must be HOST:PORT")
        _check_span(self, self.start, self.stop)


@message(to="worker", answered_by={"Work": ("manager", "node")})
class Route(Message):
    """The aggregators that a worker sends its updates to in a formation. The worker connects to them in advance; a
    lease then names the formation."""

    job: str
    term: int
    formation: int
    hops: tuple[Hop, ...] = ()

    def _check(self) -> None:
        ends = [0, *(hop.stop for hop in self.hops)]
        if not self.hops or [hop.start for hop in self.hops] != ends[:-1]:
            raise PeerViolation("Route.hops must cover the model from its first value, in order and without a gap")
        if len({hop.node for hop in self.hops}) != len(self.hops):
            raise PeerViolation("Route.hops names one node twice")


@message(to="leader", said_by={"Work": ("node", "worker")}, cost=20.0)
class Routed(Message):
    """A worker is connected to every aggregator of its route, except the unreached ones."""

    job: str
    term: int
    formation: int
    unreached: tuple[str, ...] = ()

    def _check(self) -> None:
        if not all(is_id(node) for node in self.unreached):
            raise PeerViolation("Routed.unreached has an entry that is not an id")


@message(to="aggregator", said_by={"Work": ("worker",)})
class UpdateShard(Message):
    """The piece of an update for one aggregator: one tensor ``delta``, or ``words`` if the update is sealed."""

    job: str
    term: int
    formation: int
    lease: int
    version: int
    #: The group whose masks are on the update's words. 0 if the update is not sealed.
    group: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@message(to="leader", said_by={"Work": ("node", "worker")})
class UpdateReady(Message):
    """A lease is trained, and the worker is sending its pieces: a delay from here on does not count against it."""

    job: str
    term: int
    lease: int


@message(to="worker", answered_by={"Work": ("node",)})
class ShardAck(Message):
    """An aggregator has received and checked a worker's piece."""

    job: str
    term: int
    formation: int
    lease: int
    #: The group of a sealed update, which may be sent again under another group's masks.
    group: int = 0


@message(to="leader", said_by={"Work": ("node", "worker")}, cost=20.0)
class BadShard(Message):
    """An aggregator rejected a worker's piece, and why."""

    job: str
    term: int
    formation: int
    lease: int
    node: str
    reason: str


@message(to="aggregator", answered_by={"Work": ("manager", "node")})
class Reduce(Message):
    """The leader accepted these leases: the aggregator must sum their pieces, each with its weight and scale.

    The last message of a round asks for the sum.
    """

    job: str
    term: int
    formation: int
    #: The version that the sum will be part of: later than the version of the leases.
    version: int
    leases: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    last: bool = False
    #: As in ``SetUpAggregator``, for later pieces.
    norm_max: float = 0.0
    #: In a shard: the outer rate of this version's step. 0 means that of ``SetUpAggregator``. The leader sends it, so
    #: that machines whose floating point differs follow the same schedule.
    outer_rate: float = 0.0
    #: The rule of a robust plan by which to compare the pieces, which are kept and not summed yet. Empty to sum them.
    weigh: str = ""
    #: The share of its distance from the centre that each clipped piece keeps. Empty if no piece is clipped.
    kept: tuple[float, ...] = ()
    #: If updates are sealed, the group whose words are summed.
    group: int = 0

    def _check(self) -> None:
        _check_norm(self.norm_max)
        if self.weigh not in ("", *get_args(Rule)) or (self.weigh and self.last):
            raise PeerViolation(
                f"Reduce.weigh is {self.weigh[:80]!r}; it must be one of {', '.join(get_args(Rule))}, and not be in the"
                " last message of a round"
            )
        if self.weigh == "nearest" and len(self.leases) > DEVICES_MAX:
            raise PeerViolation(f"Reduce names {len(self.leases)} pieces to compare; the maximum is {DEVICES_MAX}")
        if self.kept and (len(self.kept) != len(self.leases) or not all(0 < each <= 1 for each in self.kept)):
            raise PeerViolation("Reduce.kept must have a value for each lease, above 0 and at most 1")
        if not len(self.leases) == len(self.weights) == len(self.scales) <= COUNTED_MAX:
            raise PeerViolation(
                f"Reduce must have a weight and a scale for each lease, and at most {COUNTED_MAX} leases"
            )
        if not all(0 < number < math.inf for number in (*self.weights, *self.scales)):
            raise PeerViolation("Reduce has a weight or a scale that is not positive and finite")
        if not 0 <= self.outer_rate < math.inf:
            raise PeerViolation(f"Reduce.outer_rate is {self.outer_rate}; it must be finite and at least 0")


@message(to="leader", said_by={"Work": ("node", "worker")})
class ReduceResult(Message):
    """The mean of an aggregator's accepted pieces as one tensor ``mean``, and the leases in it.

    In a shard with a codec it also has ``moved``: the change to this part of the model, as the aggregator sent it. If
    updates are sealed, it has one tensor ``words``: their sum, still masked. If pieces were compared and not summed, it
    has one tensor ``products`` and the leases in the order of its rows.
    """

    job: str
    term: int
    formation: int
    version: int
    leases: tuple[int, ...] = ()
    weight: float = 0.0
    #: Bytes of tensors received from its members and sent to them since its last sum.
    bytes_up: int = 0
    bytes_down: int = 0
    #: The rule by which pieces were compared. Empty if they were summed.
    weighed: str = ""
    #: The group of sealed updates.
    group: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def _check(self) -> None:
        for name in ("bytes_up", "bytes_down"):
            if not 0 <= getattr(self, name) <= TOLD_BYTES_MAX:
                raise PeerViolation(f"ReduceResult.{name} is {getattr(self, name)}; it must be 0 to {TOLD_BYTES_MAX}")


def _check_norm(norm_max: float) -> None:
    if not 0 <= norm_max < math.inf:
        raise PeerViolation(f"norm_max is {norm_max}; it must be finite and at least 0")


def _check_span(of: Message, start: int, stop: int) -> None:
    if not 0 <= start < stop:
        raise PeerViolation(f"{type(of).__name__} covers values {start} to {stop}; it must cover at least one")


@message(to="aggregator", answered_by={"Work": ("manager", "node")})
class RelayModel(Message):
    """A version for a tree's aggregator to send to its members: as in ``Work``, the model or changes to it."""

    job: str
    term: int
    formation: int
    version: int
    base: int = -1
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)


@message(to="worker", answered_by={"Work": ("node",)})
class ModelShard(Message):
    """An aggregator's part of a version for a worker: as in ``Work``, this part of the model or changes to it."""

    job: str
    term: int
    formation: int
    version: int
    start: int
    stop: int
    base: int = -1
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def _check(self) -> None:
        _check_span(self, self.start, self.stop)


@message(to="worker", answered_by={"Work": ("manager", "node")})
class TearDown(Message):
    """The formations up to this number are over: drop their aggregators and routes."""

    job: str
    term: int
    formation: int
    reason: str = ""
