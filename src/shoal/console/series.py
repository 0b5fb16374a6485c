"""A job's metrics over the last hour, one row per poll: version, pace, loss, bytes. Reads no clock."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from typing import Any

SPAN_S = 3600.0
#: The most rows of one job, more than one per second for an hour, and the most jobs with rows (20 at 160 kB).
ROWS_MAX = 4000
JOBS_MAX = 20
#: Rows of one answer.
POINTS_MAX = 2000

_COLUMNS = ("at_s", "version", "examples_per_s", "train_loss", "bytes")
_NAN = float("nan")


class Series:
    def __init__(self, *, span_s: float = SPAN_S) -> None:
        self._span_s = span_s
        self._of: dict[str, dict[str, array[float]]] = {}

    def add(self, job: str, progress: Mapping[str, Any], at_s: float) -> None:
        """Add a row of an open job, by the ``progress`` of a state."""
        table = self._of.pop(job, None) or {name: array("d") for name in _COLUMNS}
        # Ordered by the latest row: the job that has been silent longest is dropped first.
        self._of[job] = table
        while len(self._of) > JOBS_MAX:
            del self._of[next(iter(self._of))]
        times = table["at_s"]
        if times and at_s <= times[-1]:
            return
        row = {name: progress.get(name, _NAN) for name in ("version", "examples_per_s", "train_loss")}
        row |= {"at_s": at_s, "bytes": progress.get("bytes_up", 0) + progress.get("bytes_down", 0)}
        for name in _COLUMNS:
            table[name].append(row[name])
        old = max(bisect_left(times, at_s - self._span_s), len(times) - ROWS_MAX)
        if old > ROWS_MAX // 8 or len(times) > ROWS_MAX:
            for column in table.values():
                del column[:old]

    def rows(self, job: str, from_s: float, to_s: float) -> dict[str, list[float | None]]:
        """Return the columns of a window, thinned to POINTS_MAX rows. Unknown values are None."""
        names = ("at_s", "version", "examples_per_s", "train_loss", "bytes_per_s")
        told: dict[str, list[float | None]] = {name: [] for name in names}
        table = self._of.get(job)
        if table is None:
            return told
        times = table["at_s"]
        first, last = bisect_left(times, from_s), bisect_right(times, to_s)
        step = -(-(last - first) // POINTS_MAX) or 1
        before: int | None = None
        for number in range(first, last, step):
            for name in names[:4]:
                told[name].append(_known(table[name][number]))
            told["bytes_per_s"].append(_rate(table, before, number))
            before = number
        return told


def _rate(table: Mapping[str, array[float]], before: int | None, now: int) -> float | None:
    if before is None:
        return None
    grown, past_s = table["bytes"][now] - table["bytes"][before], table["at_s"][now] - table["at_s"][before]
    # A new leader counts from 0.
    return round(grown / past_s, 1) if past_s > 0 and grown >= 0 else None


def _known(value: float) -> float | None:
    return value if value == value else None
