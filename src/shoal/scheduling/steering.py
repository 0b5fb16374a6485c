"""When a device shall come back, so that a crowd is spread out. Pure state; knows no requests.

Pace steering after Bonawitz et al. (MLSys 2019, §2.3): the server aims at so many check-ins a second and tells each
device when to come again. Here time is cut into slots of about a second with so many places each. A device
that is told to come back gets the first free place: a crowd that came at once returns one by one. The moment within
the slot is drawn, so that devices do not all knock as it begins. A device that comes uninvited takes a place of the
present slot, if there is one.

Who is lent work comes back too, when it is done, and nobody can tell it when. So a place is kept for that about when it
is expected, and it is lent work again: told to wait, it would come twice for each lease, and a leader with a crowd at
its door would be asked twice as often as it aims at. After ``TURN_LEASES`` it stands in file again, if others wait.
Who will come back within the time of a lease is known; what that leaves is given out. Of what lies further ahead only
so much is given out as begins of turns come to it: devices whose turn comes then will take the rest.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from shoal.errors import Misuse

#: Nobody is sent away for longer: by then much will have changed.
LONGEST_S = 24 * 3600.0
#: Who comes this much before its time is on time: clocks and links are not exact.
EARLY_S = 1.0
#: Who comes this much after it is late, and uninvited: were late ones let in all the same, so would be a whole crowd
#: that a broken link held up.
LATE_S = 60.0

#: Leases a device has one after the other while others wait. More would save requests (one in nine is a wait), and
#: have the others wait longer for their turn.
TURN_LEASES = 8

#: How long a lease is out, before any came back. Then the median is followed, by so much of it each time; and who is
#: out so many times as long is not expected any more.
FIRST_LAP_S = 30.0
_LAP_STEP = 0.02
_LAPS_OUT = 4.0

#: Devices remembered, of each kind. Who is forgotten comes uninvited.
APPOINTMENTS_KEPT = 200_000

_Told = TypeVar("_Told")


@dataclass(slots=True)
class _Turn:
    """Of a device that was lent work."""

    #: When it was; and whether it has not come back since.
    lent_s: float = 0.0
    is_out: bool = False
    #: A place is taken for its return.
    is_kept: bool = False
    #: Leases that it may still have.
    left: int = 0


class Steering:
    def __init__(
        self, *, per_s: float, soonest_s: float = 0.0, longest_s: float = LONGEST_S, lap_s: float = FIRST_LAP_S
    ) -> None:
        """``lap_s``: how long a lease is out, until that is known better."""
        if not (math.isfinite(per_s) and per_s > 0) or not 0 <= soonest_s <= longest_s:
            raise Misuse("pace steering aims at more than 0 check-ins a second, and sends away for 0 s or longer")
        if not 0 < lap_s < math.inf:
            raise Misuse(f"a lease is out for more than 0 s, not {lap_s}")
        #: Places of a slot, and how long it is: whole places, and a second or longer.
        self.places = max(1, math.floor(per_s))
        self.slot_s = self.places / per_s
        self._soonest_s = soonest_s
        self._longest_s = longest_s
        self._lap_s = lap_s
        #: Slot -> places taken, and those of them that were given out far ahead; no slot that is over.
        self._taken: dict[int, int] = {}
        self._far_taken: dict[int, int] = {}
        self._now = 0
        #: No slot that may be given out lies before these: of those within a lap from now, and of those beyond.
        self._near = self._far = 0
        self._appointments: OrderedDict[str, float] = OrderedDict()
        self._turns: OrderedDict[str, _Turn] = OrderedDict()

    def arrives(self, device: str, *, now_s: float) -> bool:
        """Whether there is room for it now."""
        slot = self._slot(now_s)
        turn = self._turns.get(device)
        if turn is not None and turn.is_out and self._is_expected(turn, now_s):
            return turn.left > 0 or self._taken.get(slot + 1, 0) < self.places
        appointed_s = self._appointments.get(device)
        if appointed_s is not None and now_s >= appointed_s - EARLY_S:
            del self._appointments[device]
            if now_s <= appointed_s + LATE_S:
                return True
        if self._taken.get(slot, 0) >= self.places:
            return False
        self._taken[slot] = self._taken.get(slot, 0) + 1
        self._appointments.pop(device, None)
        return True

    def lends(self, device: str, *, now_s: float) -> None:
        """One that there was room for was lent work: it will be back."""
        self._appointments.pop(device, None)
        turn = self._turns.get(device) or _Turn()
        slot = max(self._near, math.floor((now_s + self._lap_s) / self.slot_s))
        while self._taken.get(slot, 0) >= self.places:
            slot += 1
        turn.lent_s, turn.is_out, turn.left = now_s, True, (turn.left or TURN_LEASES) - 1
        turn.is_kept = slot * self.slot_s <= now_s + self._longest_s
        if turn.is_kept:
            self._taken[slot] = self._taken.get(slot, 0) + 1
        _keep(self._turns, device, turn)

    def appoint(self, device: str, *, now_s: float, draw: float) -> float:
        """In how many seconds a device shall come again. ``draw``: a number in [0, 1) from the caller's chance."""
        if not 0 <= draw < 1:
            raise Misuse(f"a draw is a number in [0, 1), not {draw}")
        self._turns.pop(device, None)
        appointed_s = self._appointments.get(device)
        if appointed_s is not None and appointed_s > now_s:
            # However often it asks, it has one place.
            return appointed_s - now_s
        slot = self._first_free(now_s)
        if (slot + 1) * self.slot_s > now_s + self._longest_s:
            # All is taken. It comes some time, beside others: crowded, but nobody waits for ever.
            return self._soonest_s + draw * (self._longest_s - self._soonest_s)
        self._taken[slot] = self._taken.get(slot, 0) + 1
        if slot == self._far:
            self._far_taken[slot] = self._far_taken.get(slot, 0) + 1
        at_s = (slot + draw) * self.slot_s
        _keep(self._appointments, device, at_s)
        return at_s - now_s

    def _first_free(self, now_s: float) -> int:
        """The slot of the first place that may be given out."""
        self._slot(now_s)
        first = math.ceil((now_s + self._soonest_s) / self.slot_s)
        lap_end = math.floor((now_s + self._lap_s) / self.slot_s)
        self._near = max(self._near, first)
        while self._near <= lap_end and self._taken.get(self._near, 0) >= self.places:
            self._near += 1
        if self._near <= lap_end:
            return self._near
        self._far = max(self._far, first, lap_end + 1)
        while self._is_full_far(self._far):
            self._far += 1
        return self._far

    def _is_full_far(self, slot: int) -> bool:
        return self._far_taken.get(slot, 0) >= self._begins(slot) or self._taken.get(slot, 0) >= self.places

    def _begins(self, slot: int) -> int:
        """Turns that begin in a slot, where as many do as can: one for each that returns so many times."""
        share = TURN_LEASES + 1
        return (slot + 1) * self.places // share - slot * self.places // share

    def _is_expected(self, turn: _Turn, now_s: float) -> bool:
        """Whether one that was lent work comes about when it should; learns from it when that is."""
        turn.is_out = False
        lap_s, is_late = now_s - turn.lent_s, now_s - turn.lent_s > _LAPS_OUT * self._lap_s
        self._lap_s = min(self._lap_s * (1 + _LAP_STEP if lap_s > self._lap_s else 1 - _LAP_STEP), self._longest_s)
        return turn.is_kept and not is_late

    def _slot(self, now_s: float) -> int:
        """The present one; forgets those that are over."""
        now = math.floor(now_s / self.slot_s)
        if now > self._now:
            for by_slot in (self._taken, self._far_taken):
                over = range(self._now, now) if now - self._now <= len(by_slot) else [at for at in by_slot if at < now]
                for slot in over:
                    by_slot.pop(slot, None)
            self._now = now
        return now


def _keep(of: OrderedDict[str, _Told], device: str, told: _Told) -> None:
    of[device] = told
    of.move_to_end(device)
    while len(of) > APPOINTMENTS_KEPT:
        of.popitem(last=False)
