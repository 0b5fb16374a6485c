"""Values of a device's own rows: converted to what the task declares, or refused by column. Numpy only.

Errors name a column and never a value: a device reports them, and its rows stay with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from shoal.data.raw_columns import RawColumn
from shoal.errors import Misuse

Array: TypeAlias = np.ndarray[Any, Any]
#: Rows by column.
RawRows: TypeAlias = dict[str, Array]


def fitted(values: Array, name: str, column: RawColumn) -> Array:
    """Return rows of one column in the declared type. Raises Misuse if they do not fit or would lose digits."""
    check_fit(values.shape[1:], values.dtype, name, column)
    cast = values
    if values.dtype != column.dtype:
        with np.errstate(invalid="ignore", over="ignore"):
            cast = values.astype(column.dtype)
        # Digits beyond float32 are of no use to a model of float32.
        is_exact = values.dtype.kind == cast.dtype.kind == "f" or _is_same(cast, values)
        if not is_exact:
            raise Misuse(f"column {name} has values of {values.dtype} that {column.dtype} cannot hold")
    if cast.dtype.kind == "f" and not np.isfinite(cast).all():
        raise Misuse(f"column {name} has a value that is not a finite number")
    if column.classes and cast.size and not 0 <= int(cast.min()) <= int(cast.max()) < len(column.classes):
        raise Misuse(f"column {name} has a value outside its {len(column.classes)} classes")
    return cast


def _is_same(cast: Array, values: Array) -> bool:
    """Whether a cast lost nothing. numpy compares int64 with float32 as float64, which rounds both: so back as well."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.array_equal(cast, values) and np.array_equal(cast.astype(values.dtype), values)


def check_fit(shape: tuple[int, ...], dtype: np.dtype[Any], name: str, column: RawColumn) -> None:
    """Raise Misuse unless rows of this shape and type are of a column."""
    if shape != column.shape or dtype.kind not in "biuf":
        kind = str(dtype) if dtype.names is None else "a structure"
        raise Misuse(f"column {name} is {kind}{f' {list(shape)}' if shape else ''}; the task declares {column}")


def fitted_rows(rows: Mapping[str, Any], columns: Mapping[str, RawColumn]) -> RawRows:
    """Return the declared columns of some rows, in their order and types."""
    for name in columns:
        if not isinstance(rows.get(name), np.ndarray):
            raise Misuse(
                f"column {name} is missing" if name not in rows else f"column {name} has rows of unequal shapes"
            )
    return {name: fitted(rows[name], name, column) for name, column in columns.items()}


def class_of(text: str, name: str, column: RawColumn) -> int:
    """Return the value of a class that is given by its name, or by its number."""
    if text in column.classes:
        return column.classes.index(text)
    if text.isascii() and text.lstrip("-").isdigit():
        return int(text)
    known = f"one of its {len(column.classes)} classes" if column.classes else "a whole number"
    raise Misuse(f"column {name} has a text that is not {known}")


#: The memory of made-up rows, unless a few are larger.
_MADE_UP_BYTES = 64 << 20


def made_up_rows(columns: Mapping[str, RawColumn]) -> RawRows:
    """Return rows of random values, the same on every machine, to try a step with where nobody has rows.

    A column of integers without classes has 0 and 1, since the task may not have more classes.
    """
    count = max(64, min(512, _MADE_UP_BYTES // sum(8 * column.size for column in columns.values())))
    rng, rows = np.random.Generator(np.random.PCG64(20)), {}
    for name, column in columns.items():
        shape = (count, *column.shape)
        if column.dtype == "float32":
            rows[name] = rng.standard_normal(shape).astype(np.float32)
        else:
            most = 256 if column.dtype == "uint8" and column.shape else len(column.classes) or 2
            rows[name] = rng.integers(0, most, shape).astype(column.dtype)
    return rows
