"""When a device shall come back, so that a crowd is spread out. Pure state; knows no requests.

Pace steering after Bonawitz et al. (MLSys 2019, §2.3): the server aims at so many check-ins a second and tells each
device when to come again. Here time is cut into slots of about a second with so many places each. Whoever is told to
come back gets the first place that is free: a crowd that came at once returns in file. When in its slot is drawn, so
that they do not all knock as it begins. Who comes uninvited takes a place of the present slot, if there is one.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from shoal.errors import Misuse

#: Nobody is sent away for longer: by then much will have changed.
LONGEST_S = 24 * 3600.0
#: Who comes this much before its time is on time: clocks and links are not exact.
EARLY_S = 1.0

#: Appointments remembered. Who is forgotten comes uninvited.
APPOINTMENTS_KEPT = 200_000


class Steering:
    def __init__(self, *, per_s: float, soonest_s: float = 0.0, longest_s: float = LONGEST_S) -> None:
        if not (math.isfinite(per_s) and per_s > 0) or not 0 <= soonest_s <= longest_s:
            raise Misuse("pace steering aims at more than 0 check-ins a second, and sends away for 0 s or longer")
        #: Places of a slot, and how long it is: whole places, and a second or longer.
        self.places = max(1, math.floor(per_s))
        self.slot_s = self.places / per_s
        self._soonest_s = soonest_s
        self._longest_s = longest_s
        #: Slot -> places taken; no slot that is over.
        self._taken: dict[int, int] = {}
        self._now = 0
        #: No slot that may be given out lies before this one.
        self._free = 0
        self._appointments: OrderedDict[str, float] = OrderedDict()

    def arrives(self, device: str, *, now_s: float) -> bool:
        """Whether there is room for it now."""
        slot = self._slot(now_s)
        appointed_s = self._appointments.get(device)
        if appointed_s is not None and now_s >= appointed_s - EARLY_S:
            del self._appointments[device]
            return True
        if self._taken.get(slot, 0) >= self.places:
            return False
        self._taken[slot] = self._taken.get(slot, 0) + 1
        self._appointments.pop(device, None)
        return True

    def appoint(self, device: str, *, now_s: float, draw: float) -> float:
        """In how many seconds a device shall come again. ``draw``: a number in [0, 1) from the caller's chance."""
        if not 0 <= draw < 1:
            raise Misuse(f"a draw is a number in [0, 1), not {draw}")
        appointed_s = self._appointments.get(device)
        if appointed_s is not None and appointed_s > now_s:
            # However often it asks, it has one place.
            return appointed_s - now_s
        self._slot(now_s)
        self._free = max(self._free, math.ceil((now_s + self._soonest_s) / self.slot_s))
        while self._taken.get(self._free, 0) >= self.places:
            self._free += 1
        if (self._free + 1) * self.slot_s > now_s + self._longest_s:
            # All is taken. It comes some time, beside others: crowded, but nobody waits for ever.
            return self._soonest_s + draw * (self._longest_s - self._soonest_s)
        self._taken[self._free] = self._taken.get(self._free, 0) + 1
        at_s = (self._free + draw) * self.slot_s
        self._appointments[device] = at_s
        self._appointments.move_to_end(device)
        while len(self._appointments) > APPOINTMENTS_KEPT:
            self._appointments.popitem(last=False)
        return at_s - now_s

    def _slot(self, now_s: float) -> int:
        """The present one; forgets those that are over."""
        now = math.floor(now_s / self.slot_s)
        if now > self._now:
            if now - self._now > len(self._taken):
                self._taken = {slot: taken for slot, taken in self._taken.items() if slot >= now}
            else:
                for slot in range(self._now, now):
                    self._taken.pop(slot, None)
            self._now = now
        return now
