"""Seats: a row for each living manager. A manager whose row was deleted cannot write.

Every writing transaction of a manager increments a count in its row. That shows others that the manager is alive, and
proves that it may write: if the row was deleted, the transaction fails. A seat's name is given once, to one process: a
seat that has ended does not come back.

A count that is not above the last committed one shows that the database went back in time, by a restore or by a
failover that lost transactions. The transaction that finds this fails too, because its manager's state is out of date.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import ShoalError
from shoal.roles.manager.seat_watch import Seat, home_of
from shoal.store.base import Database, Parameters, Row, Statements

#: Begins the name of a fact: this seat was ended, and how far it had counted. It goes when the home has another seat.
_ENDED = "ended seat "

#: The fact that names the drained managers: a JSON object of their homes, each with who drained it and why. A home
#: outlives its seats, so a manager that starts again is still drained.
DRAINED = "drained managers"

_SEATS = (
    "SELECT holder, beats, address, wants, starving, devices, (SELECT value FROM facts WHERE name = ?) AS drained"
    " FROM seats ORDER BY holder"
)

#: The count of a seat whose manager is to start over: its next count is not above any that it knows.
REWOUND = -1


class Deposed(ShoalError):
    """Another manager has taken over: nothing that this one decides counts any more."""


class GivenAway(ShoalError):
    """This manager gave a job to another one. What it still had under way about the job comes to nothing."""


class WentBack(Deposed):
    """The database is older than what this manager wrote to it: the manager has to start over."""


class Counted:
    """How far the committed transactions of a seat have counted, over all connections of its manager."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.beats = 0
        #: Called with the count after each transaction, in the thread that committed it.
        self.on_counted: Callable[[int], object] = lambda beats: None

    def on_committed(self, beats: int) -> None:
        with self._lock:
            self.beats = max(self.beats, beats)
            self.on_counted(self.beats)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenure:
    """The right to write, until another manager ends it."""

    holder: str
    counted: Counted = field(default_factory=Counted, compare=False)
    #: The seats that earlier processes of this home had and how far they had counted, as the database showed it; and
    #: the same of those that others had ended.
    before: Mapping[str, int] = field(default_factory=dict)
    ended_before: Mapping[str, int] = field(default_factory=dict)


class Seats:
    """Best on a connection of their own: a manager that waits for a long write would seem to be silent."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, holder: str, address: str = "") -> Tenure:
        """Open a seat. ``address`` is the HOST:PORT that devices dial, or empty if the manager serves none yet. It ends
        the seat of an earlier process with the same home: the home's lock allows only one at a time."""
        with self._database.transaction(of_job=True) as database:
            found = {seat.holder: seat.beats for seat in seats_in(database) if seat.holder != holder}
            notes = database.rows("SELECT name, value FROM facts WHERE name LIKE ?", (f"{_ENDED}%",))
            noted = {str(row["name"]).removeprefix(_ENDED): int(row["value"]) for row in notes}
            before, ended = (
                {seat: beats for seat, beats in all_.items() if home_of(seat) == home_of(holder)}
                for all_ in (found, noted)
            )
            database.change_each("DELETE FROM seats WHERE holder = ?", ((seat,) for seat in before))
            database.change_each("DELETE FROM facts WHERE name = ?", ((_ENDED + seat,) for seat in ended))
            database.change(
                "INSERT INTO seats (holder, beats, address, wants, starving, devices) VALUES (?, 0, ?, 0, 0, 0)",
                (holder, address),
            )
        return Tenure(holder=holder, before=before, ended_before=ended)

    def move(self, tenure: Tenure, address: str) -> None:
        """Devices dial another address from now on."""
        with self._proving(tenure) as database:
            database.change("UPDATE seats SET address = ? WHERE holder = ?", (address, tenure.holder))

    def renew(self, tenure: Tenure, *, wants: int = 0, starving: int = 0, devices: int = 0) -> None:
        """``wants``: how many more devices its jobs could use now. ``starving``: how many they lack below their least.
        ``devices``: how many are connected to it."""
        with self._proving(tenure) as database:
            database.change(
                "UPDATE seats SET wants = ?, starving = ?, devices = ? WHERE holder = ?",
                (wants, starving, devices, tenure.holder),
            )

    def look(self) -> list[Seat]:
        """Every seat there is."""
        return seats_in(self._database)

    def end(self, silent: Seat, tenure: Tenure) -> bool:
        """End the seat of another manager if it did not count on since it was seen. Whether that was so: from then on
        that manager writes nothing, and reads that it was ended."""
        with self._proving(tenure) as database:
            ended = database.change(
                "DELETE FROM seats WHERE holder = ? AND beats = ?",
                (silent.holder, silent.beats),
            )
            if ended:
                database.change(
                    "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO NOTHING",
                    (_ENDED + silent.holder, str(silent.beats)),
                )
            return ended > 0

    def give_up(self, tenure: Tenure) -> None:
        """Others may take over at once."""
        with self._proving(tenure) as database:
            database.change("DELETE FROM seats WHERE holder = ?", (tenure.holder,))

    @contextlib.contextmanager
    def _proving(self, tenure: Tenure) -> Iterator[Statements]:
        with self._database.transaction(of_job=True) as database:
            beats = prove(database, tenure)
            yield database
        tenure.counted.on_committed(beats)


