"""The seat: a row that says which manager runs a cluster. A manager that lost it cannot write, whatever it believes.

Every writing transaction of the manager in the seat counts the row on. That renews the seat, and proves it: where the
row has another holder or another term, the transaction fails with all that was in it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.errors import ShoalError
from shoal.roles.manager.standby import Seat
from shoal.store.base import Database, Parameters, Row, Statements

#: One seat a cluster. A seat a job would be a row of the same table.
CLUSTER = ""


class Deposed(ShoalError):
    """Another manager took the seat: nothing that this one decides counts any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tenure:
    """The right to write, until another takes it."""

    holder: str
    term: int
    job: str = CLUSTER


class Seats:
    def __init__(self, database: Database) -> None:
        self._database = database

    def look(self, job: str = CLUSTER) -> Seat | None:
        """The seat as it is; None: nobody ever had it."""
        rows = self._database.rows("SELECT holder, term, beats FROM seats WHERE job = ?", (job,))
        return Seat(**rows[0]) if rows else None

    def take(self, holder: str, seen: Seat | None, job: str = CLUSTER) -> Tenure | None:
        """Take the seat if it is still as it was seen. None: it is not. A term is given once."""
        parameters: Parameters
        if seen is None:
            statement = "INSERT INTO seats VALUES (?, ?, 1, 0) ON CONFLICT (job) DO NOTHING"
            term, parameters = 1, (job, holder)
        else:
            statement = (
                "UPDATE seats SET holder = ?, term = term + 1, beats = beats + 1 WHERE job = ? AND term = ?"
                " AND beats = ?"
            )
            term, parameters = seen.term + 1, (holder, job, seen.term, seen.beats)
        with self._database.transaction() as database:
            taken = database.change(statement, parameters)
        return Tenure(holder=holder, term=term, job=job) if taken else None

    def renew(self, tenure: Tenure) -> None:
        with self._database.transaction() as database:
            prove(database, tenure)

    def give_up(self, tenure: Tenure) -> None:
        """The next may take it at once."""
        with self._database.transaction() as database:
            prove(database, tenure)
            database.change("UPDATE seats SET holder = '' WHERE job = ?", (tenure.job,))


def prove(database: Statements, tenure: Tenure) -> None:
    """Renew a tenure within a transaction, or end that transaction."""
    counted = database.change(
        "UPDATE seats SET beats = beats + 1 WHERE job = ? AND holder = ? AND term = ?",
        (tenure.job, tenure.holder, tenure.term),
    )
    if not counted:
        raise Deposed(f"another manager has taken over since term {tenure.term}: this one writes nothing more")


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
    def transaction(self, *, writes: bool = True) -> Iterator[Statements]:
        with self._database.transaction(writes=writes) as database:
            if writes:
                prove(database, self._tenure)
            yield self

    def close(self) -> None:
        self._database.close()
