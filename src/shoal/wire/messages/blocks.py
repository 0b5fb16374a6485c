"""A leader and its hubs: blocks of batches go out, one sum of each comes back."""

from __future__ import annotations

import math
from dataclasses import field

from shoal.errors import PeerViolation
from shoal.learning.metrics import MetricSum
from shoal.wire.limits import BLOCK_BATCHES_MAX, BLOCK_LEASES_MAX, TOLD_BYTES_MAX
from shoal.wire.messages.base import Message, Tensors, is_id, message
from shoal.wire.messages.metrics import check_sums


@message(to="aggregator", answered_by={"Work": ("manager", "node")})
class LendBlock(Message):
    """A block: a lease of a hub, which sublets its batches to its devices in leases of its own, and one ``model``."""

    job: str
    term: int
    formation: int
    #: Its number as a lease of the hub. The leases that it is sublet in have the numbers that follow.
    block: int
    version: int
    durable_version: int = 0
    epoch: int = 0
    batches: tuple[int, ...] = ()
    #: Batches of each of its leases; the last may have fewer.
    lease_batches: int = 1
    #: How many examples each of its leases holds.
    examples: tuple[int, ...] = ()
    #: The members that may be sublet a lease of it.
    devices: tuple[str, ...] = ()
    #: Seconds from receipt: what a device may take for a lease, and the hub for the whole block.
    lease_s: float
    deadline_s: float
    #: As in ``Work``.
    began: int = 0
    rate: float = 0.0
    #: As in ``SetUpAggregator``.
    norm_max: float = 0.0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if self.lease_batches < 1 or not 0 < len(self.batches) <= BLOCK_BATCHES_MAX:
            raise PeerViolation(f"a block of {len(self.batches)} batches, {self.lease_batches} a lease")
        leases = -(-len(self.batches) // self.lease_batches)
        if len(self.examples) != leases or leases > BLOCK_LEASES_MAX or min(self.examples) < 1:
            raise PeerViolation(f"a block of {leases} leases, with examples for {len(self.examples)}")
        if len(self.devices) > BLOCK_LEASES_MAX or not all(is_id(node) for node in self.devices):
            raise PeerViolation("the devices of a block are named by their ids, and are few enough")
        if not (0 < self.lease_s <= self.deadline_s < math.inf and 0 <= self.rate < math.inf):
            raise PeerViolation(f"a block of {self.deadline_s} s, with {self.lease_s} s a lease")
        if not 0 <= self.norm_max < math.inf:
            raise PeerViolation(f"a largest norm of {self.norm_max}")

    def parts(self) -> dict[int, tuple[int, ...]]:
        """Lease -> its batches."""
        starts = range(0, len(self.batches), self.lease_batches)
        return {self.block + 1 + place: self.batches[at : at + self.lease_batches] for place, at in enumerate(starts)}


@message()
class BlockPart(Message):
    """A lease of a block whose update is in the sum: which device trained it, and what it said of it."""

    lease: int
    node: str
    examples: int
    loss_sum: float = 0.0
    train_s: float = 0.0


@message()
class BlockReturn(Message):
    """A lease of a block that is not in the sum, and why."""

    lease: int
    reason: str


@message(to="leader", said_by={"Work": ("node", "worker")})
class BlockDone(Message):
    """The end of a block: the mean of the updates of these leases, and those that come back. One tensor ``mean``."""

    job: str
    term: int
    formation: int
    block: int
    version: int
    parts: tuple[BlockPart, ...] = ()
    returned: tuple[BlockReturn, ...] = ()
    #: What the training code of all its devices logged.
    logged: tuple[MetricSum, ...] = ()
    #: Bytes of tensors that came from devices, and went to them.
    bytes_up: int = 0
    bytes_down: int = 0
    tensors: Tensors = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        Message.__post_init__(self)
        if not (0 <= self.bytes_up <= TOLD_BYTES_MAX and 0 <= self.bytes_down <= TOLD_BYTES_MAX):
            raise PeerViolation("bytes that no hub can have moved")
        if self.logged:
            check_sums(self.logged)
