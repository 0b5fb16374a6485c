"""Weights that outvote liars: they add up over parts, follow their devices, and leave a far liar next to nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shoal.compress.sparse import Sparse
from shoal.errors import Misuse
from shoal.learning.robust import (
    clip_factor,
    distances,
    gram,
    gram_of,
    liars_borne,
    nearest_weights,
    squared_distance,
    weighted_sum,
)

SHARE = 0.2

#: Two squared distances count as the same if they differ by less than this share of a usual update's square.
SAME = 1e-5
#: Products of float32 values are rounded by less than this share of the longest update's square.
ROUNDED = 2e-6


@st.composite
def cohorts(draw: st.DrawFn, *, least: int = 1) -> np.ndarray:
    """Updates of honest devices: a common direction, and what is each one's own."""
    devices, size = draw(st.integers(least, 24)), draw(st.integers(1, 400))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread, scale = draw(st.sampled_from((0.3, 1.0, 3.0))), 10.0 ** draw(st.integers(-5, 3))
    common = rng.standard_normal(size)
    return (scale * (common + spread * rng.standard_normal((devices, size)))).astype(np.float32)


def weights_of(updates: np.ndarray) -> np.ndarray:
    return nearest_weights(gram(updates), liars=liars_borne(len(updates), SHARE))


def is_near_a_tie(products: np.ndarray, *, liars: int) -> bool:
    """Whether rounding decides if two updates count as equally near: no two sums need agree on that."""
    norms = np.diag(products)
    squared = norms[:, None] + norms[None, :] - 2 * products
    nearest = len(norms) - min(liars, (len(norms) - 1) // 2)
    farthest = np.sort(squared, axis=1)[:, nearest - 1 : nearest]
    beyond = np.abs(squared - farthest) - SAME * np.median(norms)
    return bool((np.abs(beyond) < ROUNDED * norms.max()).any())


@given(cohorts(), st.data())
def test_gram_matrices_of_parts_add_up(updates: np.ndarray, data: st.DataObject) -> None:
    size = updates.shape[1]
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, size - 1)), max_size=5)) | {0, size})
    parts = [updates[:, start:stop] for start, stop in itertools.pairwise(cuts) if stop > start]
    whole, together = gram(updates), sum(gram(part) for part in parts)
    np.testing.assert_allclose(together, whole, rtol=1e-5, atol=1e-6 * np.diag(whole).max())
    liars = liars_borne(len(updates), SHARE)
    assume(not is_near_a_tie(whole, liars=liars))
    parted, at_once = (nearest_weights(each, liars=liars) for each in (together, whole))
    np.testing.assert_allclose(parted, at_once, rtol=0, atol=1e-6)


@given(cohorts(), st.data())
def test_updates_that_lie_apart_have_the_same_products(updates: np.ndarray, data: st.DataObject) -> None:
    scales = data.draw(st.lists(st.sampled_from((1.0, 0.5, 0.1)), min_size=len(updates), max_size=len(updates)))
    scaled = updates * np.array(scales, dtype=np.float32)[:, None]
    sparse = [Sparse(row.size, np.flatnonzero(row), row[row != 0]) for row in updates]
    for each in (list(updates), sparse):
        np.testing.assert_allclose(gram_of(each, scales), gram(scaled), rtol=1e-6)
    centre = updates.mean(axis=0)
    far = [float(((row - centre).astype(np.float64) ** 2).sum()) for row in scaled]
    for row, like, scale, expected in zip(updates, sparse, scales, far, strict=True):
        most = float((row.astype(np.float64) ** 2).sum()) + float((centre.astype(np.float64) ** 2).sum())
        assert squared_distance(row, centre, scale=scale) == pytest.approx(expected, abs=1e-4 * most)
        assert squared_distance(like, centre, scale=scale) == pytest.approx(expected, abs=1e-4 * most)


def test_updates_that_cancel_out_are_weighed_all_the_same() -> None:
    # Of a mixture that is nothing, rounding may leave a square below zero.
    products = np.array([[1.0, -1.0 - 1e-12], [-1.0 - 1e-12, 1.0]])
    np.testing.assert_allclose(nearest_weights(products, liars=0), 0.5)


@given(cohorts(), st.randoms())
def test_weights_follow_their_devices(updates: np.ndarray, rng) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(updates)))
    rng.shuffle(order)
    np.testing.assert_allclose(weights_of(updates[order]), weights_of(updates)[order], atol=1e-5)


@given(cohorts())
def test_a_version_is_a_convex_combination(updates: np.ndarray) -> None:
    weights = weights_of(updates)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1.0)
    expected = weights @ updates.astype(np.float64)
    np.testing.assert_allclose(weighted_sum(updates, weights), expected, rtol=1e-4, atol=1e-5 * np.abs(updates).max())


@given(cohorts(least=5), st.sampled_from((-1.0, 1.0)), st.floats(2.0, 6.0))
def test_a_far_liar_moves_a_version_no_further_than_an_honest_device(
    updates: np.ndarray, sign: float, magnitude: float
) -> None:
    size = updates.shape[1]
    assume(size >= 20)
    honest = updates[1:].astype(np.float64)
    usual = np.linalg.norm(honest, axis=1).max()
    lie = updates.copy()
    lie[0] = sign * 10**magnitude * updates[0]
    weights = weights_of(lie)
    assert weights[0] < 1 / len(updates) / 4
    assert weights[0] * np.linalg.norm(lie[0].astype(np.float64)) <= usual


@given(cohorts(least=3), st.sampled_from((np.nan, np.inf, -np.inf, 1e30)))
def test_values_that_are_none_get_no_weight(updates: np.ndarray, value: float) -> None:
    assume(float(np.abs(updates).max()) < 1e6)
    bad = updates.copy()
    bad[1, 0] = value
    weights = weights_of(bad)
    assert weights[1] == 0.0
    assert np.isfinite(weighted_sum(bad, weights)).all()
    assert distances(gram(bad), weights)[1] == np.inf
    assert np.isfinite(np.delete(distances(gram(bad), weights), 1)).all()


def test_updates_that_are_all_alike_weigh_alike() -> None:
    alike = np.tile(np.linspace(-1, 1, 50, dtype=np.float32), (7, 1))
    np.testing.assert_allclose(weights_of(alike), 1 / 7, atol=1e-6)
    nothing = np.zeros((4, 3), dtype=np.float32)
    np.testing.assert_allclose(weights_of(nothing), 1 / 4)


def test_no_finite_update_is_no_version() -> None:
    with pytest.raises(Misuse, match="no update of the version is finite"):
        weights_of(np.full((3, 2), np.nan, dtype=np.float32))


@given(st.integers(1, 300), st.floats(0.01, 0.49))
def test_honest_devices_are_more_than_liars(devices: int, share: float) -> None:
    borne = liars_borne(devices, share)
    assert 2 * borne < devices
    assert borne <= share * devices + 1


def test_how_many_may_lie() -> None:
    assert [liars_borne(devices, 0.2) for devices in (1, 2, 3, 5, 6, 10, 40)] == [0, 0, 1, 1, 2, 2, 8]


@given(st.floats(0, 1e9), st.floats(1e-9, 1e9))
def test_what_is_clipped_ends_at_the_radius(distance: float, radius: float) -> None:
    factor = clip_factor(distance, radius=radius)
    assert 0 < factor <= 1
    assert factor * distance <= radius * (1 + 1e-12)
    assert clip_factor(float("inf"), radius=radius) == 0.0
    assert clip_factor(float("nan"), radius=radius) == 0.0
