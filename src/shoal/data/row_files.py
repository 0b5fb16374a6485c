"""Files that have many rows: .npz, .csv and .parquet. Each gives rows by number, as arrays by column.

Errors name a column or a line and never a value: a device reports them, and its rows stay with it.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.csv_rows import CsvRows
from shoal.data.raw_columns import RawColumn
from shoal.data.raw_values import Array, RawRows, check_fit, class_of
from shoal.errors import Corrupt, Misuse
from shoal.extras import install_command

#: The fields of a CSV file that one column may have: a longer line is a sign of a wrong shape.
_FIELDS_MAX = 1 << 16
_TRUTHS = {"0": 0, "1": 1, "false": 0, "true": 1}


class _KeptColumns:
    """Columns of a file that are read as a whole when a row is first asked for."""

    def __init__(self) -> None:
        self._kept: RawRows | None = None

    def _read(self) -> RawRows:
        raise NotImplementedError

    def take(self, rows: Array) -> Mapping[str, Array]:
        self._kept = self._kept if self._kept is not None else self._read()
        return {name: column[rows] for name, column in self._kept.items()}

    @property
    def kept_bytes(self) -> int:
        return sum(column.nbytes for column in self._kept.values()) if self._kept is not None else 0

    def drop(self) -> None:
        self._kept = None


class NpzFile(_KeptColumns):
    """numpy's archive: one array per column."""

    def __init__(self, folder: Path, path: str, columns: Mapping[str, RawColumn]) -> None:
        super().__init__()
        self._path = folder / path
        self._columns = columns
        try:
            with zipfile.ZipFile(self._path) as archive:
                names = set(archive.namelist())
                for name in columns:
                    if f"{name}.npy" not in names:
                        raise Misuse(f"column {name} is missing")
                headers = {name: _header(archive, name) for name in columns}
                stored_bytes = sum(archive.getinfo(f"{name}.npy").file_size for name in columns)
        except (ValueError, zipfile.BadZipFile):
            raise Misuse("this is not a complete archive of arrays") from None
        for name, (shape, dtype) in headers.items():
            # The values are checked when they are read; an array that cannot fit is refused before it is.
            check_fit(shape[1:], dtype, name, columns[name])
        lengths = {shape[0] for shape, _ in headers.values()}
        if len(lengths) != 1:
            raise Misuse(f"its columns have {' and '.join(map(str, sorted(lengths)))} rows")
        self.count = int(lengths.pop())
        row_bytes = sum(column.size * headers[name][1].itemsize for name, column in columns.items())
        if not 0 <= self.count * row_bytes <= stored_bytes:
            raise Misuse("this is not a complete archive of arrays")

    def _read(self) -> RawRows:
        try:
            with np.load(self._path, allow_pickle=False) as archive:
                return {name: archive[name] for name in self._columns}
        except (ValueError, KeyError, zipfile.BadZipFile):
            raise Misuse("this is not a complete archive of arrays") from None


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    with archive.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    if dtype.hasobject or not shape:
        raise Misuse(f"column {name} is not an array with a value per row")
    return tuple(shape), dtype


class CsvFile:
    """A CSV file whose first line names its fields: a column, or with a shape its values by number (x.0, x.1, ...)."""

    kept_bytes = 0

    def __init__(self, folder: Path, path: str, columns: Mapping[str, RawColumn]) -> None:
        self._columns = columns
        self._fields = {name: _fields_of(name, column) for name, column in columns.items()}
        wanted = {field: str for fields in self._fields.values() for field in fields}
        try:
            self._rows = CsvRows(folder / path, wanted)
        except Corrupt:
            raise Misuse("its first line does not name its columns, each once, in UTF-8") from None
        except Misuse:
            known = CsvRows(folder / path).names
            missing = next(field for field in wanted if field not in known)
            raise Misuse(f"its first line does not name {missing}") from None
        self.count = len(self._rows)

    def take(self, rows: Array) -> Mapping[str, Array]:
        found = {name: np.empty((len(rows), column.size), _parsed_as(column)) for name, column in self._columns.items()}
        for at, row in enumerate(rows.tolist()):
            texts = self._texts(row)
            for name, column in self._columns.items():
                parse = _PARSERS[np.dtype(column.dtype).kind]
                try:
                    found[name][at] = [parse(str(texts[field]), name, column) for field in self._fields[name]]
                except (ValueError, OverflowError):
                    raise Misuse(f"row {row + 1}: column {name} is not {column.dtype}") from None
        return {name: found[name].reshape(len(rows), *column.shape) for name, column in self._columns.items()}

    def _texts(self, row: int) -> Mapping[str, object]:
        try:
            return self._rows[row]
        except Corrupt:
            # Its text names the folder, and may hold a byte of the line.
            raise Misuse(
                f"row {row + 1} is not a line of UTF-8 text with a value for each name of the first line"
            ) from None

    def drop(self) -> None:
        """Lines are read from the file each time."""


