"""Which workers may upload now, so that a leader's memory is bounded however many finish at once. Pure state."""

from __future__ import annotations


class Admission:
    """Credits for uploads in flight, given in the order of requests."""

    def __init__(self, *, update_bytes: int, budget_bytes: int) -> None:
        #: At least two, so that one slow upload never stops all others.
        self.capacity = max(2, budget_bytes // max(1, update_bytes))
        self._held: set[int] = set()
        #: In the order in which they were offered.
        self._queue: dict[int, None] = {}

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def in_advance(self, lease: int, *, workers: int) -> bool:
        """Admit a lease before its update is ready, if there are few enough workers for all to upload at once. That
        saves the worker a round trip.

        The credit is in use from here on. A worker that joins late may find none left, and asks.
        """
        if workers > self.capacity or len(self._held) >= self.capacity:
            return False
        self._held.add(lease)
        return True

    def holds(self, lease: int) -> bool:
        """Return whether this lease was admitted and its upload has not ended."""
        return lease in self._held

    def offer(self, lease: int) -> bool:
        """Admit or queue a lease whose update is ready. Return whether it is admitted now."""
        if lease in self._held:
            return True
        if len(self._held) < self.capacity:
            self._held.add(lease)
            return True
        self._queue[lease] = None
        return False

    def done(self, lease: int) -> int | None:
        """Record that an upload ended, successfully or not. Return the lease whose turn it is, or None."""
        self._held.discard(lease)
        self._queue.pop(lease, None)
        if self._queue and len(self._held) < self.capacity:
            following = next(iter(self._queue))
            del self._queue[following]
            self._held.add(following)
            return following
        return None
