"""Seats: a row for each manager that is alive. A manager whose row is gone cannot write, whatever it believes.

Every writing transaction of a manager counts its row on. That tells others that it lives, and proves that it may write:
where the row is gone, the transaction fails with all that was in it. A name is given once, to one process: a seat that
has ended does not come back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.errors import ShoalError
from shoal.roles.manager.seat_watch import Seat, home_of
from shoal.store.base import Database, Parameters, Row, Statements


class Deposed(ShoalError):
    """Another manager has taken over: nothing that this one decides counts any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenure:
    """The right to write, until another manager ends it."""

    holder: str


class Seats:
    """Best on a connection of their own: a manager that waits for a long write would seem to be silent."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self, holder: str, address: str = "") -> Tenure:
        """``address``: the HOST:PORT that devices dial; empty: it serves none yet. The seat of a process that ran from
        the same home ends: a home has one process at a time (its lock), so that one is gone."""
        with self._database.transaction(of_job=True) as database:
            for row in database.rows("SELECT holder FROM seats"):
                if row["holder"] != holder and home_of(str(row["holder"])) == home_of(holder):
                    database.change("DELETE FROM seats WHERE holder = ?", (row["holder"],))
            database.change("INSERT INTO seats VALUES (?, 0, ?, 0, 0, 0)", (holder, address))
        return Tenure(holder=holder)

    def move(self, tenure: Tenure, address: str) -> None:
        """Devices dial another address from now on."""
        with self._database.transaction(of_job=True) as database:
            prove(database, tenure)
            database.change("UPDATE seats SET address = ? WHERE holder = ?", (address, tenure.holder))

    def renew(self, tenure: Tenure, *, wants: int = 0, starving: int = 0, devices: int = 0) -> None:
        """``wants``: how many more devices its jobs could use now. ``starving``: how many they lack below their least.
        ``devices``: how many are connected to it."""
        with self._database.transaction(of_job=True) as database:
            prove(database, tenure)
            database.change(
                "UPDATE seats SET wants = ?, starving = ?, devices = ? WHERE holder = ?",
                (wants, starving, devices, tenure.holder),
            )

    def look(self) -> list[Seat]:
        """Every seat there is."""
        rows = self._database.rows("SELECT holder, beats, address, wants, starving, devices FROM seats ORDER BY holder")
        return [Seat(**row) for row in rows]

    def end(self, silent: Seat, tenure: Tenure) -> bool:
        """End the seat of another manager if it did not count on since it was seen. Whether that was so: from then on
        that manager writes nothing."""
        with self._database.transaction(of_job=True) as database:
            prove(database, tenure)
            ended = database.change(
                "DELETE FROM seats WHERE holder = ? AND beats = ?",
                (silent.holder, silent.beats),
            )
            return ended > 0

    def give_up(self, tenure: Tenure) -> None:
        """Others may take over at once."""
        with self._database.transaction(of_job=True) as database:
            prove(database, tenure)
            database.change("DELETE FROM seats WHERE holder = ?", (tenure.holder,))


def prove(database: Statements, tenure: Tenure) -> None:
    """Renew a tenure within a transaction, or end that transaction. Until it is over nobody can end the tenure."""
    if not database.change("UPDATE seats SET beats = beats + 1 WHERE holder = ?", (tenure.holder,)):
        raise Deposed("another manager has taken over: this one writes nothing more")


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
            if writes:
                prove(database, self._tenure)
            yield self

    def close(self) -> None:
        self._database.close()
