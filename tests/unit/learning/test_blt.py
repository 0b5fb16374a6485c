"""Noise along a chain: the table's claims, the sensitivity against every pattern, and the chain against matrices."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.learning.blt import (
    ToeplitzNoise,
    coefficients,
    ratio_of_chains,
    row_for,
    toeplitz_ratio,
)
from shoal.learning.blt_table import TABLE, VERSIONS_MAX


def matrix(versions: int) -> np.ndarray:
    """C itself."""
    column = coefficients(versions)
    return np.array([[column[row - at] if row >= at else 0.0 for at in range(versions)] for row in range(versions)])


@pytest.mark.parametrize("versions", [128, 256, 512])
def test_the_table_claims_the_error_that_its_matrices_have(versions: int) -> None:
    lower = matrix(versions)
    in_sums = np.cumsum(np.linalg.inv(lower), axis=0)
    error = math.sqrt((in_sums**2).sum() / versions) * np.linalg.norm(lower[:, 0])
    assert error == pytest.approx(TABLE[versions].error, rel=1e-6)


@pytest.mark.parametrize("versions", sorted(TABLE))
def test_the_table_is_better_than_the_square_root_and_its_coefficients_fall(versions: int) -> None:
    column = coefficients(versions)
    assert (np.diff(column) <= 0).all()
    assert column[-1] > 0
    steps = np.arange(1, versions)
    root = np.concatenate(([1.0], np.cumprod((2 * steps - 1) / (2 * steps))))
    # The root of the sum is its own inverse's sum: its error is that of both.
    at_most = np.linalg.norm(root) * math.sqrt(np.cumsum(root**2).mean())
    assert TABLE[versions].error < at_most


@pytest.mark.parametrize(("participations", "apart"), [(1, 1), (2, 3), (3, 2), (3, 4), (5, 1), (4, 3)])
def test_the_ratio_is_that_of_the_worst_pattern(participations: int, apart: int) -> None:
    versions = 10
    lower, worst = matrix(versions), 0.0
    for count in range(1, participations + 1):
        for places in itertools.combinations(range(versions), count):
            if all(after - before >= apart for before, after in itertools.pairwise(places)):
                # All updates along one line: coefficients are above 0, so that no other direction is worse.
                worst = max(worst, float(np.linalg.norm(lower[:, places].sum(axis=1))))
    assert toeplitz_ratio(participations, apart, versions) == pytest.approx(worst)


def test_updates_that_are_not_along_one_line_move_less() -> None:
    lower, generator = matrix(12), np.random.default_rng(3)
    for _ in range(200):
        updates = generator.normal(size=(3, 5))
        updates /= np.linalg.norm(updates, axis=1)[:, None]
        moved = lower[:, [0, 4, 8]] @ updates
        assert np.linalg.norm(moved) <= toeplitz_ratio(3, 4, 12) + 1e-9


def test_ratios_of_chains_add_up_in_quadrature() -> None:
    assert ratio_of_chains([3], 4, 100) == pytest.approx(toeplitz_ratio(3, 4, 100))
    both = ratio_of_chains([2, 1, 0], 4, 100)
    assert both == pytest.approx(math.hypot(toeplitz_ratio(2, 4, 100), toeplitz_ratio(1, 4, 100)))
    assert toeplitz_ratio(0, 4, 100) == 0


def test_a_chain_draws_what_the_inverse_makes_of_fresh_noise() -> None:
    versions, size = 40, 7
    chain = ToeplitzNoise(size, versions=versions, deviation=2.0)
    fresh = np.random.default_rng(5).standard_normal((versions, size), dtype=np.float32)
    drawn = np.array([chain.next(normals) for normals in fresh])
    wanted = np.linalg.solve(matrix(versions), 2.0 * fresh.astype(np.float64))
    assert np.abs(drawn - wanted).max() < 1e-5


def test_running_sums_carry_as_much_noise_as_is_claimed() -> None:
    versions, size = 128, 4_000
    chain, generator = ToeplitzNoise(size, versions=versions, deviation=1.0), np.random.default_rng(1)
    total, squares = np.zeros(size), 0.0
    for _ in range(versions):
        total += chain.next(generator.standard_normal(size, dtype=np.float32))
        squares += float((total**2).mean())
    error = math.sqrt(squares / versions) * toeplitz_ratio(1, 1, versions)
    assert error == pytest.approx(TABLE[128].error, rel=0.02)


def test_a_chain_ends_with_the_versions_it_is_for() -> None:
    chain = ToeplitzNoise(3, versions=4, deviation=1.0)
    for _ in range(4):
        assert not chain.is_over
        chain.next(np.ones(3, np.float32))
    assert chain.is_over
    with pytest.raises(Misuse, match="for 4 versions"):
        chain.next(np.ones(3, np.float32))


def test_there_is_a_row_for_every_number_up_to_the_last() -> None:
    assert row_for(1) is TABLE[128]
    assert row_for(129) is TABLE[256]
    assert row_for(VERSIONS_MAX) is TABLE[VERSIONS_MAX]
    for wrong in (0, VERSIONS_MAX + 1):
        with pytest.raises(Misuse, match="1 to"):
            row_for(wrong)
