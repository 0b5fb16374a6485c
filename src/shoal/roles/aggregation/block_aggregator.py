"""A hub as the aggregator of a tree that is lent blocks: sublets their leases to its members, and sums up what they
return. It decides; a driver acts.

The leader keeps the only ledger that counts. What the hub has of a block (``scheduling.block_ledger``) is gone with it,
and nothing in it is needed again: the leader takes the whole block back. A device's update enters the sum only while
its lease is sublet to that device, so that ``BlockDone`` names each update in the sum once. The hub keeps that message
until the leader lends the next block, or the formation is over.

Which devices are gone, the leader says with the members: every device is watched by its leader already.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from shoal.errors import BadValues, PeerViolation
from shoal.learning.metrics import MetricSum, add_logged
from shoal.roles.aggregation.aggregator import Aggregator
from shoal.roles.events import Event, Received, TimerFired
from shoal.scheduling.block_ledger import BlockLedger, Sublet
from shoal.scheduling.deadlines import STRETCH_MAX, wait_s
from shoal.wire.checks import check_told, flat
from shoal.wire.coded import bytes_of, decode_with_norm
from shoal.wire.messages import (
    NO_TENSORS,
    BlockDone,
    BlockPart,
    BlockReturn,
    LendBlock,
    SetUpAggregator,
    ShardAck,
    Update,
    UpdateShard,
    Work,
    clip,
    with_tensors,
)

#: Beyond the time that a device is given: its update must have time to arrive.
SUBLET_GRACE_S = 2.0

#: A timer that fires so much later than it was due was held up: what came meanwhile is read before a lease expires.
PAUSE_LEAST_S = 0.1
PAUSE_S = 0.5

#: A timer shorter than this may not move the clock at all.
LATE_LEAST_S = 0.001

#: What is told of a lease that comes back.
REASON_MAX_CHARS = 200

_LATE = "late"


@dataclass(slots=True)
class _Pace:
    """How long a device took for its last leases; and it was late so often in a row that it is waited for longer."""

    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=9))
    stretch: float = 1.0


@dataclass(slots=True)
class _Block:
    """The newest block, while it is sublet and after that."""

    lent: LendBlock
    ledger: BlockLedger
    end_s: float
    #: Lease -> what its device said of the update in the sum.
    parts: dict[int, BlockPart] = field(default_factory=dict)
    logged: dict[str, MetricSum] = field(default_factory=dict)
    #: Its end, as the leader was told.
    done: BlockDone | None = None


class BlockAggregator(Aggregator):
    def __init__(self, form: SetUpAggregator, *, node: str, leader: str) -> None:
        super().__init__(form, node=node, leader=leader)
        self._block: _Block | None = None
        self._paces: dict[str, _Pace] = {}

    def on_event(self, event: Event) -> None:
        match event:
            case Received(message=LendBlock() as lent):
                self._on_lent(lent)
            case Received(message=UpdateShard() as shard):
                self._bytes_up += event.size_bytes
                self._on_update(event.sender, shard)
            case TimerFired():
                self._on_late(event.late_s)
            case _:
                super().on_event(event)
                if isinstance(event, Received) and isinstance(event.message, SetUpAggregator):
                    self._on_members()

    # Subletting ------------------------------------------------------------------------------------------

    def _on_lent(self, lent: LendBlock) -> None:
        block = self._block
        if block is not None and lent.block <= block.lent.block:
            if block.done is not None and lent.block == block.lent.block:
                # The leader lends it again: it has not heard of its end.
                self.send(self._leader, block.done)
            return
        # A copy: the driver uses the memory of a message again before the values are sent on.
        model = np.array(flat("model", lent.tensors, size=self._size))
        model.flags.writeable = False
        devices = [device for device in lent.devices if device in self._members]
        self._partial.clear()
        self._norm_max = lent.norm_max or None
        ledger = BlockLedger(lent.parts(), devices)
        self._block = block = _Block(with_tensors(lent, {"model": model}), ledger, self.now_s + lent.deadline_s)
        self._go_on(block)

    def _go_on(self, block: _Block) -> None:
        """Sublet what can be; if nothing is awaited any more, the block is done."""
        ledger = block.ledger
        if ledger.has_free:
            # A device that has returned a lease trains once more only where nobody waits longer for it. Else the
            # batches come back, and are part of a later version.
            latest_s = max((self._expected_s(sublet) for sublet in ledger.sublets()), default=-math.inf)
            for device in ledger.idle:
                is_in_time = device not in ledger.took_s or self.now_s + ledger.took_s[device] <= latest_s
                if ledger.has_free and is_in_time:
                    self._sublet(block, device)
        if not ledger.outstanding:
            self._finish(block)
            return
        due_s = ledger.next_deadline_s
        assert due_s is not None
        self.timer(_LATE, max(LATE_LEAST_S, due_s - self.now_s))

    def _expected_s(self, sublet: Sublet) -> float:
        """When a device is expected to return what it has, at the latest."""
        durations_s = self._pace_of(sublet.device).durations_s
        return sublet.since_s + median(durations_s) if durations_s else sublet.until_s

    def _sublet(self, block: _Block, device: str) -> None:
        lent, pace = block.lent, self._pace_of(device)
        longest_s = lent.lease_s + SUBLET_GRACE_S
        waits_s = wait_s(pace.durations_s, stretch=pace.stretch, longest_s=longest_s)
        until_s = min(self.now_s + waits_s, block.end_s)
        lease = block.ledger.sublet(device, now_s=self.now_s, until_s=until_s)
        self._bytes_down += bytes_of(lent.tensors)
        work = Work(
            job=lent.job,
            term=lent.term,
            lease=lease,
            kind="train",
            version=lent.version,
            durable_version=lent.durable_version,
            epoch=lent.epoch,
            batches=lent.parts()[lease],
            deadline_s=lent.lease_s,
            formation=lent.formation,
            began=lent.began,
            rate=lent.rate,
            block=lent.block,
            tensors=lent.tensors,
        )
        self.send(device, work)

    def _pace_of(self, device: str) -> _Pace:
        return self._paces.setdefault(device, _Pace())

    # What comes back ---------------------------------------------------------------------------------------

    def _on_update(self, device: str, shard: UpdateShard) -> None:
        if device not in self._members:
            return
        block = self._block
        if block is not None and block.ledger.taken.get(shard.lease) == device:
            # It is in the sum. The answer was lost.
            self._answer(device, shard)
            return
        if block is None or block.ledger.holder(shard.lease) != device or shard.version != block.lent.version:
            self._answer(device, shard, reason=f"lease {shard.lease} is not sublet to {device} any more")
            return
        try:
            part, delta = self._checked(block, device, shard)
        except PeerViolation as violation:
            block.ledger.drop(device, f"the update of {device} was refused: {violation.reason}")
            self._on_spoilt(device, shard, violation)
            self._go_on(block)
            return
        self._partial.add(delta, weight=float(part.examples))
        block.ledger.take(shard.lease, device, now_s=self.now_s)
        block.parts[shard.lease] = part
        add_logged(block.logged, shard.logged)
        pace = self._pace_of(device)
        pace.durations_s.append(block.ledger.took_s[device])
        pace.stretch = 1.0
        self._answer(device, shard)
        self._go_on(block)

    def _checked(self, block: _Block, device: str, shard: UpdateShard) -> tuple[BlockPart, np.ndarray]:
        """What a device says of its update, and the values."""
        told = Update(
            job=shard.job,
            term=shard.term,
            lease=shard.lease,
            version=shard.version,
            examples=shard.examples,
            loss_sum=shard.loss_sum,
            train_s=shard.train_s,
            logged=shard.logged,
        )
        check_told(told, examples_max=block.lent.examples[shard.lease - block.lent.block - 1])
        delta, norm = decode_with_norm(self._codec, shard.tensors, self._sizes)
        assert isinstance(delta, np.ndarray)
        if self._norm_max is not None and norm > self._norm_max:
            raise BadValues(f"an update of norm {norm:.3g}, far from what is usual; {self._norm_max:.3g} may be")
        part = BlockPart(
            lease=shard.lease, node=device, examples=told.examples, loss_sum=told.loss_sum, train_s=told.train_s
        )
        return part, delta

    def _answer(self, device: str, shard: UpdateShard, *, reason: str = "") -> None:
        form = self._form
        ack = ShardAck(job=form.job, term=form.term, formation=form.formation, lease=shard.lease, reason=clip(reason))
        self.send(device, ack)

    def _on_members(self) -> None:
        """Devices left: what they had is sublet again, or comes back."""
        block = self._block
        if block is None or block.done is not None:
            return
        for device in [each for each in block.lent.devices if each not in self._members]:
            block.ledger.drop(device, f"{device} is gone, or asked for other work")
        self._go_on(block)

    def _on_late(self, late_s: float) -> None:
        block = self._block
        if block is None or block.done is not None:
            return
        if late_s >= PAUSE_LEAST_S:
            self.timer(_LATE, PAUSE_S)
            return
        for device in block.ledger.expire(self.now_s):
            pace = self._pace_of(device)
            pace.stretch = min(2 * pace.stretch, STRETCH_MAX)
        self._go_on(block)

    # The end -----------------------------------------------------------------------------------------------

    def _finish(self, block: _Block) -> None:
        """Tell the leader what is in the sum, and what comes back."""
        lent, tensors = block.lent, {}
        if block.parts:
            mean = self._partial.mean()
            mean.flags.writeable = False
            tensors = {"mean": mean}
        self._partial.clear()
        block.done = BlockDone(
            job=lent.job,
            term=lent.term,
            formation=lent.formation,
            block=lent.block,
            version=lent.version,
            parts=tuple(block.parts[lease] for lease in sorted(block.parts)),
            returned=tuple(
                BlockReturn(lease=lease, reason=clip(reason, REASON_MAX_CHARS))
                for lease, reason in block.ledger.returned().items()
            ),
            logged=tuple(block.logged.values()),
            bytes_up=self._bytes_up,
            bytes_down=self._bytes_down,
            tensors=tensors,
        )
        self._bytes_up = self._bytes_down = 0
        # The model is let go; the sum is kept until the leader lends the next block.
        block.lent = with_tensors(lent, NO_TENSORS)
        self.send(self._leader, block.done)


def aggregator_of(form: SetUpAggregator, *, node: str, leader: str) -> Aggregator:
    """The aggregator that a leader asks for."""
    return (BlockAggregator if form.lends else Aggregator)(form, node=node, leader=leader)
