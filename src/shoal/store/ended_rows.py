"""Jobs that are over, found without reading all of them: by page, by age, by name. A part of the registry.

A cluster that trains daily has thousands of them after a few years. Each query follows an index and has a limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.states import JobState
from shoal.store.base import Database, Parameters
from shoal.store.rows import JobRow, job_row

#: Sorts behind every text that begins with the same characters.
_LAST_CHARACTER = "\U0010ffff"

#: More than any count of rows.
_ALL = (1 << 62) - 1

_LATEST = "SELECT job, state, ended_s FROM jobs WHERE ended_s IS NOT NULL ORDER BY ended_s DESC, job DESC LIMIT ?"
_FAILED_SINCE = (
    "SELECT job, state, ended_s FROM jobs WHERE ended_s >= ? AND state = 'failed'"
    " ORDER BY ended_s DESC, job DESC LIMIT ?"
)
_PAGE = "SELECT * FROM jobs WHERE ended_s IS NOT NULL ORDER BY ended_s DESC, job DESC LIMIT ? OFFSET ?"
_COUNTS = "SELECT state, COUNT(*) AS jobs FROM jobs WHERE ended_s IS NOT NULL GROUP BY state"

#: A manager may remove ended jobs of its own, and those of managers that are gone.
_BEFORE = (
    "SELECT job, state, ended_s FROM jobs WHERE ended_s < ?"
    " AND (manager = ? OR manager NOT IN (SELECT holder FROM seats)) ORDER BY ended_s, job LIMIT ?"
)
_BEYOND = (
    "SELECT job, state, ended_s FROM (SELECT job, state, ended_s, manager FROM jobs WHERE ended_s IS NOT NULL"
    " ORDER BY ended_s DESC, job DESC LIMIT ? OFFSET ?) AS older"
    " WHERE manager = ? OR manager NOT IN (SELECT holder FROM seats) ORDER BY ended_s, job LIMIT ?"
)

_BY_ID = "SELECT * FROM jobs WHERE job = ?"
_BY_START = "SELECT * FROM jobs WHERE job >= ? AND job < ? ORDER BY job DESC LIMIT ?"
_BY_NAME = "SELECT * FROM jobs WHERE name = ? ORDER BY created_s DESC, job DESC LIMIT 1"


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedRow:
    """How and when a job ended."""

    job: str
    state: JobState
    ended_s: float


class EndedRows:
    _database: Database
    _holder: str

    def latest_ended(self, *, limit: int) -> list[EndedRow]:
        """Return the jobs that ended last, the latest first."""
        return self._ended(_LATEST, (limit,))

    def failed_since(self, since_s: float, *, limit: int) -> list[EndedRow]:
        """Return jobs that failed after this time, the latest first."""
        return self._ended(_FAILED_SINCE, (since_s, limit))

    def ended_page(self, *, limit: int, offset: int) -> list[JobRow]:
        """Return ended jobs, the latest first, without the first ``offset`` of them."""
        return [job_row(row) for row in self._database.rows(_PAGE, (limit, offset))]

    def count_ended(self) -> dict[JobState, int]:
        """Return how many jobs ended in each state."""
        return {JobState(row["state"]): int(row["jobs"]) for row in self._database.rows(_COUNTS)}

    def ended_before(self, before_s: float, *, limit: int) -> list[EndedRow]:
        """Return jobs that ended before this time and that this manager may remove, the oldest first."""
        return self._ended(_BEFORE, (before_s, self._holder, limit))

    def ended_beyond(self, count: int, *, limit: int) -> list[EndedRow]:
        """Return jobs that ended before the latest ``count`` and that this manager may remove, the oldest first."""
        return self._ended(_BEYOND, (_ALL, count, self._holder, limit))

    def called(self, text: str, *, limit: int) -> list[JobRow]:
        """Return the job with this id; else those whose ids begin with the text, by id; else the newest of this
        name."""
        by_start = (text, text + _LAST_CHARACTER, limit)
        for query, parameters in ((_BY_ID, (text,)), (_BY_START, by_start), (_BY_NAME, (text,))):
            if rows := self._database.rows(query, parameters):
                return [job_row(row) for row in reversed(rows)]
        return []

    def _ended(self, query: str, parameters: Parameters) -> list[EndedRow]:
        rows = self._database.rows(query, parameters)
        return [EndedRow(job=row["job"], state=JobState(row["state"]), ended_s=row["ended_s"]) for row in rows]
