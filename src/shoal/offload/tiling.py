"""A product cut into tiles: blocks of rows of its left side.

The heights of tiles are set before any executor is asked, so that the bits of a result do not depend on a tile's
executor. The shape determines a float32 product, on one kind of processor with one build of the linear algebra.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse

#: The terms that are summed at a time: at most as many as OpenBLAS adds in one go on any processor.
_SUMMED = 256
#: Rows that are multiplied at a time.
_PANEL_ROWS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """Rows ``start`` to ``stop`` of the left side."""

    number: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def tiles(rows: int, *, rows_each: int) -> tuple[Tile, ...]:
    """All rows in tiles of one height; the last may be lower."""
    if rows < 0 or rows_each < 1:
        raise Misuse(f"{rows} rows in tiles of {rows_each}: rows are 0 or more, a tile has at least one")
    return tuple(
        Tile(number=number, start=start, stop=min(rows, start + rows_each))
        for number, start in enumerate(range(0, rows, rows_each))
    )


def rows_each(rows: int, inner: int, columns: int, *, operations: int) -> int:
    """Return the height at which a tile has about ``operations`` multiply-adds: at least one row, at most all."""
    if min(rows, inner, columns, operations) < 1:
        raise Misuse(
            f"a product of {rows} x {inner} x {columns} in tiles of {operations} operations: all are at least 1"
        )
    return min(rows, max(1, round(operations / (inner * columns))))


def product(left: np.ndarray, right: np.ndarray, *, threads: int = 1) -> np.ndarray:
    """``left @ right`` in float32: the same bits however values lie in memory and however many threads there are.

    Replicas are compared bit for bit, and an executor with more cores must not look like a liar. On some processors the
    library gives other bits where several of its threads share a product. So it has one thread in the processes that
    multiply, and these threads are ours: each multiplies panels of rows, which are cut alike everywhere.
    """
    _must_meet(left, right)
    return in_panels(_panel, left, right, threads=threads)


def in_panels(
    multiply: Callable[[np.ndarray, np.ndarray], np.ndarray], left: np.ndarray, right: np.ndarray, *, threads: int
) -> np.ndarray:
    """Multiply panels of the left side's rows, in this many threads, and put the results together."""
    panels = [left[start : start + _PANEL_ROWS] for start in range(0, left.shape[0], _PANEL_ROWS)]
    if len(panels) < 2:
        return multiply(left, right)
    if threads == 1:
        return np.concatenate([multiply(panel, right) for panel in panels])
    with ThreadPoolExecutor(min(threads, len(panels))) as pool:
        return np.concatenate(list(pool.map(lambda panel: multiply(panel, right), panels)))


def _panel(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Multiply one panel. The library cuts long sums at other places for other shapes: they are cut here, shorter.

    A product of one row or one column would go to another routine, which may share out the sum itself: it is done as
    one of two.
    """
    rows, columns = left.shape[0], right.shape[1]
    # Whole copies where needed: a transposed side takes another path through the library, and other bits.
    left = _at_least_two(np.ascontiguousarray(left, dtype=np.float32), axis=0)
    right = _at_least_two(np.ascontiguousarray(right, dtype=np.float32), axis=1)
    total = left[:, :_SUMMED] @ right[:_SUMMED]
    part = np.empty_like(total)
    for start in range(_SUMMED, left.shape[1], _SUMMED):
        total += np.matmul(left[:, start : start + _SUMMED], right[start : start + _SUMMED], out=part)
    return np.ascontiguousarray(total[:rows, :columns])


def assemble(parts: Mapping[int, np.ndarray], cut: tuple[Tile, ...], columns: int) -> np.ndarray:
    """The whole product from the results of the tiles, by their numbers."""
    missing = [tile.number for tile in cut if tile.number not in parts]
    if missing:
        raise Misuse(f"tiles {missing[:5]} of {len(cut)} have not come back yet: wait for them, or issue them again")
    for tile in cut:
        if parts[tile.number].shape != (tile.rows, columns):
            raise Misuse(
                f"tile {tile.number} has the shape {parts[tile.number].shape}, not {(tile.rows, columns)}: refuse it"
                " where it arrives"
            )
    if not cut:
        return np.zeros((0, columns), dtype=np.float32)
    return np.concatenate([parts[tile.number] for tile in cut])


def moved_bytes(rows: int, inner: int, columns: int, *, executors: int, element_bytes: int = 4) -> int:
    """D(ab + e·bc + ac): each row goes out once, the right side to each executor, each row of the result comes back."""
    return element_bytes * (rows * inner + executors * inner * columns + rows * columns)


def _at_least_two(matrix: np.ndarray, *, axis: int) -> np.ndarray:
    return np.repeat(matrix, 2, axis=axis) if matrix.shape[axis] == 1 else matrix


def _must_meet(left: np.ndarray, right: np.ndarray) -> None:
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        raise Misuse(f"{left.shape} times {right.shape}: two matrices whose inner sides are equal make a product")
