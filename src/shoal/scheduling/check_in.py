"""When a device without work comes again: after about the same time each, but never too many at once. Pure state.

Pace steering after Bonawitz et al. (MLSys 2019, §2.3), for devices that only ask whether there is work. Time consists
of slots of a second, each with a fixed number of places. A device gets a place in the first slot that is far enough
ahead and not full, at a random moment within it. So a crowd that came at once, after an outage, is spread over several
seconds. Slots fill in order, so this remembers only one slot and one count.
"""

from __future__ import annotations

import math

from shoal.errors import Misuse

SLOT_S = 1.0

#: Check-ins per second that one manager asks for: each costs it a TLS handshake, some milliseconds.
CHECK_INS_PER_S = 50


class CheckIns:
    def __init__(self, *, every_s: float, most_s: float, per_s: int = CHECK_INS_PER_S) -> None:
        """``every_s``: how long a device without work stays away. ``most_s``: the longest time that any device
        waits."""
        if not 0 < every_s <= most_s or per_s < 1:
            raise Misuse(f"the check-in interval is {every_s:g} s; it must be more than 0 s and at most {most_s:g} s")
        self._every_s = every_s
        self._most_s = most_s
        self._places = per_s
        #: None at first: a clock may start at any time.
        self._slot: int | None = None
        self._taken = 0

    def appoint(self, *, now_s: float, draw: float) -> float:
        """Return the seconds until a device should come again. ``draw`` is a random number in [0, 1)."""
        soonest = math.floor((now_s + self._every_s) / SLOT_S)
        if self._slot is None or soonest > self._slot:
            self._slot, self._taken = soonest, 0
        elif self._taken >= self._places:
            self._slot, self._taken = self._slot + 1, 0
        self._taken += 1
        return min(max((self._slot + draw) * SLOT_S - now_s, SLOT_S), self._most_s)
