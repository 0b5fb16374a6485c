"""What each manager of a cluster has, as rows that the others read: a job or a device per row. A part of the registry.

A device has one row, whichever managers it was with: the manager that has it now writes over the row of the one before,
and a manager that lost it changes the row only while that is its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shoal.store.base import Database

#: Kinds of rows.
JOB, NODE = "job", "node"

_SET = (
    "INSERT INTO views VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (kind, name) DO UPDATE SET manager = excluded.manager,"
    " epoch = excluded.epoch, clock_s = excluded.clock_s, view_json = excluded.view_json"
)
_SET_OWN = f"{_SET} WHERE views.manager = excluded.manager"
#: The text of a row is left out where this manager wrote it.
_SINCE = (
    "SELECT kind, name, manager, epoch, clock_s, CASE WHEN manager = ? THEN '' ELSE view_json END AS view_json"
    " FROM views WHERE epoch > ? ORDER BY epoch, kind, name"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ViewRow:
    """A job or a device as a manager saw it."""

    kind: str
    name: str
    #: The manager that wrote it, by its seat.
    manager: str = ""
    #: Counts what was written, over all managers.
    epoch: int = 0
    #: When it was written, by the clock of the manager that wrote it.
    clock_s: float = 0.0
    view_json: str


class ManagerRow(NamedTuple):
    """A manager that is alive, and when it last wrote what it has, by its own clock."""

    holder: str
    address: str
    viewed_s: float


class ViewRows:
    _database: Database
    _holder: str

    def write_views(
        self,
        here: Sequence[ViewRow] = (),
        *,
        gone: Sequence[ViewRow] = (),
        over: Iterable[str] = (),
        clock_s: float,
    ) -> None:
        """Write what changed at this manager since it last did: what it has, devices that it may not have any longer,
        and jobs that are over. ``clock_s`` goes to the seat, so that readers know that other rows are up to date."""
        ended = list(over)
        with self._database.transaction(of_job=True) as database:
            database.change("UPDATE seats SET viewed_s = ? WHERE holder = ?", (clock_s, self._holder))
            if not (here or gone or ended):
                return
            # Who counts on holds the counter until the end: whoever read up to a count has missed nothing before it.
            (count,) = database.rows("UPDATE counters SET value = value + 1 WHERE name = 'views' RETURNING value")
            for statement, rows in ((_SET, here), (_SET_OWN, gone)):
                database.change_each(
                    statement,
                    (
                        (row.kind, row.name, self._holder, int(count["value"]), clock_s, row.view_json)
                        for row in sorted(rows, key=lambda row: (row.kind, row.name))
                    ),
                )
            database.change_each(
                "DELETE FROM views WHERE kind = 'job' AND name = ? AND manager = ?",
                ((job, self._holder) for job in sorted(ended)),
            )

    def views_since(self, epoch: int, *, limit: int) -> list[ViewRow]:
        """Return rows that were written after this count, oldest first: those of one count together, and as many
        counts as are in ``limit`` rows."""
        rows = self._database.rows(f"{_SINCE} LIMIT ?", (self._holder, epoch, limit))
        if len(rows) == limit:
            last = int(rows[-1]["epoch"])
            # The last count may be cut in the middle.
            whole = [row for row in rows if int(row["epoch"]) < last]
            rows = whole or self._database.rows(_SINCE.replace("epoch > ?", "epoch = ?"), (self._holder, last))
        return [ViewRow(**row) for row in rows]

    def viewers(self) -> list[ManagerRow]:
        """Return every manager that is alive."""
        return [ManagerRow(**row) for row in self._database.rows("SELECT holder, address, viewed_s FROM seats")]
