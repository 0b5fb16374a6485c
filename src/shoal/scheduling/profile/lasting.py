"""What a profiler learned, as arrays that a checkpoint can hold, and back. Knows no profiler.

Names are bytes of one text, a line each; gaps lie beside the numbers they are gaps in, for a checkpoint has no NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.errors import Misuse

#: No figure of a row is as far from zero.
_VALUE_MOST = 1e6


def packed_names(names: Sequence[str]) -> np.ndarray:
    return np.frombuffer("\n".join(names).encode(), dtype=np.uint8)


def names_in(learned: Mapping[str, np.ndarray], key: str) -> list[str]:
    packed = _array(learned, key)
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise Misuse(f"{key} are not names")
    try:
        names = packed.tobytes().decode().split("\n") if packed.size else []
    except UnicodeDecodeError as error:
        raise Misuse(f"{key} are not names: {error}") from None
    if not all(names) or len(set(names)) != len(names):
        raise Misuse(f"{key} have a name twice, or one that is empty")
    return names


def packed_rows(rows: Sequence[Sequence[float]]) -> dict[str, np.ndarray]:
    values = np.array(rows, dtype=np.float64)
    gaps = np.isnan(values)
    return {"rows": np.where(gaps, 0.0, values), "gaps": gaps.astype(np.uint8)}


def rows_in(learned: Mapping[str, np.ndarray], *, width: int) -> list[list[float]]:
    values, gaps = _array(learned, "rows"), _array(learned, "gaps")
    if values.dtype != np.float64 or values.ndim != 2 or values.shape[1] != width or gaps.shape != values.shape:
        raise Misuse(f"rows that are not of {width} figures")
    # A target is always known.
    if not (np.abs(values) <= _VALUE_MOST).all() or gaps[:, -1].any():
        raise Misuse("rows of figures that cannot be")
    rows: list[list[float]] = np.where(gaps.astype(bool), np.nan, values).tolist()
    return rows


def table(learned: Mapping[str, np.ndarray], key: str, *, rows: int, width: int) -> list[list[float]]:
    """So many rows of numbers, as Python has them."""
    plain: list[list[float]] = _numbers(learned, key, (rows, width)).tolist()
    return plain


def line(learned: Mapping[str, np.ndarray], key: str, *, width: int) -> list[float]:
    plain: list[float] = _numbers(learned, key, (width,)).tolist()
    return plain


def _numbers(learned: Mapping[str, np.ndarray], key: str, shape: tuple[int, ...]) -> np.ndarray:
    values = _array(learned, key)
    if values.shape != shape or values.dtype not in (np.float64, np.int64) or not np.isfinite(values).all():
        raise Misuse(f"{key} are not numbers in the shape {shape}")
    return values


def _array(learned: Mapping[str, np.ndarray], key: str) -> np.ndarray:
    if key not in learned:
        raise Misuse(f"what was learned has no {key}")
    return learned[key]
