"""Lies that know the rule: limited lies are no longer than honest updates, and the search finds the worst it tries."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.trust_tailored import LENGTHS, Rule, against_mean, norm_limited
from shoal.learning.robust import gram, nearest_weights

LIARS = 3


def honest_updates() -> np.ndarray:
    return (1 + np.random.default_rng(0).standard_normal((9, 40))).astype(np.float32)


def nearest(products: np.ndarray) -> np.ndarray:
    return nearest_weights(products, liars=LIARS)


def equal(products: np.ndarray) -> np.ndarray:
    return np.full(len(products), 1 / len(products))


def test_only_updates_that_are_too_long_are_shortened_and_none_is_turned() -> None:
    honest = np.array([[1, 0], [0, 2], [3, 0]], dtype=np.float32)
    made = norm_limited(np.array([[30, 40], [0, -1]], dtype=np.float32), honest)
    # The median length is 2: (30, 40) has length 50.
    np.testing.assert_allclose(made, [[1.2, 1.6], [0, -1]], rtol=1e-6)


@pytest.mark.parametrize("rule", [nearest, equal])
def test_the_search_finds_what_moves_the_version_most_of_all_it_tries(rule: Rule) -> None:
    """The same search with whole updates instead of products of the honest ones."""
    honest = honest_updates()
    mean = honest.mean(0)

    def moved(length: float) -> float:
        sent = np.vstack([np.tile((1 - length) * mean, (LIARS, 1)), honest]).astype(np.float32)
        return float(rule(gram(sent)) @ sent @ mean)

    found = against_mean(honest, liars=LIARS, rule=rule)
    expected = (1 - min(LENGTHS, key=moved)) * mean
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_where_everybody_counts_alike_liars_push_as_far_as_they_may() -> None:
    honest = honest_updates()
    found = against_mean(honest, liars=LIARS, rule=equal)
    np.testing.assert_allclose(found, (1 - LENGTHS[-1]) * honest.mean(0), rtol=1e-5)


def test_against_the_rule_a_lie_stays_near_the_honest_ones() -> None:
    honest = honest_updates()
    found = against_mean(honest, liars=LIARS, rule=nearest)
    assert np.linalg.norm(found) < np.linalg.norm(against_mean(honest, liars=LIARS, rule=equal))
