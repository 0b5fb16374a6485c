"""Where each line of a text file begins, kept while it grows: any line is read without the others. Standard library."""

from __future__ import annotations

import functools
import os
from array import array
from pathlib import Path

from shoal.errors import Misuse

_READ_BYTES = 1 << 20
#: Files whose lines are remembered between two readers, so that a file that grew is read from where it ended.
_FILES_KEPT = 16


class Lines:
    """The lines of one file that are not blank. Only whole lines: the last one may still be on its way."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._forget()

    def _forget(self) -> None:
        self._begins = array("Q")
        #: The number of each in the file, from 1, as an editor counts them.
        self._numbers = array("Q")
        self._scanned_bytes = 0
        self._counted = 0
        #: Where a last line without a line break begins, or -1 if there is none.
        self._tail = -1

    def look(self) -> None:
        """Find what has come since the last look. A file that was replaced or cut is read from its beginning."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                identity = (found.st_dev, found.st_ino)
                if identity != self._identity or found.st_size < self._scanned_bytes:
                    self._forget()
                self._identity = identity
                self._scan(file.fileno())
        except OSError as error:
            raise Misuse(f"{self._path} cannot be read: {error.strerror}") from None

    def _scan(self, descriptor: int) -> None:
        at, rest = self._scanned_bytes, b""
        while chunk := os.pread(descriptor, _READ_BYTES, at + len(rest)):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                self._counted += 1
                if line.strip():
                    self._begins.append(at)
                    self._numbers.append(self._counted)
                at += len(line) + 1
        self._scanned_bytes = at
        self._tail = at if rest.strip() else -1

    def __len__(self) -> int:
        """Whole lines."""
        return len(self._begins)

    @property
    def tail(self) -> bytes:
        """The text after the last line break, unless it is blank."""
        return self._read(self._tail) if self._tail >= 0 else b""

    def __getitem__(self, index: int) -> tuple[int, bytes]:
        """A line, and its number in the file from 1. The one after the last is the tail."""
        if index == len(self._begins) and self._tail >= 0:
            return self._counted + 1, self.tail
        return self._numbers[index], self._read(self._begins[index])

    def _read(self, at: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(at)
            return file.readline().rstrip(b"\r\n")


@functools.lru_cache(_FILES_KEPT)
def _remembered(path: str) -> Lines:
    return Lines(Path(path))


def lines_of(path: str | Path) -> Lines:
    """The lines of a file as it is now."""
    lines = _remembered(os.path.abspath(path))
    lines.look()
    return lines
