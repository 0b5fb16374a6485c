"""Which leases of hubs a worker still takes. Pure state.

A worker has two that lend to it: its leader and its hub. Lease numbers of a term grow, and a block has its number when
the leader lends it to the hub: so a worker can tell whether a hub speaks of a block from before the leader's last word.
"""

from __future__ import annotations

from shoal.wire.messages import Work


class Sublets:
    def __init__(self) -> None:
        #: (term, number) of the newest block or lease of the leader that this worker had a lease of.
        self._newest = (0, 0)
        #: The newest block that this worker left: it told the leader that it is free.
        self._left = (0, 0)
        #: The last lease was a hub's.
        self._is_sublet = False

    def admits(self, work: Work, *, holds: bool) -> bool:
        """Whether to take this lease. ``holds``: the worker has one."""
        number = (work.term, work.block or work.lease)
        if work.block:
            is_old = number < self._newest or number <= self._left
            # What it has of the leader counts more: the leader counts on it.
            if is_old or (holds and not self._is_sublet):
                return False
        self._newest = max(self._newest, number)
        self._is_sublet = bool(work.block)
        return True

    def leave(self) -> None:
        """The worker tells the leader that it is free: the hub may not know, and speak of its block still."""
        self._left = self._newest
