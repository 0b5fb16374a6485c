"""The store that simulated managers share: a seat that one of them has, and files that count while it proves so.

The twin of ``store.seat`` and of what a manager does while its database is away. Who may take the seat is decided by
the deployed role (``roles.manager.standby``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from shoal.roles.actions import Keep
from shoal.roles.manager.cluster_state import JobRecord
from shoal.roles.manager.standby import Seat
from shoal.sim.disk import Disk, Write

#: How often a manager tries again that its store is away for.
AGAIN_S = 0.5


@dataclass(frozen=True, slots=True)
class SimTenure:
    """A manager's holding of the seat."""

    holder: str
    term: int


class SimSeats:
    """One row: who has the seat, under which term, and how far that one has counted."""

    def __init__(self) -> None:
        self._seat: Seat | None = None

    def look(self) -> Seat | None:
        return self._seat

    def take(self, holder: str, seen: Seat | None) -> SimTenure | None:
        """If it is still as it was seen."""
        if seen is not None and self._seat is not None:
            is_as_seen = (seen.term, seen.beats) == (self._seat.term, self._seat.beats)
        else:
            is_as_seen = seen is None and self._seat is None
        if not is_as_seen:
            return None
        term, beats = (1, 0) if seen is None else (seen.term + 1, seen.beats + 1)
        self._seat = Seat(holder=holder, term=term, beats=beats)
        return SimTenure(holder, term)

    def prove(self, tenure: SimTenure) -> bool:
        """Count on, if this is who has the seat."""
        seat = self._seat
        if seat is None or (seat.holder, seat.term) != (tenure.holder, tenure.term):
            return False
        self._seat = seat._replace(beats=seat.beats + 1)
        return True


class SharedStore:
    """What managers reach of it, and how fast it is."""

    def __init__(self, truth: Disk) -> None:
        #: The durable records of all managers.
        self.truth = truth
        self.seats = SimSeats()
        self._cuts: Counter[str] = Counter()
        self._slowness: list[float] = []
        #: Hears every write: the manager that wrote, and its term of the seat.
        self.on_write: Callable[[str, int], object] = lambda label, term: None
        #: When it was last away for someone, or slow.
        self.disturbed_s = -math.inf

    def is_away(self, label: str) -> bool:
        return self._cuts[label] > 0

    @property
    def slow_factor(self) -> float:
        return math.prod(self._slowness)

    @property
    def is_disturbed(self) -> bool:
        return bool(self._slowness) or any(self._cuts.values())

    def cut(self, labels: tuple[str, ...]) -> Callable[[], None]:
        """These managers do not reach it, until what is returned is called."""
        self._cuts.update(labels)
        return lambda: self._cuts.subtract(labels)

    def slow(self, factor: float) -> Callable[[], None]:
        self._slowness.append(factor)
        return lambda: self._slowness.remove(factor)


class SharedDisk(Disk):
    """What one manager, in one tenure, has of it. What it has not finished is its own; what is durable is everyone's.

    Every write proves the tenure at the moment in which it becomes durable, or comes to nothing.
    """

    def __init__(self, store: SharedStore, *, label: str, tenure: SimTenure) -> None:
        super().__init__(store.truth.kernel, store.truth.flaws)
        self._store = store
        self._label = label
        self._tenure = tenure
        self.share_with(store.truth)

    @property
    def sync_s(self) -> float:
        return self._store.truth.sync_s * self._store.slow_factor

    @property
    def has_room(self) -> bool:
        return self._store.truth.has_room

    @property
    def is_away(self) -> bool:
        return self._store.is_away(self._label)

    def _may_write(self) -> bool:
        return not self.is_away and self._store.seats.prove(self._tenure)

    def _tell(self) -> None:
        self._store.on_write(self._label, self._tenure.term)

    def keep(self, keep: Keep, done: Callable[[], object] | None = None) -> float:
        """However long the store is away, and never if another manager has the seat: then this one is about to end."""
        assert done is not None
        record = self.recorded(keep)
        self.kernel.after(self.sync_s / 2, self._try_to_keep, record, done)
        return math.inf

    def _try_to_keep(self, record: JobRecord, done: Callable[[], object]) -> None:
        if not self.is_under_way(record):
            return
        if self.is_away:
            self.kernel.after(AGAIN_S, self._try_to_keep, record, done)
        elif self._may_write():
            self._kept(record)
            self.kernel.after(self.sync_s / 2, done)

    def _kept(self, record: JobRecord) -> None:
        self._tell()
        super()._kept(record)

    def _commit(self, write: Write) -> None:
        self._tell()
        super()._commit(write)

    def _finish(self, write: Write, done: Callable[[bool], object]) -> None:
        if write.is_void or self._may_write():
            super()._finish(write, done)
        else:
            self.give_up(write)
            self.kernel.after(self.sync_s / 10, done, False)

    def crash(self, fate: str) -> None:
        """The manager is gone: what it had sent is done or not; a file that is there in part has no name."""
        is_done = self.is_busy and fate == "safe" and self._may_write()
        if is_done:
            self._tell()
        super().crash("safe" if is_done else "lost")
