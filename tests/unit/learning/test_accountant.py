"""The accountant on values worked out elsewhere or by hand."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld

from benchmarks.privacy_ratios import concentrated, epsilon_of_concentrated, gaussian_ratio, tree_ratio
from shoal.errors import Misuse
from shoal.learning.accountant import delta_of, epsilon_of, ratio_for


def test_delta_of_one_gaussian_by_a_table_of_the_normal() -> None:
    # Φ(-0.5) - e·Φ(-1.5) = 0.308538 - 2.718282 · 0.066807
    assert delta_of(1.0, epsilon=1.0) == pytest.approx(0.126937, abs=1e-5)
    # At ε = 0 it is the distance in total variation, 2Φ(μ/2) - 1.
    assert delta_of(1.0, epsilon=0.0) == pytest.approx(0.382925, abs=1e-5)


@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1 / 60_000**2])
def test_epsilon_is_the_smallest_of_its_delta_and_below_the_looser_bound(ratio: float, delta: float) -> None:
    epsilon = epsilon_of(ratio, delta=delta)
    assert delta_of(ratio, epsilon=epsilon) <= delta
    assert epsilon == 0 or delta_of(ratio, epsilon=0.999 * epsilon) > delta
    assert epsilon <= epsilon_of_concentrated(concentrated(ratio), delta=delta)


def test_the_old_rule_of_thumb_is_looser() -> None:
    # Dwork and Roth 2014: deviation √(2·ln(1.25/δ))/ε gives (ε, δ) for ε below 1.
    deviation = math.sqrt(2 * math.log(1.25e5)) / 0.9
    assert epsilon_of(1 / deviation, delta=1e-5) < 0.9


def test_four_participations_are_as_one_with_half_the_noise() -> None:
    assert gaussian_ratio(multiplier=2.0, participations=4) == gaussian_ratio(multiplier=1.0, participations=1)


def test_zero_concentrated_by_hand() -> None:
    # ρ = 1/2 and δ = e^-8: 1/2 + 2·√4
    assert concentrated(1.0) == 0.5
    assert epsilon_of_concentrated(0.5, delta=math.exp(-8)) == pytest.approx(4.5)


def test_a_tree_costs_one_noise_a_level() -> None:
    # 1,024 updates: levels of 1, 2, 4, ... 1,024.
    assert tree_ratio(multiplier=1.0, participations=1, updates=1024) == pytest.approx(math.sqrt(11))
    # Two, among four updates: at the leaves 2 parts apart, above them 2 together: 2·1 + 2·2 + 2·2.
    assert tree_ratio(multiplier=1.0, participations=2, updates=4) == pytest.approx(math.sqrt(10))


def test_no_privacy_is_infinite_and_not_an_overflow() -> None:
    assert epsilon_of(1e4, delta=1e-9) == math.inf
    assert epsilon_of(100.0, delta=1e-9) == pytest.approx(5_000 + 600, rel=0.02)


def test_what_makes_no_sense_is_refused() -> None:
    for call in (
        lambda: gaussian_ratio(multiplier=0.0, participations=1),
        lambda: gaussian_ratio(multiplier=1.0, participations=0),
        lambda: tree_ratio(multiplier=1.0, participations=3, updates=2),
        lambda: delta_of(0.0, epsilon=1.0),
        lambda: delta_of(1.0, epsilon=-1.0),
        lambda: epsilon_of(1.0, delta=0.0),
        lambda: epsilon_of_concentrated(-1.0, delta=0.1),
    ):
        with pytest.raises(Misuse):
            call()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0, 8.0, 50.0])
def test_the_ratio_of_an_epsilon_is_the_largest_that_keeps_it(epsilon: float) -> None:
    ratio = ratio_for(epsilon, delta=1e-5)
    assert epsilon_of(ratio, delta=1e-5) == pytest.approx(epsilon, rel=1e-9)
    assert epsilon_of(1.001 * ratio, delta=1e-5) > epsilon
    with pytest.raises(Misuse, match="above 0"):
        ratio_for(0.0, delta=1e-5)


@pytest.mark.parametrize(("multiplier", "participations"), [(1.0, 1), (4.0, 16), (5.0, 100), (20.0, 1000)])
def test_epsilon_is_that_of_dp_accounting(multiplier: float, participations: int) -> None:
    theirs = pld.PLDAccountant()
    theirs.compose(dp_accounting.GaussianDpEvent(multiplier), participations)
    ours = epsilon_of(gaussian_ratio(multiplier=multiplier, participations=participations), delta=1e-5)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize("ratio", [0.2, 1.0, 3.0])
def test_delta_is_what_the_densities_integrate_to(ratio: float) -> None:
    # δ(ε) = ∫ max(0, p(x) - e^ε·q(x)) dx of N(μ, 1) and N(0, 1), summed on a fine grid.
    places = np.linspace(-20, 20, 400_001)
    density = np.exp(-((places - ratio) ** 2) / 2) / math.sqrt(2 * math.pi)
    other = np.exp(-(places**2) / 2) / math.sqrt(2 * math.pi)
    for epsilon in (0.0, 0.5, 2.0):
        summed = float(np.maximum(0, density - math.exp(epsilon) * other).sum() * (places[1] - places[0]))
        assert delta_of(ratio, epsilon=epsilon) == pytest.approx(summed, rel=1e-5, abs=1e-12)
