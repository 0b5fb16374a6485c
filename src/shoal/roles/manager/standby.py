"""When a standby takes the seat of a manager that is silent. Decides only.

No clock of another machine is believed: the manager in the seat counts on, and a standby that saw the same count for
long enough, by its own clock and without a gap in what it saw, may take it. Whether it does is up to the database.
"""

from __future__ import annotations

from typing import NamedTuple

#: A seat whose count stands still for so long may be taken. Its holder counts on three times in that.
SILENT_S = 3.0
RENEW_EVERY_S = 1.0
LOOK_EVERY_S = 0.4

#: Two looks further apart than this saw nothing in between: the watch begins again.
GAP_MAX_S = 1.5


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
        self._since_s = 0.0
        self._looked_s = 0.0

    def may_take(self, seat: Seat | None, now_s: float) -> bool:
        """Whether the seat that was seen just now may be taken. None: nobody ever had it."""
        if seat is None or not seat.holder:
            return True
        if seat != self._seen or now_s - self._looked_s > self._gap_max_s:
            self._seen, self._since_s = seat, now_s
        self._looked_s = now_s
        return now_s - self._since_s >= self._silent_s

    def blind(self) -> None:
        """The database did not answer: its holder could not count on either."""
        self._seen = None
