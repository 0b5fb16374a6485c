"""How long a lease may take, learned from the leases that came back. Pure state."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

#: Before any measurement: generous, since a cold device compiles and warms up.
FIRST_S = 60.0
#: About the time to restart a trainer: ending one that is only slow costs as much as waiting that long.
SHORTEST_S = 3.0
#: A home uplink of 1 Mb/s: the first lease of a large model must have time to arrive.
SLOWEST_LINK_BYTES_PER_S = 125_000
LONGEST_S = 300.0

#: A lease that takes this many times the median is given to someone else.
PATIENCE = 8.0

#: A lease that was fitted to a budget of time has this many times the budget, in addition to what leases usually have.
SIZED_PATIENCE = 2.0

#: The largest factor by which the first allowance grows when leases expire before any came back.
STRETCH_MAX = 16.0

#: Returned leases that are needed before the median is trusted.
_ENOUGH = 8


#: How long a leader waits for a worker that has returned leases before: this many times its own median, or this many
#: times its second-longest recent lease, and at least ``OWN_SHORTEST_S``. Then its batches go to others, though it may
#: still finish. The wait doubles each time it was too short. It is short because every other worker may be idle
#: meanwhile. It applies only while others return updates, which shows that only this worker is late. Otherwise the
#: leader, the network or the machine may have paused, and the leader waits up to ``TOGETHER_TIMES`` as long for all.
OWN_PATIENCE = 2.0
TOGETHER_TIMES = 4.0
OWN_LONG_PATIENCE = 1.5
OWN_SHORTEST_S = 0.5
OWN_ENOUGH = 3
OWN_MANY = 5


def wait_s(own_s: Sequence[float], *, stretch: float, longest_s: float) -> float:
    """Return how long a leader waits for a worker whose recent leases took this long. A round waits for its last lease,
    so a worker is compared with its own pace as soon as that is known."""
    if len(own_s) < OWN_ENOUGH:
        return longest_s
    ordered_s = sorted(own_s)
    usual_s = OWN_PATIENCE * median(ordered_s)
    if len(own_s) >= OWN_MANY:
        usual_s = max(usual_s, OWN_LONG_PATIENCE * ordered_s[-2])
    return min(longest_s, stretch * max(OWN_SHORTEST_S, usual_s))


class LeaseClock:
    """Remembers recent durations and gives the time limit of the next lease."""

    def __init__(self, *, fixed_s: float = 0.0, transfer_bytes: int = 0) -> None:
        self._fixed_s = fixed_s
        self._first_s = FIRST_S + transfer_bytes / SLOWEST_LINK_BYTES_PER_S
        self._recent: deque[float] = deque(maxlen=64)
        self._per_example_s: deque[float] = deque(maxlen=64)
        self._median_s: float | None = None
        self._stretch = 1.0

    def expired(self) -> None:
        """Record that a lease expired. Until one has come back, the next lease gets longer: all workers may be this
        slow.

        Once one has come back, the others are stuck and not slow. Doubling the wait for each would then delay everyone.
        """
        if not self._recent:
            self._stretch = min(2 * self._stretch, STRETCH_MAX)

    def returned(self, duration_s: float, *, examples: int = 0) -> None:
        """Record how long a lease took, and over how many examples, if that is known."""
        self._recent.append(duration_s)
        self._median_s = None
        if examples:
            self._per_example_s.append(duration_s / examples)

    def sized_s(self, examples: int, *, budget_s: float) -> float:
        """Return the seconds that a lease of this size has at least. The first leases of a fleet only measure it, and
        are far shorter than those that fill a budget. ``budget_s``: what the lease was fitted to, or 0 if it was fitted
        to energy."""
        if self._fixed_s:
            return 0.0
        if budget_s:
            return SIZED_PATIENCE * budget_s
        return PATIENCE * examples * median(self._per_example_s) if self._per_example_s else 0.0

    @property
    def typical_s(self) -> float:
        """The median of recent leases, or 0 until one comes back."""
        if self._median_s is None:
            self._median_s = median(self._recent) if self._recent else 0.0
        return self._median_s

    def allowance_s(self) -> float:
        if self._fixed_s:
            return self._fixed_s
        if len(self._recent) < _ENOUGH:
            return self._first_s * self._stretch
        # A large model on a slow link takes longer than LONGEST_S: then the time for the transfer is the limit.
        return min(max(LONGEST_S, self._first_s), max(SHORTEST_S, PATIENCE * self.typical_s))
