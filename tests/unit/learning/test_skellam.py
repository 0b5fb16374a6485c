"""The account of noise in shares, against the chances of Skellam numbers themselves."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp

from benchmarks.privacy_ratios import gaussian_ratio
from shoal.errors import Misuse
from shoal.learning.accountant import epsilon_of
from shoal.learning.skellam import renyi, shares_for, skellam_epsilon


def chances(variance: float, most: int) -> np.ndarray:
    """Of the numbers from -most to most, by definition: one Poisson number less another."""
    half, count = variance / 2, 2 * most + 1
    logs = np.array([-half + k * math.log(half) - math.lgamma(k + 1) for k in range(count + most)])
    poisson = np.exp(logs)
    return np.array([float(np.dot(poisson[max(0, k) :], poisson[: poisson.size - max(0, k)])) for k in range(most + 1)])


def both_sides(variance: float, most: int) -> np.ndarray:
    one = chances(variance, most)
    return np.concatenate([one[:0:-1], one])


@pytest.mark.parametrize(("variance", "shift"), [(4.0, 1), (4.0, 3), (30.0, 1), (30.0, 8), (100.0, 10)])
@pytest.mark.parametrize("order", [2, 3, 8])
def test_the_bound_is_above_the_true_divergence_and_near_it(variance: float, shift: int, order: int) -> None:
    # As far as chances can be written: what is beyond weighs next to nothing.
    most = int(12 * math.sqrt(variance)) + 40
    there = both_sides(variance, most)
    moved, stayed = there[: there.size - shift], there[shift:]
    true = math.log(float(np.sum(np.exp((1.0 - order) * np.log(stayed) + order * np.log(moved))))) / (order - 1)
    bound = renyi(order, ratio=shift / math.sqrt(variance), variance=variance)
    assert true <= bound * (1 + 1e-9)
    # One that a plan has is of millions: the correction is nothing there.
    assert order * shift**2 / (2 * variance) <= bound
    if variance >= 100:
        assert bound <= 1.2 * true


@pytest.mark.parametrize(("variance", "shift", "often"), [(400.0, 10, 1), (400.0, 10, 8), (900.0, 6, 25)])
def test_epsilon_is_above_that_of_the_numbers_themselves(variance: float, shift: int, often: int) -> None:
    """delta(epsilon) of the sum of losses of several draws, each by its chance on a fine grid."""
    most = int(12 * math.sqrt(variance))
    there = both_sides(variance, most)
    p, q = there[: there.size - shift], there[shift:]
    losses, grid = np.log(p / q), 2e-4
    at = np.round(losses / grid).astype(int)
    low = int(at.min())
    one = np.zeros(int(at.max()) - low + 1)
    np.add.at(one, at - low, p)
    size = 1 << (often * one.size).bit_length()
    together = np.fft.irfft(np.fft.rfft(one, size) ** often, size)
    summed = (np.arange(size) + often * low) * grid

    def delta(epsilon: float) -> float:
        above = summed > epsilon
        return float(np.sum(np.maximum(0, together[above]) * -np.expm1(epsilon - summed[above])))

    ours = skellam_epsilon(shift * math.sqrt(often / variance), variance=variance, delta=1e-5)
    assert delta(ours) <= 1e-5
    # Renyi privacy is known to be a little loose.
    assert delta(0.85 * ours) > 1e-5


@pytest.mark.parametrize(("multiplier", "often"), [(1.0, 1), (4.0, 16), (5.0, 100), (20.0, 1000)])
def test_it_is_above_the_exact_gaussian_and_within_a_tenth_of_it(multiplier: float, often: int) -> None:
    ratio = gaussian_ratio(multiplier=multiplier, participations=often)
    exact = epsilon_of(ratio, delta=1e-5)
    assert exact < skellam_epsilon(ratio, variance=1e8, delta=1e-5) < 1.1 * exact


@pytest.mark.parametrize(("multiplier", "often"), [(1.0, 1), (4.0, 16), (5.0, 100), (20.0, 1000)])
def test_epsilon_is_that_of_dp_accounting_by_renyi_orders(multiplier: float, often: int) -> None:
    theirs = rdp.RdpAccountant(orders=list(range(2, 128)))
    theirs.compose(dp_accounting.GaussianDpEvent(multiplier), often)
    ours = skellam_epsilon(gaussian_ratio(multiplier=multiplier, participations=often), variance=1e12, delta=1e-5)
    assert ours == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 8.0, 60.0])
@pytest.mark.parametrize("devices", [3, 30])
def test_shares_keep_the_promise_and_no_smaller_ones_do(epsilon: float, devices: int) -> None:
    shares = shares_for(epsilon, delta=1e-5, participations=8, devices=devices)

    def spent(variance: float) -> float:
        total = variance * devices
        return skellam_epsilon(shares.length * math.sqrt(8 / total), variance=total, delta=1e-5)

    assert spent(shares.variance) <= epsilon
    assert spent(0.999 * shares.variance) > epsilon
    assert shares.length.bit_count() == 1


def test_more_devices_add_less_each() -> None:
    few, many = (shares_for(8.0, delta=1e-5, participations=8, devices=count) for count in (10, 40))
    # As shares of the length, which is another: half the deviation.
    assert math.sqrt(few.variance) / few.length == pytest.approx(2 * math.sqrt(many.variance) / many.length, rel=1e-3)


def test_what_makes_no_sense_is_refused() -> None:
    for call in (
        lambda: shares_for(8.0, delta=1e-5, participations=0, devices=3),
        lambda: shares_for(8.0, delta=1e-5, participations=1, devices=0),
        lambda: shares_for(0.001, delta=1e-5, participations=100, devices=1),
        lambda: skellam_epsilon(0.0, variance=1.0, delta=1e-5),
        lambda: skellam_epsilon(1.0, variance=0.0, delta=1e-5),
    ):
        with pytest.raises(Misuse):
            call()
