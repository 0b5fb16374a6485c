"""Who may upload now, so that a leader's memory is bounded however many workers finish at once. Pure state."""

from __future__ import annotations


class Admission:
    """Credits for uploads in flight, handed out first come, first served."""

    def __init__(self, *, update_bytes: int, budget_bytes: int) -> None:
        #: At least two, so that one slow upload never stops all others.
        self.capacity = max(2, budget_bytes // max(1, update_bytes))
        self._held: set[int] = set()
        #: In the order they were offered.
        self._queue: dict[int, None] = {}

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def in_advance(self, lease: int, *, workers: int) -> bool:
        """Few enough workers that all may upload at once need not ask: it saves them a round trip.

        The place is taken from here on. A worker that joins late may find all places taken, and asks.
        """
        if workers > self.capacity or len(self._held) >= self.capacity:
            return False
        self._held.add(lease)
        return True

    def holds(self, lease: int) -> bool:
        """This lease was admitted and its upload has not ended."""
        return lease in self._held

    def offer(self, lease: int) -> bool:
        """An update is ready: admitted now, or queued."""
        if lease in self._held:
            return True
        if len(self._held) < self.capacity:
            self._held.add(lease)
            return True
        self._queue[lease] = None
        return False

    def done(self, lease: int) -> int | None:
        """An upload ended, well or not. Returns the lease whose turn it is."""
        self._held.discard(lease)
        self._queue.pop(lease, None)
        if self._queue and len(self._held) < self.capacity:
            following = next(iter(self._queue))
            del self._queue[following]
            self._held.add(following)
            return following
        return None
