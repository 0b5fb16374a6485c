"""A device's own rows from a folder, by the columns that a task declares: .npz, .csv and .parquet files, and pictures.

Counted anew before every lease, since the folder may grow. Rows that appear later come last. Numpy only, except where a
file needs another package.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from shoal.data.raw_columns import RawColumn
from shoal.data.raw_values import Array, RawRows, fitted_rows
from shoal.data.row_files import CsvFile, NpzFile, ParquetFile
from shoal.data.row_pictures import PICTURES, PictureFile
from shoal.errors import Misuse, ShoalError

#: Rows of archives that are kept in memory from lease to lease. Of more, only the last archive is kept.
KEPT_BYTES = 64 << 20
#: More files than this in one folder would make every look slow.
FILES_MAX = 1_000_000
ROWS_MAX = 1 << 31

_T = TypeVar("_T")

SUFFIXES = (".npz", ".csv", ".parquet", *PICTURES)

#: What tells whether a file changed: its device and number, its size, and when it was written.
_Stamp: TypeAlias = tuple[int, int, int, int]


class RowFile(Protocol):
    """A file of rows."""

    #: How many rows it has.
    count: int

    def take(self, rows: Array) -> Mapping[str, Array]:
        """Return the rows with these numbers, by column."""
        ...

    @property
    def kept_bytes(self) -> int:
        """The memory that it holds on to."""
        ...

    def drop(self) -> None:
        """Give that memory back."""
        ...


@dataclass(frozen=True, slots=True)
class _Span:
    """Rows of a file that were found in one look."""

    path: str
    start: int
    stop: int


#: What opens a file of the folder by its path in there, for the columns of the task. All others are pictures.
_KINDS: dict[str, Callable[[Path, str, Mapping[str, RawColumn]], RowFile]] = {
    ".npz": NpzFile,
    ".csv": CsvFile,
    ".parquet": ParquetFile,
}


class OwnRows:
    def __init__(self, folder: Path, columns: Mapping[str, RawColumn]) -> None:
        self._folder = folder
        self._columns = dict(columns)
        self._files: dict[str, tuple[_Stamp, RowFile]] = {}
        self._spans: list[_Span] = []
        self._starts = np.zeros(1, np.int64)
        #: The rows that the last look found gone, by their numbers before it.
        self._gone: list[range] = []

    def look(self) -> int:
        """Count the rows. Return how many there are now."""
        found = self._found()
        for path in self._files.keys() - found.keys():
            del self._files[path]
        for path, stamp in found.items():
            if path not in self._files or self._files[path][0] != stamp:
                self._files[path] = (stamp, self._named(path, self._opened))
        counts = {path: file.count for path, (_, file) in self._files.items()}
        stops: dict[str, int] = {}
        kept, self._gone = [], []
        for span, first in zip(self._spans, self._starts[:-1].tolist(), strict=True):
            if counts.get(span.path, -1) >= span.stop:
                kept.append(span)
                stops[span.path] = span.stop
            else:
                self._gone.append(range(first, first + span.stop - span.start))
        # In the order of ``found``: the file that was written last comes last.
        more = [_Span(path, stops.get(path, 0), counts[path]) for path in found if counts[path] > stops.get(path, 0)]
        self._spans = [*kept, *more]
        self._starts = np.cumsum([0, *(span.stop - span.start for span in self._spans)], dtype=np.int64)
        if len(self) > ROWS_MAX:
            raise Misuse(f"the folder has {len(self):,} rows; the maximum is {ROWS_MAX:,}")
        return len(self)

    def gone_of(self, count: int) -> int:
        """Return how many of the first ``count`` rows before the last look it found gone."""
        return sum(len(rows[: max(0, count - rows.start)]) for rows in self._gone)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, indices: Array) -> RawRows:
        """Return the rows with these numbers, in this order."""
        if not len(indices) or indices.min() < 0 or indices.max() >= len(self):
            raise Misuse(f"the folder has rows 0 to {len(self) - 1}; others were asked for")
        homes = np.searchsorted(self._starts, indices, side="right") - 1
        rows = {name: np.empty((len(indices), *each.shape), each.dtype) for name, each in self._columns.items()}
        for home in np.unique(homes).tolist():
            span, here = self._spans[home], homes == home
            taken = self._taken(span.path, indices[here] - self._starts[home] + span.start)
            for name, column in taken.items():
                rows[name][here] = column
        return rows

    def _taken(self, path: str, rows: Array) -> RawRows:
        file = self._files[path][1]
        taken = self._named(path, lambda _: fitted_rows(file.take(rows), self._columns))
        if sum(each.kept_bytes for _, each in self._files.values()) > KEPT_BYTES:
            for other, (_, each) in self._files.items():
                if other != path:
                    each.drop()
        return taken

    def _opened(self, path: str) -> RowFile:
        kind = _KINDS.get(os.path.splitext(path)[1].lower(), PictureFile)
        return kind(self._folder, path, self._columns)

    def _named(self, path: str, use: Callable[[str], _T]) -> _T:
        """Do something with a file. An error names it."""
        try:
            return use(path)
        except ShoalError as error:
            raise Misuse(f"{path}: {error}") from None
        except OSError as error:
            raise Misuse(f"{path} cannot be read: {error.strerror or type(error).__name__}") from None
        except Exception as error:
            # A reader's own text may hold a value of a row, and the device reports it.
            raise Misuse(f"{path} cannot be read: {type(error).__name__}") from None

    def _found(self) -> dict[str, _Stamp]:
        """Return the files of rows, as paths in the folder, by the time at which they were written."""
        stamps: dict[str, _Stamp] = {}
        try:
            for entry in os.scandir(self._folder):
                if entry.name.startswith("."):
                    continue
                if _is_dir(entry):
                    stamps |= {f"{entry.name}/{name}": stamp for name, stamp in _stamps_in(entry.path, PICTURES)}
                elif (stamp := _stamp_of(entry, SUFFIXES)) is not None:
                    stamps[entry.name] = stamp
        except OSError as error:
            raise Misuse(f"the folder of this device's rows cannot be read: {error.strerror or error}") from None
        if len(stamps) > FILES_MAX:
            raise Misuse(f"the folder has {len(stamps):,} files of rows; the maximum is {FILES_MAX:,}")
        return dict(sorted(stamps.items(), key=lambda each: (each[1][-1], each[0])))


def _stamps_in(folder: str, suffixes: tuple[str, ...]) -> Iterator[tuple[str, _Stamp]]:
    for entry in os.scandir(folder):
        if (stamp := _stamp_of(entry, suffixes)) is not None:
            yield entry.name, stamp


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link that leads to itself.
        return False


def _stamp_of(entry: os.DirEntry[str], suffixes: tuple[str, ...]) -> _Stamp | None:
    """Return the stamp of a file of rows, or None if it is another or is gone by now."""
    if entry.name.startswith(".") or not entry.name.lower().endswith(suffixes):
        return None
    try:
        found = entry.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
