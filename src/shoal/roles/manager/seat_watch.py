"""When a manager ends the seat of another that is silent, and which of its jobs it takes over. Decides only.

No clock of another machine is believed: a manager that is alive counts on, and one that saw the same count again and
again for long enough, by its own clock, may end that seat. Whether it does is up to the database.

A database may answer reads while it takes no write, or takes each write slowly: then nobody counts on, and everybody
seems to be silent. So a manager compares the others with itself: silence counts only while its own seat is proven.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

#: A seat whose count stands still for so long may be ended. Its holder counts on three times in that.
SILENT_S = 3.0
RENEW_EVERY_S = 1.0
LOOK_EVERY_S = 0.4

#: A manager whose event loop stands still for so long does nothing for its jobs, and does not count on. In less than
#: that it may be busy: thousands of devices come to it at once when another manager was killed, and more would follow
#: them if it was ended as well.
STILL_S = 15.0

#: Two looks prove at most this much silence, however far apart they are: a manager that was stopped, perhaps with the
#: other one on the same machine, looks on for a while before it ends anything. One that is merely slow gets there.
GAP_MAX_S = 1.5


#: How often a manager proves its own seat, from the attempt to the answer, while it watches another stand still: as
#: slow as the database is, a manager that is alive counts on at least once in that time.
PROOFS_LEAST = 2

#: A manager that could not count on for so long has been succeeded, if any other lives: it sends its devices away.
DOUBT_S = 2 * SILENT_S

#: A sum of gaps is not exact.
_ROUNDING_S = 1e-6


class Seat(NamedTuple):
    """The seat of a manager that is alive, as the database shows it."""

    #: One process: a manager that is started again has another seat.
    holder: str
    beats: int
    #: The HOST:PORT that devices dial; empty: it serves none yet.
    address: str = ""
    #: How many more devices its jobs could use now.
    wants: int = 0
    #: How many devices its jobs lack below their least.
    starving: int = 0
    #: How many devices are connected to it.
    devices: int = 0
    #: An operator drained it: it takes no job.
    is_drained: bool = False


def home_of(holder: str) -> str:
    """The home of a manager's process: at most one process at a time runs from it."""
    return holder.rpartition("/")[0] or holder


@dataclass(slots=True)
class _Watched:
    beats: int
    #: When this count was first seen.
    since_s: float
    silence_s: float = 0.0
    #: How often the watching manager proved its own seat since then.
    proofs: int = 0
    #: It was seen to count on.
    has_counted: bool = False


class SeatWatch:
    """What a manager saw of the seats of others."""

    def __init__(self, *, silent_s: float = SILENT_S, gap_max_s: float = GAP_MAX_S) -> None:
        self._silent_s = silent_s
        self._gap_max_s = gap_max_s
        self._seen: dict[str, _Watched] = {}
        self._looked_s = 0.0

    def silent(self, seats: Iterable[Seat], now_s: float) -> list[Seat]:
        """Of the seats that were seen just now, those that may be ended."""
        gap_s = min(now_s - self._looked_s, self._gap_max_s)
        before, self._seen, self._looked_s = self._seen, {}, now_s
        silent = []
        for seat in seats:
            watched = before.get(seat.holder)
            if watched is not None and watched.beats == seat.beats:
                watched.silence_s += gap_s
            else:
                watched = _Watched(seat.beats, now_s, has_counted=watched is not None)
            self._seen[seat.holder] = watched
            if watched.silence_s >= self._silent_s - _ROUNDING_S and watched.proofs >= PROOFS_LEAST:
                silent.append(seat)
        return silent

    @property
    def may_take(self) -> bool:
        """Whether jobs without a manager may be taken: every other seat was seen to count on. A store that went back
        shows jobs as they were, and each manager that wrote since finds out when it counts."""
        return all(watched.has_counted for watched in self._seen.values())

    def on_proven(self, asked_s: float) -> None:
        """Count a proof of the own seat that was asked for at this time."""
        for watched in self._seen.values():
            watched.proofs += asked_s >= watched.since_s

    def blind(self) -> None:
        """Forget all silence: the database did not answer, or did not take a proof of the own seat. Others could not
        count on either."""
        self._seen = {}


def share(orphans: Mapping[str, str], holder: str, holders: Iterable[str]) -> list[str]:
    """Which jobs without a manager this one takes now, of these and their leaders: as many as every living manager
    would, each from another place on. So jobs spread, and those that one leaves are taken by the next that looks.

    Jobs that one device leads go together: it can be with one manager alone."""
    groups: dict[str, list[str]] = {}
    for job in sorted(orphans):
        groups.setdefault(orphans[job] or f" {job}", []).append(job)
    queue = list(groups.values())
    living = sorted({holder, *holders})
    count = math.ceil(len(queue) / len(living))
    first = living.index(holder) * count
    return [job for place in range(first, first + count) for job in queue[place % len(queue)]]


def may_serve(unproven_s: float) -> bool:
    """Whether a manager that last proved its seat so long ago keeps its doors open. Its devices would stay with it
    otherwise, while another manager, which it cannot know of, waits for them."""
    return unproven_s <= DOUBT_S
