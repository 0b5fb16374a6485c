"""Columns of examples: arrays, ragged arrays, text and bytes, in memory and as a shard stores them. No torch.

A shard's tensors follow from its columns. A column of rows of one shape is one array under its own name. A ragged
column is its values end to end, with ``NAME/offsets`` (row i is values[offsets[i]:offsets[i + 1]]) and ``NAME/shapes``.
Text and bytes are uint8 values and offsets. The note ``columns`` names the kind of every column except plain arrays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from shoal.data.entries import LABELS
from shoal.errors import Corrupt, Misuse
from shoal.wire.limits import NAME_MAX_CHARS, TENSOR_DIMENSIONS_MAX

Array: TypeAlias = np.ndarray[Any, Any]
#: Rows of one shape as one array; rows of unequal shapes as a list of arrays; text; bytes.
Column: TypeAlias = Array | list[Array] | list[str] | list[bytes]
#: Some examples: their columns by name.
Rows: TypeAlias = dict[str, Column]

#: The most columns of one set. Each takes one to three tensors in every shard.
COLUMNS_MAX = 256
#: The most examples of one shard. An array of empty rows takes no bytes, however many rows it claims.
ROWS_MAX = 1 << 31

NOTE = "columns"
RAGGED, TEXT, BYTES = "ragged", "text", "bytes"
OFFSETS, SHAPES = "/offsets", "/shapes"

#: The largest product of sizes. Above it a float64 is not exact, and no shard is that large.
_SIZE_MAX = 2.0**53


@dataclass(frozen=True, slots=True)
class Plain:
    """Rows of one shape and type."""

    values: Array

    @property
    def kind(self) -> tuple[Any, ...]:
        return ("array", self.values.dtype.str, self.values.shape[1:])

    def __len__(self) -> int:
        return len(self.values)

    def gather(self, rows: Array) -> Array:
        """Return a copy of the rows with these numbers."""
        taken: Array = self.values[rows]
        return taken


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of one type and number of dimensions, end to end."""

    values: Array
    offsets: Array
    shapes: Array

    @property
    def kind(self) -> tuple[Any, ...]:
        return (RAGGED, self.values.dtype.str, self.shapes.shape[1])

    def __len__(self) -> int:
        return len(self.shapes)

    def gather(self, rows: Array) -> list[Array]:
        ends = self.offsets[rows + 1].tolist()
        spans = zip(self.offsets[rows].tolist(), ends, self.shapes[rows].tolist(), strict=True)
        return [self.values[start:end].reshape(shape).copy() for start, end, shape in spans]


