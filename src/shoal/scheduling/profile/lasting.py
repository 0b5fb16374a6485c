"""A profiler's learned state as arrays for a checkpoint, and back.

Names are the bytes of one text, one name per line. A checkpoint has no NaN, so a second array marks missing values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.errors import Misuse

#: The largest absolute value in a row.
_VALUE_MOST = 1e6


def packed_names(names: Sequence[str]) -> np.ndarray:
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)


def names_in(learned: Mapping[str, np.ndarray], key: str) -> list[str]:
    packed = _array(learned, key)
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise Misuse(f"the snapshot's {key} are not names")
    try:
        names = packed.tobytes().decode().split("\n") if packed.size else []
    except UnicodeDecodeError as error:
        raise Misuse(f"the snapshot's {key} are not names: {error}") from None
    if not all(names) or len(set(names)) != len(names):
        raise Misuse(f"the snapshot's {key} have a name twice, or an empty one")
    return names


def packed_rows(rows: Sequence[Sequence[float]]) -> dict[str, np.ndarray]:
    values = np.array(rows, dtype=np.float64)
    gaps = np.isnan(values)
    return {"rows": np.where(gaps, 0.0, values), "gaps": gaps.astype(np.uint8)}


def rows_in(learned: Mapping[str, np.ndarray], *, width: int) -> list[list[float]]:
    values, gaps = _array(learned, "rows"), _array(learned, "gaps")
    if values.dtype != np.float64 or values.ndim != 2 or values.shape[1] != width or gaps.shape != values.shape:
        raise Misuse(f"the snapshot's rows must have {width} values each")
    # A target is never missing.
    if not (np.abs(values) <= _VALUE_MOST).all() or gaps[:, -1].any():
        raise Misuse("the snapshot's rows have a value that is out of range, or lack a target")
    rows: list[list[float]] = np.where(gaps.astype(bool), np.nan, values).tolist()
    return rows


def table(learned: Mapping[str, np.ndarray], key: str, *, rows: int, width: int) -> list[list[float]]:
    """Return the array ``key`` as a list of rows of Python numbers."""
    plain: list[list[float]] = _numbers(learned, key, (rows, width)).tolist()
    return plain


def line(learned: Mapping[str, np.ndarray], key: str, *, width: int) -> list[float]:
    plain: list[float] = _numbers(learned, key, (width,)).tolist()
    return plain


def _numbers(learned: Mapping[str, np.ndarray], key: str, shape: tuple[int, ...]) -> np.ndarray:
    values = _array(learned, key)
    if values.shape != shape or values.dtype not in (np.float64, np.int64) or not np.isfinite(values).all():
        raise Misuse(f"the snapshot's {key} are not numbers in the shape {shape}")
    return values


def _array(learned: Mapping[str, np.ndarray], key: str) -> np.ndarray:
    if key not in learned:
        raise Misuse(f"the snapshot has no {key}")
    return learned[key]