def seats_in(database: Statements) -> list[Seat]:
    """Return every seat there is."""
    return [_seat(**row) for row in database.rows(_SEATS, (DRAINED,))]


def _seat(*, drained: str | None, holder: str, **columns: Any) -> Seat:
    return Seat(holder=holder, **columns, is_drained=drained is not None and home_of(holder) in json.loads(drained))


def prove(database: Statements, tenure: Tenure) -> int:
    """Renew a tenure within a transaction, or end that transaction. Until it is over nobody can end the tenure. Return
    the count, to be noted once the transaction is committed."""
    counted = database.rows("UPDATE seats SET beats = beats + 1 WHERE holder = ? RETURNING beats", (tenure.holder,))
    if not counted:
        if database.rows("SELECT 1 FROM facts WHERE name = ?", (_ENDED + tenure.holder,)):
            raise Deposed("another manager has taken over: this one writes nothing more")
        raise WentBack("the database went back in time: it does not know the seat of this manager, which nobody ended")
    beats = int(counted[0]["beats"])
    if beats <= tenure.counted.beats:
        raise WentBack(
            f"the database went back in time: this manager has counted to {tenure.counted.beats} there, and it is at"
            f" {beats}"
        )
    return beats


def rewind(database: Statements, holders: Iterable[str]) -> None:
    """Have these managers start over: with its next write each finds that its past is not the database's."""
    database.change_each("UPDATE seats SET beats = ? WHERE holder = ?", ((REWOUND, holder) for holder in holders))


class FencedDatabase:
    """A database whose every writing transaction proves a tenure. See ``base.Database``."""

    def __init__(self, database: Database, tenure: Tenure) -> None:
        self._database = database
        self._tenure = tenure

    def rows(self, query: str, parameters: Parameters = ()) -> list[Row]:
        return self._database.rows(query, parameters)

    def change(self, statement: str, parameters: Parameters = ()) -> int:
        return self._database.change(statement, parameters)

    def change_each(self, statement: str, parameters: Iterable[Parameters]) -> int:
        return self._database.change_each(statement, parameters)

    @contextlib.contextmanager
    def transaction(self, *, writes: bool = True, of_job: bool = False) -> Iterator[Statements]:
        with self._database.transaction(writes=writes, of_job=of_job) as database:
            beats = prove(database, self._tenure) if writes else 0
            yield self
        self._tenure.counted.on_committed(beats)

    def is_whole(self) -> bool:
        return self._database.is_whole()

    def close(self) -> None:
        self._database.close()
