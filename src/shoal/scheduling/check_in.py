"""When a device without work comes again: about so long from now, and never too many at once. Pure state.

Pace steering after Bonawitz et al. (MLSys 2019, §2.3), for devices that only ask whether there is work. Time is cut
into slots of a second, and each has so many places. A device gets a place in the first slot that is far enough ahead
and not full, at a moment within it that is drawn: a crowd that came at once, after an outage, returns over as many
seconds as it takes. Slots are filled in order, so one number and one count are all that is remembered.
"""

from __future__ import annotations

import math

from shoal.errors import Misuse

SLOT_S = 1.0

#: Check-ins that one manager is asked for in a second: each costs it a handshake of TLS, some milliseconds.
CHECK_INS_PER_S = 50


class CheckIns:
    def __init__(self, *, every_s: float, most_s: float, per_s: int = CHECK_INS_PER_S) -> None:
        """``every_s``: how long a device without work stays away. ``most_s``: no device is sent away for longer."""
        if not 0 < every_s <= most_s or per_s < 1:
            raise Misuse(f"a device comes again after more than 0 s and at most {most_s:g} s, not {every_s:g}")
        self._every_s = every_s
        self._most_s = most_s
        self._places = per_s
        #: A clock may begin anywhere.
        self._slot: int | None = None
        self._taken = 0

    def appoint(self, *, now_s: float, draw: float) -> float:
        """In how many seconds a device shall come again. ``draw``: a number in [0, 1) from the caller's chance."""
        soonest = math.floor((now_s + self._every_s) / SLOT_S)
        if self._slot is None or soonest > self._slot:
            self._slot, self._taken = soonest, 0
        elif self._taken >= self._places:
            self._slot, self._taken = self._slot + 1, 0
        self._taken += 1
        return min(max((self._slot + draw) * SLOT_S - now_s, SLOT_S), self._most_s)
