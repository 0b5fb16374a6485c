"""When a device should come back, so that a crowd of devices is spread over time. Pure state.

Pace steering after Bonawitz et al. (MLSys 2019, §2.3): the server aims at a number of check-ins per second and tells
each device when to return. Here time consists of slots of about a second, and each slot has a fixed number of places. A
device that has to wait gets the first free place, so devices that came all at once return one by one. The moment
within the slot is random, so that they do not all arrive at its start. A device without an appointment takes a place in
the current slot, if there is one.

A device that gets a lease returns when the lease is done, at a time that nobody knows beforehand. So the leader
reserves a place at about the expected time, and then gives the device another lease. If the device had to wait instead,
it would send two requests per lease, and a busy leader would get twice the requests it aims at. After ``TURN_LEASES``
leases the device's turn is over: it gets an appointment like any other device, if others wait.

Within one lease time from now the returns are known, and appointments take all the other places. Further ahead they
take only as many places as turns can begin there: devices whose turn begins then will need the rest.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

from shoal.errors import Misuse

#: No device is sent away for longer: by then much will have changed.
LONGEST_S = 24 * 3600.0
#: A device that comes this much before its time counts as on time: clocks and links are not exact.
EARLY_S = 1.0
#: A device that comes this much after its time has lost its place. Otherwise a whole crowd that a broken link held up
#: could come at once.
LATE_S = 60.0

#: Leases that a device gets one after the other while others wait. A larger number would save requests (one in nine is
#: a wait) but make the others wait longer for their turn.
TURN_LEASES = 8

#: Expected lease time before any lease came back. After that it follows the median, by this share per return. A device
#: that takes this many times the expected time is no longer expected.
FIRST_LAP_S = 30.0
_LAP_STEP = 0.02
_LAPS_OUT = 4.0

#: Devices remembered, of each kind. A forgotten device counts as one without an appointment.
APPOINTMENTS_KEPT = 200_000

_Told = TypeVar("_Told")


@dataclass(slots=True)
class _Turn:
    """The turn of a device that got a lease."""

    #: When it got its last lease, and whether it has not come back since.
    lent_s: float = 0.0
    is_out: bool = False
    #: Whether a place is reserved for its return.
    is_kept: bool = False
    #: Leases that it may still get in this turn.
    left: int = 0


class Steering:
    def __init__(
        self, *, per_s: float, soonest_s: float = 0.0, longest_s: float = LONGEST_S, lap_s: float = FIRST_LAP_S
    ) -> None:
        """``lap_s``: the expected lease time, until measurements replace it."""
        if not (math.isfinite(per_s) and per_s > 0) or not 0 <= soonest_s <= longest_s:
            raise Misuse("set more than 0 check-ins per second, and 0 <= soonest_s <= longest_s for pace steering")
        if not 0 < lap_s < math.inf:
            raise Misuse(f"lap_s is {lap_s}; it must be more than 0 s")
        #: Places per slot, and the length of a slot: a second or longer, so that it has an integer number of places.
        self.places = max(1, math.floor(per_s))
        self.slot_s = self.places / per_s
        self._soonest_s = soonest_s
        self._longest_s = longest_s
        self._lap_s = lap_s
        #: Slot -> places taken, and those of them that were appointed far ahead. Past slots are removed.
        self._taken: dict[int, int] = {}
        self._far_taken: dict[int, int] = {}
        self._now = 0
        #: The first slot that may have a free place: within one lease time from now, and beyond it.
        self._near = self._far = 0
        self._appointments: OrderedDict[str, float] = OrderedDict()
        self._turns: OrderedDict[str, _Turn] = OrderedDict()

    def arrives(self, device: str, *, now_s: float) -> bool:
        """Return whether there is room for the device now."""
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
        """Record that an admitted device got a lease, and reserve a place for its return."""
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
        """Return the seconds until a device should come again. ``draw`` is a random number in [0, 1)."""
        if not 0 <= draw < 1:
            raise Misuse(f"draw is {draw}; it must be in [0, 1)")
        self._turns.pop(device, None)
        appointed_s = self._appointments.get(device)
        if appointed_s is not None and appointed_s > now_s:
            # A device has only one place, however often it asks.
            return appointed_s - now_s
        slot = self._first_free(now_s)
        if (slot + 1) * self.slot_s > now_s + self._longest_s:
            # All places are taken. The device comes at a random time: that slot is too full, but nobody waits for ever.
            return self._soonest_s + draw * (self._longest_s - self._soonest_s)
        self._taken[slot] = self._taken.get(slot, 0) + 1
        if slot == self._far:
            self._far_taken[slot] = self._far_taken.get(slot, 0) + 1
        at_s = (slot + draw) * self.slot_s
        _keep(self._appointments, device, at_s)
        return at_s - now_s

    def _first_free(self, now_s: float) -> int:
        """Return the slot of the first place that may be given out."""
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
        """Return the most turns that can begin in a slot: each takes a place now and one for each of its returns."""
        share = TURN_LEASES + 1
        return (slot + 1) * self.places // share - slot * self.places // share

    def _is_expected(self, turn: _Turn, now_s: float) -> bool:
        """Return whether a device with a lease came back at about the expected time. Adjusts the expected lease
        time."""
        turn.is_out = False
        lap_s, is_late = now_s - turn.lent_s, now_s - turn.lent_s > _LAPS_OUT * self._lap_s
        self._lap_s = min(self._lap_s * (1 + _LAP_STEP if lap_s > self._lap_s else 1 - _LAP_STEP), self._longest_s)
        return turn.is_kept and not is_late

    def _slot(self, now_s: float) -> int:
        """Return the current slot, and forget past ones."""
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