@dataclass(frozen=True, slots=True)
class Strings:
    """Text or bytes, end to end."""

    values: Array
    offsets: Array
    is_text: bool

    @property
    def kind(self) -> tuple[Any, ...]:
        return (TEXT if self.is_text else BYTES,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def gather(self, rows: Array) -> list[str] | list[bytes]:
        spans = zip(self.offsets[rows].tolist(), self.offsets[rows + 1].tolist(), strict=True)
        found = [self.values[start:end].tobytes() for start, end in spans]
        if not self.is_text:
            return found
        try:
            return [text.decode() for text in found]
        except UnicodeDecodeError:
            raise Corrupt("a column of text holds bytes that are not UTF-8: prepare the task again") from None


Stored: TypeAlias = Plain | Ragged | Strings


# Rows in memory -----------------------------------------------------------------------------------


def length_of(rows: Rows) -> int:
    """Return how many examples these are. Raises Misuse if the columns have unequal lengths."""
    lengths = {name: len(column) for name, column in rows.items()}
    if len(set(lengths.values())) == 1:
        return next(iter(lengths.values()))
    if not lengths:
        raise Misuse("examples() gave no columns: give at least one, such as {'x': ...}")
    (first, count), *rest = lengths.items()
    others = " and ".join(f"{name} has {other}" for name, other in rest)
    raise Misuse(f"{first} has {count} examples and {others}: they must pair up")


def part_of(rows: Rows, start: int, stop: int) -> Rows:
    """Return the examples ``start`` to ``stop`` (not included)."""
    return {name: column[start:stop] for name, column in rows.items()}


def picked(rows: Rows, indices: Array) -> Rows:
    """Return the examples with these numbers, in this order."""
    return {name: _picked(column, indices) for name, column in rows.items()}


def _picked(column: Any, indices: Array) -> Column:
    if isinstance(column, np.ndarray):
        taken: Array = column[indices]
        return taken
    return [column[index] for index in indices.tolist()]


def as_pair(rows: Rows) -> tuple[Array, Array]:
    """Return the arrays x and y of examples that are pairs of equal-shaped arrays, as ``Task.batch`` takes them."""
    if set(rows) != {"x", "y"}:
        named = ", ".join(rows)
        raise Misuse(f"these examples have the columns {named}, not x and y: define collate(self, rows, *, training)")
    x, y = rows["x"], rows["y"]
    if isinstance(x, list) or isinstance(y, list):
        name = "x" if isinstance(x, list) else "y"
        raise Misuse(
            f"{name} is text, bytes or arrays of unequal shapes, which no one tensor holds: "
            "define collate(self, rows, *, training), or make every example the same shape"
        )
    return x, y


def labels_of(rows: Rows) -> Array | None:
    """Return the class of every example: the column ``y``, ``label`` or ``labels`` if it has one integer per row."""
    for name in LABELS:
        column = rows.get(name)
        if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "iu":
            return column
    return None


# To and from a shard ------------------------------------------------------------------------------


def checked_name(name: object) -> str:
    """Return a column's name if a shard can hold it, or raise Misuse."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_MAX_CHARS or not name.isprintable():
        raise Misuse(f"{name!r} cannot be the name of a column: take 1 to {NAME_MAX_CHARS} printable characters")
    return name


def pack(rows: Rows) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the tensors and the notes of a shard that holds these examples."""
    if len(rows) > COLUMNS_MAX:
        raise Misuse(f"examples() gave {len(rows)} columns, at most {COLUMNS_MAX} are stored: join some into one array")
    length_of(rows)
    arrays: dict[str, Array] = {}
    kinds: dict[str, str] = {}
    wanted = 0
    for name, column in rows.items():
        if isinstance(column, np.ndarray):
            parts = {checked_name(name): np.ascontiguousarray(column)}
        else:
            kinds[checked_name(name)], parts = _packed(name, column)
        arrays |= parts
        wanted += len(parts)
    if len(arrays) != wanted:
        raise Misuse(f"a column may not be called NAME{OFFSETS} or NAME{SHAPES} beside a column NAME: rename it")
    return arrays, {NOTE: json.dumps(kinds, sort_keys=True)} if kinds else {}


def _packed(name: str, column: list[Any]) -> tuple[str, dict[str, Array]]:
    first = column[0]
    if isinstance(first, np.ndarray):
        values = np.concatenate([row.reshape(-1) for row in column])
        shapes = np.array([row.shape for row in column], np.int64).reshape(len(column), first.ndim)
        sizes = [row.size for row in column]
        return RAGGED, {name: values, name + OFFSETS: _offsets(sizes), name + SHAPES: shapes}
    try:
        texts = [row.encode() for row in column] if isinstance(first, str) else column
    except UnicodeEncodeError as error:
        raise Misuse(f"column {name} holds text that is not valid Unicode: {error.reason}") from None
    values = np.frombuffer(b"".join(texts), np.uint8)
    kind = TEXT if isinstance(first, str) else BYTES
    return kind, {name: values, name + OFFSETS: _offsets([len(text) for text in texts])}


def _offsets(sizes: Sequence[int]) -> Array:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


def unpack(arrays: Mapping[str, Array], notes: Mapping[str, str]) -> dict[str, Stored]:
    """Return the columns of a shard, in its order. Checks everything that ``gather`` relies on."""
    kinds = _kinds(notes)
    columns: dict[str, Stored] = {}
    used = 0
    for name in [name for name in arrays if not _is_part(name, kinds)]:
        columns[name], parts = _column(name, kinds.get(name), arrays)
        used += parts
    if used != len(arrays) or not kinds.keys() <= columns.keys() or not 1 <= len(columns) <= COLUMNS_MAX:
        raise Corrupt("its tensors do not make columns")
    if len({len(column) for column in columns.values()}) != 1 or len(next(iter(columns.values()))) > ROWS_MAX:
        raise Corrupt("its columns must be of one length, such as x and y")
    return columns


def _kinds(notes: Mapping[str, str]) -> dict[str, str]:
    if not notes:
        return {}
    try:
        kinds = json.loads(notes[NOTE]) if set(notes) == {NOTE} else None
    except (ValueError, RecursionError):
        kinds = None
    if not isinstance(kinds, dict) or any(kind not in (RAGGED, TEXT, BYTES) for kind in kinds.values()):
        raise Corrupt("its note of columns cannot be read")
    return kinds


def _is_part(name: str, kinds: Mapping[str, str]) -> bool:
    """Whether this tensor belongs to the column of another name."""
    return any(
        name.endswith(suffix) and kinds.get(name.removesuffix(suffix)) in of
        for suffix, of in ((OFFSETS, (RAGGED, TEXT, BYTES)), (SHAPES, (RAGGED,)))
    )


def _column(name: str, kind: str | None, arrays: Mapping[str, Array]) -> tuple[Stored, int]:
    """Return a column, and the number of tensors it is made of."""
    values = arrays[name]
    if kind is None:
        if not values.ndim:
            raise Corrupt(f"its column {name!r} is a single number")
        return Plain(values), 1
    offsets = arrays.get(name + OFFSETS)
    if offsets is None or values.ndim != 1 or not _are_offsets(offsets, len(values)):
        raise Corrupt(f"the offsets of its column {name!r} do not cut up its values")
    if kind != RAGGED:
        if values.dtype != np.uint8:
            raise Corrupt(f"its column {name!r} of {kind} is not made of bytes")
        return Strings(values, offsets, is_text=kind == TEXT), 2
    shapes = arrays.get(name + SHAPES)
    if shapes is None or not _are_shapes(shapes, np.diff(offsets)):
        raise Corrupt(f"the shapes of its column {name!r} do not fit its offsets")
    return Ragged(values, offsets, shapes), 3


def _are_offsets(offsets: Array, values: int) -> bool:
    if offsets.ndim != 1 or offsets.dtype != np.int64 or not len(offsets):
        return False
    return bool(offsets[0] == 0 and offsets[-1] == values and (offsets[1:] >= offsets[:-1]).all())


def _are_shapes(shapes: Array, sizes: Array) -> bool:
    if shapes.ndim != 2 or shapes.dtype != np.int64 or len(shapes) != len(sizes):
        return False
    if shapes.shape[1] > TENSOR_DIMENSIONS_MAX or (shapes.size and (shapes.min() < 0 or shapes.max() > ROWS_MAX)):
        return False
    # Exact: a product of integers of at least 1 that ends below 2^53 was below it at every step.
    claimed = np.maximum(shapes, 1).astype(np.float64).prod(axis=1)
    return bool((claimed < _SIZE_MAX).all() and (shapes.astype(np.float64).prod(axis=1) == sizes).all())
