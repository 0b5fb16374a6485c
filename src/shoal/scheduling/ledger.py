"""The ledger: which batches of an epoch are free, leased, merged or applied. Pure state; time is an argument.

A batch moves free -> leased -> merged -> applied, and back to free if its lease ends without an update. Merged
means summed into a partial that no version contains yet; applied means part of a version. A snapshot keeps only
applied batches, so a ledger and a model restored together always agree.

A worker that asks gets the next free batch or, once an epoch is divided, the next of its own share (``partition``).
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from shoal.errors import Misuse
from shoal.scheduling.partition import BatchPartition

FREE, LEASED, MERGED, APPLIED = range(4)

#: Number of ended leases to remember, so that the sender of a late update learns what became of its lease.
_REMEMBERED = 4096

#: Characters to remember per ended lease: a fate may quote a stack trace, and 4096 of those are megabytes.
_FATE_MAX_CHARS = 200

#: What became of a lease whose update was merged.
_MERGED = "was merged already: a duplicate"

#: State of a batch -> whether a snapshot keeps it.
_IS_APPLIED = bytes(state == APPLIED for state in range(256))


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """Batches that a worker trains on one version until a deadline."""

    id: int
    worker: str
    epoch: int
    batches: tuple[int, ...]
    version: int
    issued_s: float
    deadline_s: float
    #: The latest time to which the deadline may be extended while the delay is not the worker's fault.
    latest_s: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """One batch's place in the durable history."""

    epoch: int
    batch: int
    version: int
    node: str
    lease: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an update is not merged."""

    reason: str
    #: It was merged before, and came again.
    is_copy: bool = False


class Ledger:
    """The batches of one epoch after another."""

    def __init__(self, *, batches: int, epoch: int = 0) -> None:
        if batches < 1:
            raise Misuse("give the ledger at least one batch")
        self.batches = batches
        self.epoch = epoch
        self._state = bytearray(batches)
        self._next = 0
        self._returned: list[int] = []
        #: All free batches, once this epoch is divided. ``_returned`` and ``_next`` are unused then.
        self._shares: BatchPartition | None = None
        self._leases: dict[int, Lease] = {}
        self._by_worker: dict[str, set[int]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._merged: list[Lease] = []
        self._ended: OrderedDict[int, str] = OrderedDict()
        self._applied_count = 0
        #: Batches of this epoch that will not be trained.
        self.waived = 0

    # State -----------------------------------------------------------------------------------------

    @property
    def applied(self) -> int:
        return self._applied_count

    @property
    def outstanding(self) -> int:
        """Number of leases that may still return an update."""
        return len(self._leases)

    @property
    def merged(self) -> int:
        """Number of leases that were merged since the last version."""
        return len(self._merged)

    @property
    def has_free(self) -> bool:
        return bool(self._returned) or self._next < self.batches or bool(self._shares)

    @property
    def sharers(self) -> tuple[str, ...]:
        """The workers that share this epoch, by name. Empty while any worker may get the next batch."""
        return self._shares.workers if self._shares is not None else ()

    @property
    def has_orphans(self) -> bool:
        """Whether a free batch belongs to nobody, because the worker that had it has no share any more."""
        return self._shares is not None and self._shares.has_orphans

    def left_for(self, worker: str) -> int:
        """Return how many of its own batches a worker has not been leased yet, in a divided epoch."""
        return self._shares.left(worker) if self._shares is not None else 0

    @property
    def finished(self) -> bool:
        """Whether every batch of this epoch was applied."""
        return self._applied_count == self.batches

    def held_by(self, worker: str) -> list[Lease]:
        return [self._leases[i] for i in sorted(self._by_worker.get(worker, ()))]

    def get(self, lease_id: int) -> Lease | None:
        """Return the lease with this number if an update may still come for it, else None."""
        return self._leases.get(lease_id)

    def leases(self) -> list[Lease]:
        return [self._leases[i] for i in sorted(self._leases)]

    # Changes ---------------------------------------------------------------------------------------

    def lease(
        self,
        lease_id: int,
        worker: str,
        *,
        version: int,
        count: int,
        now_s: float,
        deadline_s: float,
        latest_s: float = math.inf,
    ) -> Lease | None:
        """Lease up to ``count`` free batches, those that came back first. Return None if none is free for this
        worker."""
        if lease_id in self._leases or lease_id in self._ended:
            raise Misuse(f"lease {lease_id} was used before")
        taken: list[int] = [] if self._shares is None else self._shares.take(worker, count)
        while len(taken) < count and self._returned:
            taken.append(heapq.heappop(self._returned))
        while len(taken) < count and self._next < self.batches:
            taken.append(self._next)
            self._next += 1
            self._skip_applied()
        if not taken:
            return None
        for batch in taken:
            self._move(batch, FREE, LEASED)
        lease = Lease(
            id=lease_id,
            worker=worker,
            epoch=self.epoch,
            batches=tuple(taken),
            version=version,
            issued_s=now_s,
            deadline_s=deadline_s,
            latest_s=latest_s,
        )
        self._leases[lease_id] = lease
        self._by_worker.setdefault(worker, set()).add(lease_id)
        heapq.heappush(self._deadlines, (deadline_s, lease_id))
        return lease

    def find(self, lease_id: int, worker: str) -> Lease | Refusal:
        """Return the lease that a worker names, or why it is refused: expired, merged before, or another worker's."""
        lease = self._leases.get(lease_id)
        if lease is None:
            fate = self._ended.get(lease_id, "is not known to this leader")
            return Refusal(f"lease {lease_id} {fate}", is_copy=fate == _MERGED)
        if lease.worker != worker:
            return Refusal(f"lease {lease_id} belongs to {lease.worker}, not to {worker}")
        return lease

    def merge(self, lease: Lease) -> None:
        """Record that the update of this lease is in the partial now."""
        self._end(lease, _MERGED)
        for batch in lease.batches:
            self._move(batch, LEASED, MERGED)
        self._merged.append(lease)

    def release(self, lease: Lease, *, fate: str) -> None:
        """Free the batches of a lease. ``fate`` completes 'lease 7 ...' in a later answer."""
        self._end(lease, fate)
        for batch in lease.batches:
            self._move(batch, LEASED, FREE)
            if self._shares is not None:
                self._shares.put_back(lease.worker, batch)
            else:
                heapq.heappush(self._returned, batch)

    def divide(self, workers: Iterable[str]) -> None:
        """Divide the free batches equally among these workers, until this epoch ends. May be called again.

        Leased or merged batches stay as they are. A batch that comes back belongs to its worker, if that has a share.
        """
        free = self._shares.batches() if self._shares is not None else self._undivided()
        self._shares = BatchPartition(free, workers)
        self._returned.clear()
        self._next = self.batches

    def _undivided(self) -> list[int]:
        ahead = (batch for batch in range(self._next, self.batches) if self._state[batch] == FREE)
        return [*self._returned, *ahead]

    def extend(self, lease: Lease, *, deadline_s: float) -> None:
        """Give a lease a new deadline: its update is ready and waits for its turn to upload, or its turn has come."""
        self._leases[lease.id] = replace(lease, deadline_s=deadline_s)
        heapq.heappush(self._deadlines, (deadline_s, lease.id))

    def put_off(self, by_s: float) -> None:
        """Extend every lease by this many seconds."""
        for lease in self.leases():
            if lease.deadline_s < math.inf:
                later = replace(lease, deadline_s=lease.deadline_s + by_s, latest_s=lease.latest_s + by_s)
                self._leases[lease.id] = later
                heapq.heappush(self._deadlines, (later.deadline_s, lease.id))

    def late(self, now_s: float) -> list[Lease]:
        """Return leases whose deadline has passed, without taking them back."""
        if self.next_deadline_s > now_s:
            return []
        return [lease for lease in self.leases() if lease.deadline_s <= now_s]

    def expire(self, now_s: float) -> list[Lease]:
        """Take back every lease whose deadline has passed."""
        expired: list[Lease] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, lease_id = heapq.heappop(self._deadlines)
            lease = self._leases.get(lease_id)
            if lease is not None and lease.deadline_s <= now_s:
                self.release(
                    lease,
                    fate=f"expired after {now_s - lease.issued_s:.1f} s; its batches were given out again",
                )
                expired.append(lease)
        return expired

    @property
    def next_deadline_s(self) -> float:
        """A time before which no lease expires. Infinite while nothing is leased."""
        while self._deadlines and self._deadlines[0][1] not in self._leases:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else math.inf

    def apply(self, version: int) -> list[Applied]:
        """Record that all merged batches are part of ``version``."""
        rows = [
            Applied(epoch=lease.epoch, batch=batch, version=version, node=lease.worker, lease=lease.id)
            for lease in self._merged
            for batch in lease.batches
        ]
        for row in rows:
            self._move(row.batch, MERGED, APPLIED)
        self._applied_count += len(rows)
        self._merged.clear()
        return rows

    def waive(self) -> None:
        """Skip the rest of this epoch. Only for jobs where a batch stands for a lease on a device's own examples, so
        that no example is left out."""
        if self._leases or self._merged:
            raise Misuse(f"epoch {self.epoch} cannot be waived: {self.outstanding} leases are out")
        self.waived = self.batches - self._applied_count
        self._applied_count = self.batches
        self._state = bytearray([APPLIED]) * self.batches
        self._next, self._shares = self.batches, None
        self._returned.clear()

    def next_epoch(self) -> None:
        """Begin the next epoch with every batch free. Raises Misuse if this epoch is not finished."""
        if not self.finished or self._leases or self._merged:
            raise Misuse(f"epoch {self.epoch} is not finished: {self.applied} of {self.batches} batches applied")
        self.epoch += 1
        self._state = bytearray(self.batches)
        self._next = 0
        self._returned.clear()
        self._shares = None
        self._deadlines.clear()
        self._applied_count = self.waived = 0

    # Snapshots -------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Return the applied batches as JSON values. Leased and merged batches are free again after a restore."""
        return {"epoch": self.epoch, "batches": self.batches, "applied": _runs(self._state.translate(_IS_APPLIED))}

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Ledger:
        ledger = cls(batches=int(snapshot["batches"]), epoch=int(snapshot["epoch"]))
        end = 0
        for start, stop in snapshot["applied"]:
            if not end <= start < stop <= ledger.batches:
                raise Misuse("the ledger snapshot names a batch twice, or a batch that does not exist")
            end = stop
            ledger._state[start:stop] = bytes([APPLIED]) * (stop - start)
            ledger._applied_count += stop - start
        ledger._skip_applied()
        return ledger

    def check(self) -> None:
        """Raise Misuse if the ledger contradicts itself. For tests and simulations."""
        leased = sorted(batch for lease in self._leases.values() for batch in lease.batches)
        merged = sorted(batch for lease in self._merged for batch in lease.batches)
        by_state = [[i for i, s in enumerate(self._state) if s == state] for state in range(4)]
        free = self._undivided() if self._shares is None else self._shares.batches()
        held = sorted(i for ids in self._by_worker.values() for i in ids)
        if by_state[LEASED] != leased or by_state[MERGED] != merged or held != sorted(self._leases):
            raise Misuse("the ledger's leases and states disagree")
        if by_state[FREE] != sorted(free) or len(by_state[APPLIED]) != self._applied_count:
            raise Misuse("the ledger lost a batch")

    def _skip_applied(self) -> None:
        """Move ``_next`` to a free batch, or to the end: after a restore, later batches may be applied already."""
        while self._next < self.batches and self._state[self._next] == APPLIED:
            self._next += 1

    def _move(self, batch: int, before: int, after: int) -> None:
        if self._state[batch] != before:
            raise Misuse(f"batch {batch} is in state {self._state[batch]}, not {before}")
        self._state[batch] = after

    def _end(self, lease: Lease, fate: str) -> None:
        del self._leases[lease.id]
        held = self._by_worker[lease.worker]
        held.remove(lease.id)
        if not held:
            del self._by_worker[lease.worker]
        self._ended[lease.id] = fate[:_FATE_MAX_CHARS]
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)


def _runs(flags: bytes | bytearray) -> list[list[int]]:
    """Return runs of set flags: [0,1,1,0,1] -> [[1,3],[4,5]]. An epoch is mostly one run."""
    runs: list[list[int]] = []
    at = flags.find(1)
    while at >= 0:
        stop = flags.find(0, at)
        stop = len(flags) if stop < 0 else stop
        runs.append([at, stop])
        at = flags.find(1, stop)
    return runs
