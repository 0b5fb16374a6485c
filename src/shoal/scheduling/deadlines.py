"""How long a lease may take, learned from the leases that came back. Pure state."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

#: Before anything is known: generous, a cold device compiles and warms up.
FIRST_S = 60.0
#: About what it takes to start a trainer again: to end one that is only slow costs as much as to wait that long.
SHORTEST_S = 3.0
#: A home uplink of 1 Mb/s: the first lease of a large model must have time to arrive.
SLOWEST_LINK_BYTES_PER_S = 125_000
LONGEST_S = 300.0

#: A lease that takes this many times the median is given to someone else.
PATIENCE = 8.0

#: How far the first allowance grows when leases run out before any came back.
STRETCH_MAX = 16.0

#: Returns needed before the median is trusted.
_ENOUGH = 8


#: A worker that has returned leases before is waited for this many times its own median, or this many times the longest
#: but one of late, and at least so long; then its batches go to others, while it may finish. Twice as long each time
#: that was too soon. Every other worker may stand idle meanwhile, so it is not much: but only where others return
#: updates meanwhile, and show that this worker alone is late. Where no other does, the leader, the network or the
#: machine may have paused, and all of them are waited for up to ``TOGETHER_TIMES`` as long.
OWN_PATIENCE = 2.0
TOGETHER_TIMES = 4.0
OWN_LONG_PATIENCE = 1.5
OWN_SHORTEST_S = 0.5
OWN_ENOUGH = 3
OWN_MANY = 5


def wait_s(own_s: Sequence[float], *, stretch: float, longest_s: float) -> float:
    """How long a leader waits for a worker whose recent leases took this long: a round waits for its last lease, so a
    worker is judged by its own pace as soon as it has one."""
    if len(own_s) < OWN_ENOUGH:
        return longest_s
    ordered_s = sorted(own_s)
    usual_s = OWN_PATIENCE * median(ordered_s)
    if len(own_s) >= OWN_MANY:
        usual_s = max(usual_s, OWN_LONG_PATIENCE * ordered_s[-2])
    return min(longest_s, stretch * max(OWN_SHORTEST_S, usual_s))


class LeaseClock:
    """Remembers recent durations and says what to allow the next lease."""

    def __init__(self, *, fixed_s: float = 0.0, transfer_bytes: int = 0) -> None:
        self._fixed_s = fixed_s
        self._first_s = FIRST_S + transfer_bytes / SLOWEST_LINK_BYTES_PER_S
        self._recent: deque[float] = deque(maxlen=64)
        self._median_s: float | None = None
        self._stretch = 1.0

    def expired(self) -> None:
        """A lease ran out. While none has come back, the next is given longer: all may be this slow.

        Once one has, the others are stuck rather than slow, and waiting twice as long for each would hold up everyone.
        """
        if not self._recent:
            self._stretch = min(2 * self._stretch, STRETCH_MAX)

    def returned(self, duration_s: float) -> None:
        self._recent.append(duration_s)
        self._median_s = None

    @property
    def typical_s(self) -> float:
        """The median of recent leases; 0 while nothing came back."""
        if self._median_s is None:
            self._median_s = median(self._recent) if self._recent else 0.0
        return self._median_s

    def allowance_s(self) -> float:
        if self._fixed_s:
            return self._fixed_s
        if len(self._recent) < _ENOUGH:
            return self._first_s * self._stretch
        # A large model on a slow link takes longer than LONGEST_S by nature: then what the transfer needs is the cap.
        return min(max(LONGEST_S, self._first_s), max(SHORTEST_S, PATIENCE * self.typical_s))
