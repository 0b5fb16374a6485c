"""What must never be false of blocks, seen from the outside: who has which batch, what is in a sum, what is merged.

A block is out from the leader's ``LendBlock`` until the leader hears of its end or records that it took it back. As the
other oracles, this one looks at events and actions alone, and knows nothing of ledgers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from shoal.roles.actions import Record, Save, Send
from shoal.roles.events import Received
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.wire.messages import (
    BlockDone,
    LendBlock,
    Offer,
    SetUpAggregator,
    ShardAck,
    Update,
    UpdateReady,
    UpdateShard,
    Work,
)

_LEASE = re.compile(r"lease (\d+) ")

#: No hub waits for less than this before it sublets a lease again.
WAIT_LEAST_S = 0.5


@dataclass(slots=True)
class _Lent:
    """A block as its leader sees it."""

    lent: LendBlock
    hub: str
    is_out: bool = True
    #: What closed it, if that was its end.
    done: BlockDone | None = None


@dataclass(slots=True)
class _Sublet:
    """A block as its hub sees it. One process of the hub at a time has it."""

    lent: LendBlock
    #: Lease -> the device that has it, and since when.
    held: dict[int, tuple[str, float]] = field(default_factory=dict)
    #: Lease -> the device whose update was taken, of how many examples, and the update.
    taken: dict[int, tuple[str, int, np.ndarray]] = field(default_factory=dict)
    #: Leases that were sublet once.
    seen: set[int] = field(default_factory=set)
    is_done: bool = False


class BlockOracle:
    """An observer that raises at the first step that breaks one."""

    def __init__(self) -> None:
        #: (leader's node, job, term) -> its blocks by number.
        self._lent: dict[tuple[str, str, int], dict[int, _Lent]] = {}
        #: (hub, job, term, formation) -> its newest block.
        self._sublet: dict[tuple[str, str, int, int], _Sublet] = {}
        #: (job, term, lease) -> the hubs that sublet it; and every lease of a block.
        self._of_blocks: dict[tuple[str, int, int], set[str]] = {}
        #: How many blocks were merged, taken back, and leases that came back or were sublet again.
        self.merged = self.taken_back = self.returned = self.sublet_again = self.refused = 0
        #: (leader's node, job) -> its term; and ends of blocks that were lent under an older one.
        self._terms: dict[tuple[str, str], int] = {}
        self.stale = 0

    def step(self, step: Step) -> None:
        match step.role:
            case "leader":
                self._leader(step)
            case "aggregator":
                self._aggregator(step)
            case "worker":
                self._worker(step)
            case _:
                pass

    # The leader ------------------------------------------------------------------------------------------

    def _leader(self, step: Step) -> None:
        if isinstance(step.event, Received) and isinstance(step.event.message, BlockDone):
            self._ends(step, step.event.sender, step.event.message)
        for action in step.actions:
            match action:
                case Send(message=LendBlock() as block):
                    self._lends(step, action.to, block)
                case Send(message=Work(kind="train") as work):
                    self._is_nobodys(step, work.term, work.epoch, work.batches, f"lease {work.lease}")
                case Record(kind="expired" | "lease-returned"):
                    self._takes_back(step, action.reason)
                case Save():
                    self._saves(step, action)
                case _:
                    pass

    def _blocks(self, step: Step, term: int) -> dict[int, _Lent]:
        return self._lent.setdefault((step.node, step.job, term), {})

    def _is_nobodys(self, step: Step, term: int, epoch: int, batches: tuple[int, ...], what: str) -> None:
        for number, other in self._blocks(step, term).items():
            both = set(batches).intersection(other.lent.batches) if other.is_out and other.lent.epoch == epoch else ()
            self._hold(not both, step, f"{what} has batches {both}, which block {number} of {other.hub} has as well")

    def _lends(self, step: Step, hub: str, block: LendBlock) -> None:
        blocks = self._blocks(step, block.term)
        known = blocks.get(block.block)
        if known is not None:
            is_same = known.is_out and (known.hub, known.lent) == (hub, block)
            self._hold(is_same, step, f"block {block.block} was lent to {hub} again, and is not out there as it was")
            return
        self._is_nobodys(step, block.term, block.epoch, block.batches, f"block {block.block} of {hub}")
        others = [number for number, other in blocks.items() if other.is_out and other.hub == hub]
        self._hold(not others, step, f"{hub} was lent block {block.block}, and has {others}")
        blocks[block.block] = _Lent(block, hub)
        for lease in block.parts():
            self._of_blocks.setdefault((step.job, block.term, lease), set())

    def _ends(self, step: Step, hub: str, done: BlockDone) -> None:
        block = self._blocks(step, done.term).get(done.block)
        if block is not None and block.is_out and block.hub == hub:
            block.is_out, block.done = False, done
            self.merged += bool(done.parts)
            self.returned += len(done.returned)
        else:
            self.refused += 1
        self.stale += done.term < self._terms.get((step.node, step.job), 0)

    def _takes_back(self, step: Step, reason: str) -> None:
        found = _LEASE.match(reason)
        if found is None:
            return
        for (node, job, _), blocks in self._lent.items():
            block = blocks.get(int(found[1])) if (node, job) == (step.node, step.job) else None
            if block is not None and block.is_out:
                block.is_out = False
                self.taken_back += 1

    def _saves(self, step: Step, save: Save) -> None:
        """What is in the history of a block is what its end named, by the device that it named."""
        blocks = self._blocks(step, int(save.state["term"]))
        of_lease = {lease: block for block in blocks.values() for lease in block.lent.parts()}
        for row in save.applied:
            block = of_lease.get(row.lease)
            if block is None:
                continue
            what = f"batch {row.batch} of epoch {row.epoch} is in version {row.version} by lease {row.lease}"
            self._hold(block.done is not None, step, f"{what}, whose block was taken back or is out")
            assert block.done is not None
            named = {part.lease: part.node for part in block.done.parts}
            self._hold(named.get(row.lease) == row.node, step, f"{what}, and its block named {named}")
            self._hold(row.batch in block.lent.parts()[row.lease], step, f"{what}, which does not have it")

    # The hub -----------------------------------------------------------------------------------------------

    def _aggregator(self, step: Step) -> None:
        event = step.event
        if isinstance(event, Received) and isinstance(event.message, LendBlock):
            lent = event.message
            key = (step.node, lent.job, lent.term, lent.formation)
            known = self._sublet.get(key)
            if known is None or known.lent.block < lent.block:
                self._sublet[key] = _Sublet(lent)
        if isinstance(event, Received) and isinstance(event.message, SetUpAggregator):
            form = event.message
            if (block := self._sublet.get((step.node, form.job, form.term, form.formation))) is not None:
                block.held = {lease: had for lease, had in block.held.items() if had[0] in form.members}
        for action in step.actions:
            match action:
                case Send(message=Work() as work) if work.block:
                    self._sublets(step, action.to, work)
                case Send(message=ShardAck(reason="") as taken):
                    if (step.job, taken.term, taken.lease) in self._of_blocks:
                        self._takes(step, action.to, taken)
                case Send(message=BlockDone() as done):
                    self._sums_up(step, done)
                case _:
                    pass

    def _sublets(self, step: Step, device: str, work: Work) -> None:
        block = self._sublet.get((step.node, work.job, work.term, work.formation))
        what = f"{step.node} sublet lease {work.lease} to {device}"
        is_known = block is not None and block.lent.block == work.block and not block.is_done
        self._hold(is_known, step, f"{what}, of a block that it does not have")
        assert block is not None
        self._hold(block.lent.parts().get(work.lease) == work.batches, step, f"{what} for other batches")
        self._hold(device in block.lent.devices, step, f"{what}, which the block is not for")
        self._hold(work.lease not in block.taken, step, f"{what}, whose update it has from another")
        had, since_s = block.held.get(work.lease, ("", 0.0))
        is_early = bool(had) and step.at_s - since_s < WAIT_LEAST_S
        self._hold(not is_early, step, f"{what}, which {had} was given a moment ago")
        self.sublet_again += work.lease in block.seen
        block.seen.add(work.lease)
        block.held[work.lease] = (device, step.at_s)
        self._of_blocks.setdefault((step.job, work.term, work.lease), set()).add(step.node)

    def _takes(self, step: Step, device: str, ack: ShardAck) -> None:
        block = self._sublet[step.node, ack.job, ack.term, ack.formation]
        assert isinstance(step.event, Received)
        shard = step.event.message
        assert isinstance(shard, UpdateShard)
        what = f"{step.node} took an update of lease {ack.lease} from {device}"
        known = block.taken.get(ack.lease)
        if known is not None:
            # A copy, whose answer was lost.
            self._hold(known[0] == device, step, f"{what}, which it has from {known[0]}")
            return
        self._hold(not block.is_done, step, f"{what} after the end of its block")
        self._hold(block.held.get(ack.lease, ("",))[0] == device, step, f"{what}, which has not got it")
        del block.held[ack.lease]
        delta = np.array(shard.tensors["delta"], dtype=np.float64)
        block.taken[ack.lease] = (device, shard.examples, delta)

    def _sums_up(self, step: Step, done: BlockDone) -> None:
        block = self._sublet.get((step.node, done.job, done.term, done.formation))
        what = f"the end of block {done.block} at {step.node}"
        self._hold(block is not None and block.lent.block == done.block, step, f"{what}, which it does not have")
        assert block is not None
        named = {part.lease: (part.node, part.examples) for part in done.parts}
        taken = {lease: (node, examples) for lease, (node, examples, _) in block.taken.items()}
        self._hold(named == taken, step, f"{what} names {named}; its sum is of {taken}")
        leases = sorted([*named, *(back.lease for back in done.returned)])
        self._hold(leases == sorted(block.lent.parts()), step, f"{what} is of leases {leases}")
        block.is_done = True
        if not named:
            return
        weight = sum(examples for _, examples, _ in block.taken.values())
        total = sum(examples * delta for _, examples, delta in block.taken.values())
        is_mean = np.allclose(done.tensors["mean"], total / weight, atol=1e-5)
        self._hold(is_mean, step, f"{what} is not the mean of {sorted(named)}")

    # The device --------------------------------------------------------------------------------------------

    def _worker(self, step: Step) -> None:
        """What a hub sublet goes to that hub and to nobody else."""
        for action in step.actions:
            if not isinstance(action, Send):
                continue
            message = action.message
            if isinstance(message, Update | Offer | UpdateReady | UpdateShard):
                hubs = self._of_blocks.get((step.job, message.term, message.lease))
                is_right = hubs is None or (isinstance(message, UpdateShard) and action.to in hubs)
                told = f"{step.node} sent {type(message).__name__} of lease {message.lease} to {action.to}"
                self._hold(is_right, step, f"{told}; {hubs} sublet it")

    def mark(self, mark: Mark) -> None:
        if mark.kind == "led":
            self._terms[mark.node, mark.facts["job"]] = int(mark.facts["term"])

    def _hold(self, holds: bool, step: Step, what: str) -> None:
        if not holds:
            raise Violation(f"at {step.at_s:.3f} s: {what}")
