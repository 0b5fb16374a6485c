"""Tiles: worked out on paper; and the bits of a product, whatever lies how in memory."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.offload_outer import issued_bytes, returned_bytes
from shoal.errors import Misuse
from shoal.offload.tiling import Tile, assemble, moved_bytes, product, rows_each, tiles


def test_ten_rows_in_tiles_of_four() -> None:
    assert tiles(10, rows_each=4) == (
        Tile(number=0, start=0, stop=4),
        Tile(number=1, start=4, stop=8),
        Tile(number=2, start=8, stop=10),
    )
    assert [tile.rows for tile in tiles(10, rows_each=4)] == [4, 4, 2]
    assert tiles(0, rows_each=4) == ()


def test_height_by_operations() -> None:
    # 100 x 10 is 1000 multiply-adds a row.
    assert rows_each(60_000, 100, 10, operations=1_000_000) == 1000
    assert rows_each(60, 100, 10, operations=1_000_000) == 60
    assert rows_each(60, 100, 10, operations=1) == 1


def test_tiles_move_a_ninetieth_of_what_outer_products_do() -> None:
    # MNIST's first layer among 100: 188.2 + 100·0.4 + 30.7 MB, against 0.19 + 24.08 GB.
    layer = (60_000, 784, 128)
    tiled = moved_bytes(*layer, executors=100)
    assert tiled == 4 * (47_040_000 + 100 * 100_352 + 7_680_000)
    assert (issued_bytes(*layer) + returned_bytes(*layer)) / tiled > 90


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(Misuse, match="at least one"):
        tiles(3, rows_each=0)
    with pytest.raises(Misuse, match="at least 1"):
        rows_each(3, 0, 2, operations=5)
    with pytest.raises(Misuse, match="inner sides"):
        product(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))


def test_a_missing_or_misshapen_tile_is_not_assembled() -> None:
    cut = tiles(4, rows_each=2)
    with pytest.raises(Misuse, match=r"tiles \[1\] of 2"):
        assemble({0: np.ones((2, 3), np.float32)}, cut, 3)
    with pytest.raises(Misuse, match="tile 1 has the shape"):
        assemble({0: np.ones((2, 3), np.float32), 1: np.ones((3, 3), np.float32)}, cut, 3)


@pytest.mark.parametrize("shape", [(1, 300, 40), (40, 300, 1), (1, 300, 1), (33, 300, 41)])
def test_bits_do_not_depend_on_how_it_lies_in_memory(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    chance = np.random.default_rng(0)
    left = chance.standard_normal((rows, inner), dtype=np.float32)
    right = chance.standard_normal((inner, columns), dtype=np.float32)
    known = product(left, right)
    assert known.shape == (rows, columns)
    assert known.flags.c_contiguous
    assert known.dtype == np.float32
    np.testing.assert_allclose(known, left.astype(float) @ right.astype(float), atol=1e-4)
    again = product(np.asfortranarray(left), np.repeat(right, 2, axis=0)[::2])
    assert known.tobytes() == again.tobytes()


_THREADS = """
import hashlib, sys, numpy as np
from shoal.offload.tiling import product
chance = np.random.default_rng(1)
out = hashlib.sha256()
thin = ((1, 5000, 64), (64, 5000, 1), (1, 50000, 1), (2, 30000, 3), (129, 300, 7))
for rows, inner, columns in (*thin, (1, 256, 5000), (200, 784, 128), (500, 500, 300), (4, 784, 999)):
    left = chance.standard_normal((rows, inner), dtype=np.float32)
    right = chance.standard_normal((inner, columns), dtype=np.float32)
    out.update(product(left, right, threads=int(sys.argv[1])).tobytes())
print(out.hexdigest())
"""


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    said = {
        subprocess.run(
            [sys.executable, "-c", _THREADS, threads],
            # As a process that multiplies has it (``runtime.multiplier``).
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        ).stdout
        for threads in ("1", "2", "3")
    }
    assert len(said) == 1
