"""Fixed shares: which batches belong to which worker only. Pure state; does not depend on leases or time.

EDDL compares its dynamic distribution with this (§6.5, Figure 13): every worker has the same number of batches, however
fast it is. Shares are assigned in the order of worker names, so that every leader computes the same ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from shoal.errors import Misuse


def cut(batches: Sequence[int], workers: Iterable[str]) -> dict[str, list[int]]:
    """Return consecutive batches for each worker, by name. All get the same number, or one more for the first
    workers."""
    names = sorted(set(workers))
    if not names:
        raise Misuse("set at least one worker to divide batches among")
    each, over = divmod(len(batches), len(names))
    shares: dict[str, list[int]] = {}
    start = 0
    for place, name in enumerate(names):
        stop = start + each + (place < over)
        shares[name] = list(batches[start:stop])
        start = stop
    return shares


class BatchPartition:
    """The free batches of an epoch, divided among workers until it is divided again."""

    def __init__(self, batches: Iterable[int], workers: Iterable[str]) -> None:
        #: Worker -> a heap of its batches that are not leased.
        self._shares = cut(sorted(batches), workers)
        #: Batches that came back from a worker that has no share.
        self._orphans: list[int] = []
        self._count = sum(len(share) for share in self._shares.values())

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(self._shares)

    def __len__(self) -> int:
        return self._count

    @property
    def has_orphans(self) -> bool:
        """Whether some free batches belong to no worker until the epoch is divided again."""
        return bool(self._orphans)

    def left(self, worker: str) -> int:
        """Return how many batches of its own the worker has not been leased."""
        return len(self._shares.get(worker, ()))

    def take(self, worker: str, count: int) -> list[int]:
        """Take up to ``count`` of the worker's own batches, lowest numbers first."""
        share = self._shares.get(worker, [])
        taken = [heapq.heappop(share) for _ in range(min(count, len(share)))]
        self._count -= len(taken)
        return taken

    def put_back(self, worker: str, batch: int) -> None:
        """Return a batch that was leased to this worker. It belongs to the worker again, or to nobody if the worker has
        no share any more."""
        heapq.heappush(self._shares.get(worker, self._orphans), batch)
        self._count += 1

    def batches(self) -> list[int]:
        """Return all free batches, in order."""
        return sorted([*self._orphans, *(batch for share in self._shares.values() for batch in share)])
