"""When a standby takes the seat of a manager that is silent. Decides only.

No clock of another machine is believed: the manager in the seat counts on, and a standby that saw the same count again
and again for long enough, by its own clock, may take it. Whether it does is up to the database.
"""

from __future__ import annotations

from typing import NamedTuple

#: A seat whose count stands still for so long may be taken. Its holder counts on three times in that.
SILENT_S = 3.0
RENEW_EVERY_S = 1.0
LOOK_EVERY_S = 0.4

#: Two looks prove at most this much silence, however far apart they are: a standby that was stopped, perhaps with the
#: holder on the same machine, looks on for a while before it takes anything. One that is merely slow gets there.
GAP_MAX_S = 1.5


#: A manager that could not count on for so long has been succeeded, if any manager stood by: it sends its devices away.
DOUBT_S = 2 * SILENT_S

#: A sum of gaps is not exact.
_ROUNDING_S = 1e-6


class Seat(NamedTuple):
    """A seat as the database shows it."""

    #: Empty: it was given up.
    holder: str
    term: int
    beats: int


class SeatWatch:
    """What a standby saw of a seat."""

    def __init__(self, *, silent_s: float = SILENT_S, gap_max_s: float = GAP_MAX_S) -> None:
        self._silent_s = silent_s
        self._gap_max_s = gap_max_s
        self._seen: Seat | None = None
        self._silence_s = 0.0
        self._looked_s = 0.0

    def may_take(self, seat: Seat | None, now_s: float) -> bool:
        """Whether the seat that was seen just now may be taken. None: nobody ever had it."""
        if seat is None or not seat.holder:
            return True
        if seat == self._seen:
            self._silence_s += min(now_s - self._looked_s, self._gap_max_s)
        else:
            self._seen, self._silence_s = seat, 0.0
        self._looked_s = now_s
        return self._silence_s >= self._silent_s - _ROUNDING_S

    def blind(self) -> None:
        """The database did not answer: its holder could not count on either."""
        self._seen = None


def may_serve(unproven_s: float) -> bool:
    """Whether a manager that last proved its seat so long ago keeps its doors open. Its devices would stay with it
    otherwise, while another manager, which it cannot know of, waits for them."""
    return unproven_s <= DOUBT_S
