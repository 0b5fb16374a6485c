"""The columns of a device's own rows as a task declares them: a name, a type and a fixed shape each. No numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from shoal.errors import Corrupt, Misuse

#: The bytes of a value, by type.
DTYPES = {"uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float32": 4, "bool": 1}
COLUMNS_MAX = 32
NAME_MAX_CHARS = 64
DIMENSIONS_MAX = 8
SIZE_MAX = 1 << 24
ROW_MAX_BYTES = 16 << 20
CLASSES_MAX = 1000
CLASS_MAX_CHARS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class RawColumn:
    """One column. ``shape`` is that of one row."""

    dtype: str
    shape: tuple[int, ...] = ()
    #: The names of the values 0, 1, ..., or empty if they have none.
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise Misuse(f"a column is of {', '.join(DTYPES)}, not {self.dtype!r:.40}")
        if len(self.shape) > DIMENSIONS_MAX or not all(_is_within(size, SIZE_MAX) for size in self.shape):
            raise Misuse(
                f"the shape of a column has at most {DIMENSIONS_MAX} sizes from 1 to {SIZE_MAX:,}: {self.shape!r:.80}"
            )
        if not self.classes:
            return
        if self.shape or "int" not in self.dtype:
            raise Misuse(f"classes are for a column of one integer per row, not of {self}")
        if len(self.classes) > CLASSES_MAX or len(set(self.classes)) < len(self.classes):
            raise Misuse(f"a column has at most {CLASSES_MAX} classes, each with its own name")
        if not all(isinstance(name, str) and _is_name(name, CLASS_MAX_CHARS) for name in self.classes):
            raise Misuse(f"the name of a class has 1 to {CLASS_MAX_CHARS} printable characters")

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}" if self.shape else self.dtype

    @property
    def size(self) -> int:
        """The number of values in a row."""
        return math.prod(self.shape)

    @property
    def is_label(self) -> bool:
        """Whether it can hold the class of a row."""
        return not self.shape and "int" in self.dtype


#: The columns of a task, in its order.
RawColumns: TypeAlias = dict[str, RawColumn]


def column(dtype: str, shape: Sequence[int] | int = (), *, classes: Sequence[str] = ()) -> RawColumn:
    """Declare a column of a device's own rows: its type, the shape of one row, and the names of its values.

    ``columns = {"x": shoal.column("uint8", (28, 28)), "y": shoal.column("int64", classes=("cat", "dog"))}``
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    return RawColumn(dtype=dtype, shape=sizes, classes=tuple(classes))


def checked_columns(columns: object) -> RawColumns:
    """Return the columns that a task declares, or raise Misuse."""
    if not isinstance(columns, Mapping) or not all(isinstance(each, RawColumn) for each in columns.values()):
        raise Misuse(
            'columns says what rows the devices have, such as {"x": shoal.column("uint8", (28, 28)), '
            '"y": shoal.column("int64")}'
        )
    if len(columns) > COLUMNS_MAX:
        raise Misuse(f"columns has {len(columns)} entries; the maximum is {COLUMNS_MAX}")
    for name in columns:
        if not isinstance(name, str) or not _is_name(name, NAME_MAX_CHARS):
            raise Misuse(f"{name!r:.80} cannot name a column: take 1 to {NAME_MAX_CHARS} printable characters")
    row_bytes = sum(DTYPES[each.dtype] * each.size for each in columns.values())
    if row_bytes > ROW_MAX_BYTES:
        raise Misuse(f"a row of these columns has {row_bytes:,} bytes; the maximum is {ROW_MAX_BYTES:,}")
    return dict(columns)


def columns_to_plain(columns: Mapping[str, RawColumn]) -> list[dict[str, Any]]:
    """Return columns as plain values, in their order."""
    return [
        {"name": name, "dtype": each.dtype, "shape": list(each.shape), "classes": list(each.classes)}
        for name, each in columns.items()
    ]


def columns_from_plain(plain: Any) -> RawColumns:
    """Read the output of ``columns_to_plain``, which is not trusted."""
    try:
        found = {
            each["name"]: RawColumn(dtype=each["dtype"], shape=tuple(each["shape"]), classes=tuple(each["classes"]))
            for each in plain
        }
        if len(found) < len(plain):
            raise Corrupt("two columns of a device's rows have one name")
        return checked_columns(found)
    except (KeyError, TypeError, Misuse) as error:
        raise Corrupt(f"these do not describe the columns of a device's rows: {error}") from None


def _is_within(size: object, most: int) -> bool:
    return type(size) is int and 1 <= size <= most


def _is_name(name: str, most: int) -> bool:
    return 1 <= len(name) <= most and name.isprintable()
