"""Products modulo the prime: exact, however long the numbers."""

from __future__ import annotations

import numpy as np
import pytest

from papers.dcl.residues import centred, inverse, residues
from shoal.errors import Misuse
from shoal.offload.field import LARGEST, PRIME, matmul, reduced
from shoal.offload.stream import words


@pytest.mark.parametrize("size", [10, 2**10, 2**20, 2**31 - 1, 2**40, 2**62])
@pytest.mark.parametrize("inner", [1, 3, 100, 3000])
def test_products_are_exact(size: int, inner: int) -> None:
    chance = np.random.default_rng(size % 1000 + inner)
    left = chance.integers(-size, size, (3, inner), endpoint=True)
    right = chance.integers(-size, size, (inner, 2), endpoint=True)
    left[0], right[:, 0] = size, size
    truth = (left.astype(object) @ right.astype(object)) % PRIME
    assert matmul(left, right).tolist() == truth.tolist()
    assert matmul(np.abs(left), np.abs(right)).min() >= 0


def test_residues_and_signs() -> None:
    values = np.array([0, -1, PRIME, PRIME + 5, -PRIME, 2**63 - 1, -(2**63), LARGEST, LARGEST + 1])
    assert reduced(values).tolist() == [int(value) % PRIME for value in values.tolist()]
    assert centred(reduced(np.array([-3, 4, -LARGEST, LARGEST]))).tolist() == [-3, 4, -LARGEST, LARGEST]


def test_inverses() -> None:
    assert inverse(7) * 7 % PRIME == 1
    assert inverse(-7) * -7 % PRIME == 1
    with pytest.raises(Misuse):
        inverse(PRIME)


def test_streams_for_different_purposes_differ() -> None:
    seed = bytes(16)
    assert words(seed, "a", 4).tolist() != words(seed, "b", 4).tolist()
    assert residues(seed, "a", 5).tolist() == residues(seed, "a", 9)[:5].tolist()
    drawn = residues(seed, "a", 100_000)
    assert 0 <= drawn.min() <= drawn.max() < PRIME
    assert drawn.mean() == pytest.approx(PRIME / 2, rel=0.01)
