"""Blocks: leases of hubs, which sublet their batches and give back one sum. A part of the leader.

The leader's ledger has a block as one lease, whose worker is the hub. ``BlockDone`` closes it in one step: the block is
split into the leases that it names, each of the device that trained it, and those are merged or free. So a second
``BlockDone`` finds no block, and a block that was taken back stays so, whatever its hub sums up.

Taking a block back breaks its formation (``Formations.forget``): the hub and its devices hear by that to drop what they
have, and a device says that it is free once it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from shoal.errors import PeerViolation
from shoal.learning.metrics import logged_problem
from shoal.roles.aggregation.formation import AggregatorShare, ArrivedUpdate, Formation, OpenBlock
from shoal.roles.aggregation.formations import Summed
from shoal.roles.leader.leases import Leases
from shoal.roles.leader.parts import Shared
from shoal.roles.leader.workers import WorkerRecord
from shoal.roles.machine import Machine
from shoal.scheduling.ledger import Lease, Refusal
from shoal.states import WorkerState
from shoal.wire.checks import check_told
from shoal.wire.coded import bytes_of
from shoal.wire.limits import BLOCK_BATCHES_MAX, BLOCK_LEASES_MAX
from shoal.wire.messages import BlockDone, BlockPart, Go, LendBlock, Update


class Blocks:
    def __init__(self, machine: Machine, shared: Shared, *, leases: Leases) -> None:
        self._machine = machine
        self._spec, self._term = shared.spec, shared.term
        self._training, self._workers, self._formations = shared.training, shared.workers, shared.formations
        self._durability = shared.durability
        self._leases = leases

    @property
    def _now(self) -> Formation | None:
        return self._formations.now

    @property
    def are_out(self) -> bool:
        return self._now is not None and bool(self._now.blocks)

    def serves(self, node: str) -> bool:
        """Whether this worker gets its leases from a hub now."""
        return self._now is not None and self._now.lends and self._formations.reaches_its_own(node)

    def holds(self, node: str) -> bool:
        """Whether this worker works for a block that is out."""
        return self._now is not None and any(node in block.devices for block in self._now.blocks.values())

    # Out -------------------------------------------------------------------------------------------------

    def lend(self, first: WorkerRecord, *, may_start: Callable[[WorkerRecord], bool], began: int) -> int:
        """Lend a block to the hub of this worker, for all of its workers that are ready. Returns the bytes sent.

        If the hub has a block, the worker rests until that is done. ``began``: as in ``Work``."""
        now = self._now
        assert now is not None
        share = now.shares_of(first.node)[0]
        if self.holds(first.node) or any(block.hub == share.node for block in now.blocks.values()):
            self._workers.rest(first)
            return 0
        devices = [first, *(worker for worker in self._beside(first, share) if may_start(worker))]
        size = self._spec.plan.lease_batches
        devices = devices[: max(1, min(BLOCK_LEASES_MAX, BLOCK_BATCHES_MAX // size))]
        lent = self._leases.lend_block(share.node, count=size * len(devices), lease_batches=size)
        if lent is None:
            return 0
        lease, allowance_s, deadline_s = lent
        # At the end of an epoch there are fewer leases than workers.
        devices = devices[: math.ceil(len(lease.batches) / size)]
        parts = [lease.batches[at : at + size] for at in range(0, len(lease.batches), size)]
        message = LendBlock(
            job=self._spec.job,
            term=self._term,
            formation=now.number,
            block=lease.id,
            version=lease.version,
            durable_version=max(0, self._durability.version),
            epoch=lease.epoch,
            batches=lease.batches,
            lease_batches=size,
            examples=tuple(self._training.examples_in_batches(part) for part in parts),
            devices=tuple(worker.node for worker in devices),
            lease_s=allowance_s,
            deadline_s=deadline_s,
            began=began,
            rate=self._spec.plan.rate_at(lease.version),
            norm_max=self._formations.norm_told(),
            tensors={"model": self._training.model},
        )
        now.blocks[lease.id] = OpenBlock(message, share.node, {worker.node for worker in devices})
        for worker in devices:
            self._workers.make_busy(worker, WorkerState.WORKING, reason=f"works for {share.node}")
        self._machine.send(share.node, message)
        return bytes_of(message.tensors)

    def _beside(self, first: WorkerRecord, share: AggregatorShare) -> list[WorkerRecord]:
        """The other workers of a hub that are idle, may have leases, and work for no block."""
        idle = [worker for worker in self._workers.idle() if worker is not first and worker.node in share.members]
        return [
            worker
            for worker in idle
            if self.serves(worker.node)
            and not worker.left_out
            and worker.node not in self._workers.leaving
            and not self.holds(worker.node)
        ]

    def lend_again(self, hub: str) -> None:
        """A hub connected again: its block, or what it said of it, may be lost. If it has it, it says what it said."""
        for block in list(self._now.blocks.values()) if self._now is not None else []:
            if block.hub == hub:
                self._machine.send(hub, block.lent)

    # Back ------------------------------------------------------------------------------------------------

    def take_back(self, hub: str, reason: str) -> None:
        """Free the batches of the blocks that this hub has."""
        for number in [lease for lease, block in self._now.blocks.items() if block.hub == hub] if self._now else []:
            lease = self._training.ledger.get(number)
            assert lease is not None, f"block {number} is out and is not lent"
            self._leases.take_back(self._training.ledger, lease, fate=f"was taken back: {reason}")

    def part_of(self, number: int, node: str) -> Lease | None:
        """The lease of this number that a device speaks of, if it works for the block that has it."""
        for block in self._now.blocks.values() if self._now is not None else []:
            parts, lease = block.lent.parts(), self._training.ledger.get(block.lent.block)
            if number in parts and node in block.devices and lease is not None:
                return Lease(
                    id=number,
                    worker=node,
                    epoch=lease.epoch,
                    batches=parts[number],
                    version=lease.version,
                    issued_s=lease.issued_s,
                    deadline_s=lease.deadline_s,
                )
        return None

    def leave(self, node: str, reason: str) -> None:
        """A worker takes no further part in a block: its hub hears so, and has another train what it had."""
        if self.holds(node):
            self._formations.on_left(node, reason)

    def on_done(self, sender: str, done: BlockDone) -> Summed | None:
        """Close a block. Returns its updates, to be merged as one; None: it is closed already, or has none.

        Raises PeerViolation for what is not the end of that block: its hub can be no part of a formation."""
        now, ledger = self._now, self._training.ledger
        lease = ledger.find(done.block, sender)
        if isinstance(lease, Refusal) or now is None or done.block not in now.blocks:
            reason = lease.reason if isinstance(lease, Refusal) else f"lease {done.block} is no block"
            self._machine.record("refused", f"block of {sender}: {reason}")
            return None
        block = now.blocks[done.block]
        updates, mean = self._checked(block.lent, done), None
        if updates:
            mean = self._formations.read_mean(done.tensors, size=self._training.model.size)
        del now.blocks[done.block]
        parts, by = block.lent.parts(), {part.lease: part.node for part in done.parts}
        children = ledger.split(lease, {number: (by.get(number, sender), parts[number]) for number in sorted(parts)})
        fates = {back.lease: back.reason for back in done.returned}
        for child in children:
            if child.id in fates:
                fate = f"came back from {sender}: {fates[child.id]}"
                ledger.release(child, fate=fate)
                self._machine.record("lease-returned", f"lease {child.id} {fate}")
        for node in sorted(block.devices.difference(by.values())):
            # It is at its lease still, or says that it is free: its hub may not have reached it.
            self._machine.send(node, Go(job=done.job, term=done.term, lease=done.block, formation=done.formation))
        # Workers of this hub that had no lease of the block may have one of the next.
        self._workers.release()
        if mean is None:
            return None
        reports = tuple(ArrivedUpdate(child, updates[child.id], 1.0) for child in children if child.id in updates)
        weight = float(sum(update.examples for update in updates.values()))
        return Summed(reports, mean, weight, is_news=True)

    def _checked(self, lent: LendBlock, done: BlockDone) -> dict[int, Update]:
        """What was said of each update in a hub's sum, by lease. Each lease is in the sum or comes back."""
        told = [*(part.lease for part in done.parts), *(back.lease for back in done.returned)]
        if sorted(told) != sorted(lent.parts()) or (done.version, done.formation) != (lent.version, lent.formation):
            raise PeerViolation(f"leases {sorted(told)[:8]} of version {done.version} as the end of block {lent.block}")
        if strange := [part.node for part in done.parts if part.node not in lent.devices]:
            raise PeerViolation(f"updates of {strange[:4]}, which block {lent.block} was not lent for")
        if done.logged and (found := logged_problem(done.logged, examples=sum(lent.examples))) is not None:
            raise PeerViolation(f"a block that logged {found}")
        updates = {part.lease: _update(done, part) for part in done.parts}
        for number, update in updates.items():
            check_told(update, examples_max=lent.examples[number - lent.block - 1])
        if done.parts:
            # What all of them logged is counted once, with the first.
            first = done.parts[0].lease
            updates[first] = replace(updates[first], logged=done.logged)
        return updates


def _update(done: BlockDone, part: BlockPart) -> Update:
    return Update(
        job=done.job,
        term=done.term,
        lease=part.lease,
        version=done.version,
        examples=part.examples,
        loss_sum=part.loss_sum,
        train_s=part.train_s,
    )