def _fields_of(name: str, column: RawColumn) -> list[str]:
    if column.size > _FIELDS_MAX:
        raise Misuse(f"column {name} has {column.size:,} values per row; a CSV file takes {_FIELDS_MAX:,}: write .npz")
    return [f"{name}.{number}" for number in range(column.size)] if column.shape else [name]


def _parsed_as(column: RawColumn) -> str:
    """Return the type that holds any value before it is checked against the column's."""
    return "float64" if column.dtype == "float32" else "int64"


def _class_or_number(text: str, name: str, column: RawColumn) -> int:
    return class_of(text, name, column) if column.classes else int(text)


def _truth(text: str, name: str, column: RawColumn) -> int:
    try:
        return _TRUTHS[text.strip().lower()]
    except KeyError:
        raise ValueError from None


#: By numpy's kind of the declared type.
_PARSERS: dict[str, Callable[[str, str, RawColumn], Any]] = {
    "i": _class_or_number,
    "u": _class_or_number,
    "f": lambda text, name, column: float(text),
    "b": _truth,
}


class ParquetFile(_KeptColumns):
    """A Parquet file: a number or a text per row, or a list of one length for a column with a shape."""

    def __init__(self, folder: Path, path: str, columns: Mapping[str, RawColumn]) -> None:
        super().__init__()
        try:
            from pyarrow import ArrowException, parquet
        except ImportError:
            raise Misuse(f"reading it needs a package: {install_command('parquet')}") from None
        self._path = folder / path
        self._columns = columns
        try:
            with parquet.ParquetFile(self._path) as file:
                names, self.count = set(file.schema_arrow.names), int(file.metadata.num_rows)
        except ArrowException:
            raise Misuse("this is not a complete Parquet file") from None
        if missing := [name for name in columns if name not in names]:
            raise Misuse(f"column {missing[0]} is missing")

    def _read(self) -> RawRows:
        from pyarrow import ArrowException, parquet

        try:
            # The threads of a trainer are counted: this takes none.
            table = parquet.read_table(self._path, columns=list(self._columns), use_threads=False)
        except ArrowException:
            raise Misuse("this is not a complete Parquet file") from None
        return {name: _column_of(table[name], name, column) for name, column in self._columns.items()}


def _column_of(stored: Any, name: str, column: RawColumn) -> Array:
    """Return a column of a table as one array. Lists are laid end to end."""
    from pyarrow import compute, types

    rows, values = len(stored), stored.combine_chunks()
    while types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type):
        if values.null_count or compute.count_distinct(compute.list_value_length(values)).as_py() > 1:
            raise Misuse(f"column {name} has lists of unequal lengths")
        values = values.flatten()
    if values.null_count:
        raise Misuse(f"column {name} has rows without a value")
    if types.is_string(values.type) or types.is_large_string(values.type):
        return np.array([class_of(text, name, column) for text in values.to_pylist()], np.int64)
    found = np.asarray(values.to_numpy(zero_copy_only=False))
    if found.size != rows * column.size:
        raise Misuse(f"column {name} has {found.size // max(rows, 1)} values per row; the task declares {column}")
    return found.reshape(rows, *column.shape)
