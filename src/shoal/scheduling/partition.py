"""Fixed shares: which batches belong to which worker, and to nobody else. Pure state; knows no leases and no time.

What EDDL compares its dynamic distribution with (§6.5, Figure 13): every worker has the same number of batches, however
fast it is. Shares are cut over the names in their order, so that every leader cuts alike.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from shoal.errors import Misuse


def cut(batches: Sequence[int], workers: Iterable[str]) -> dict[str, list[int]]:
    """Neighbouring batches for each worker, by name; as many for each, or one more for the first of them."""
    names = sorted(set(workers))
    if not names:
        raise Misuse("batches are divided among at least one worker")
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
        #: Worker -> a heap of its batches that nobody was lent.
        self._shares = cut(sorted(batches), workers)
        #: What came back from someone who has no share.
        self._orphans: list[int] = []
        self._count = sum(len(share) for share in self._shares.values())

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(self._shares)

    def __len__(self) -> int:
        return self._count

    @property
    def has_orphans(self) -> bool:
        """Some free batches belong to no worker until the epoch is divided again."""
        return bool(self._orphans)

    def left(self, worker: str) -> int:
        """How many are its own and not lent to it."""
        return len(self._shares.get(worker, ()))

    def take(self, worker: str, count: int) -> list[int]:
        """Up to so many of its own, those of the lowest number first."""
        share = self._shares.get(worker, [])
        taken = [heapq.heappop(share) for _ in range(min(count, len(share)))]
        self._count -= len(taken)
        return taken

    def put_back(self, worker: str, batch: int) -> None:
        """It was lent to this worker and is free again: its own as before, or nobody's if it has no share any more."""
        heapq.heappush(self._shares.get(worker, self._orphans), batch)
        self._count += 1

    def batches(self) -> list[int]:
        """All that are free, in order."""
        return sorted([*self._orphans, *(batch for share in self._shares.values() for batch in share)])
