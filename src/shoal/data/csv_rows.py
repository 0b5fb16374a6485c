"""Examples from a file of comma-separated values. Standard library; a line is read when it is asked for."""

from __future__ import annotations

import csv as format_
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from shoal.data.lines import lines_of
from shoal.errors import Corrupt, Misuse

#: Which columns: all, some by name, or some with the type of each.
Columns: TypeAlias = Sequence[str] | Mapping[str, type[int] | type[float] | type[str]] | None


class CsvRows:
    """A Dataset of dicts. A column without a type is of floats if the first row has a number there, else of text."""

    def __init__(self, path: str | Path, columns: Columns = None) -> None:
        self._path = Path(path)
        self._lines = lines_of(self._path)
        has_tail = bool(self._lines.tail)
        if not len(self._lines) + has_tail:
            raise Corrupt(f"{self._path}, line 1: the names of the columns are missing")
        self._names = self._fields(0)[1]
        #: The header line is not an example.
        self._count = len(self._lines) - 1
        wanted = list(columns) if columns is not None else self._names
        if missing := [name for name in wanted if name not in self._names]:
            raise Misuse(f"{self._path} has no column {', '.join(missing)}; it has {', '.join(self._names)}")
        if len(set(self._names)) != len(self._names):
            raise Corrupt(f"{self._path}, line {self._lines[0][0]}: two columns have the same name")
        self._types: dict[str, Any] = dict(columns) if isinstance(columns, Mapping) else {}
        if any(kind not in (int, float, str) for kind in self._types.values()):
            raise Misuse("a column of a CSV file is of int, float or str")
        if has_tail and self._count >= 0 and self._is_whole(len(self._lines)):
            self._count += 1
        if self._count > 0 and not isinstance(columns, Mapping):
            first = dict(zip(self._names, self._fields(1)[1], strict=False))
            self._types = {name: float if _is_number(first.get(name, "")) else str for name in wanted}

    @property
    def names(self) -> list[str]:
        """The names of the first line."""
        return list(self._names)

    def __len__(self) -> int:
        return max(0, self._count)

    def __getitem__(self, index: int) -> dict[str, int | float | str]:
        if not 0 <= index < len(self):
            raise IndexError(f"{self._path} holds examples 0 to {len(self) - 1}, not {index}")
        number, fields = self._fields(index + 1)
        if len(fields) != len(self._names):
            raise Corrupt(f"{self._path}, line {number}: {len(fields)} values for {len(self._names)} columns")
        row = dict(zip(self._names, fields, strict=True))
        return {name: self._typed(row[name], kind, name, number) for name, kind in self._types.items()}

    def _fields(self, at: int) -> tuple[int, list[str]]:
        number, line = self._lines[at]
        try:
            text = line.decode("utf-8-sig" if not at else "utf-8")
            return number, next(format_.reader([text], strict=True))
        except (UnicodeDecodeError, format_.Error) as error:
            raise Corrupt(
                f"{self._path}, line {number}: {error} (text is UTF-8, and a quoted value ends on its own line)"
            ) from None

    def _typed(self, text: str, kind: Any, name: str, number: int) -> int | float | str:
        try:
            typed: int | float | str = kind(text)
        except ValueError:
            raise Corrupt(f"{self._path}, line {number}: {name} is {text[:40]!r}, not {kind.__name__}") from None
        return typed

    def _is_whole(self, at: int) -> bool:
        """Whether a line that no line break ends has all its values: it may still be on its way."""
        try:
            return len(self._fields(at)[1]) == len(self._names)
        except Corrupt:
            return False


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def csv(path: str | Path, columns: Columns = None) -> CsvRows:
    """The rows of a CSV file whose first line names its columns. The file may grow between leases.

    ``columns`` picks some by name, and may give their types: ``columns={"age": float, "label": int, "note": str}``.
    """
    return CsvRows(path, columns)
