"""Freivalds' check and votes: what is honest holds, what is wrong is named."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.offload.field import PRIME
from shoal.offload.tiling import product
from shoal.offload.verify import BITS, Freivalds, FreivaldsExact, majority, rounding_bound


def sides(rows: int, inner: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(seed)
    return (
        chance.standard_normal((rows, inner), dtype=np.float32),
        chance.standard_normal((inner, columns), dtype=np.float32),
    )


def check(right: np.ndarray, **settings: Any) -> Freivalds:
    return Freivalds(right, chance=np.random.default_rng(7), **settings)


@pytest.mark.parametrize(("trials", "values"), [(40, 2), (20, 4), (10, 16), (8, 32), (5, 256), (4, 1024), (7, 53)])
def test_trials_and_values_make_forty_bits(trials: int, values: int) -> None:
    found = check(sides(1, 3, 2)[1], trials=trials)
    assert found.values == values
    assert trials * math.log2(found.values) >= BITS


def test_an_honest_product_holds_at_first_look() -> None:
    left, right = sides(200, 300, 100)
    judged = check(right).judge(left, product(left, right))
    assert judged.holds
    assert judged.rows_proved == 0


@pytest.mark.parametrize("trials", [8, 40])
def test_one_wrong_entry_anywhere_is_caught(trials: int) -> None:
    left, right = sides(50, 300, 80)
    honest = product(left, right)
    found = check(right, trials=trials)
    beyond = found.catches(left)
    for row in range(0, 50, 7):
        for column in range(0, 80, 9):
            wrong = honest.copy()
            wrong[row, column] += 1.01 * beyond[row, column]
            judged = found.judge(left, wrong)
            assert not judged.holds
            assert f"row {row}, column {column}" in judged.reason


def test_what_is_caught_is_a_small_part_of_the_product() -> None:
    # At 1000 x 1000 x 1000: an hundredth of a usual entry with 8 trials, and with 40 twice the rounding bound itself.
    left, right = sides(100, 1000, 1000)
    usual = float(np.std(product(left, right)))
    assert float(np.median(check(right, trials=8).catches(left))) < 0.02 * usual
    finest = check(right, trials=40).catches(left)
    assert float(np.median(finest)) < 0.003 * usual
    np.testing.assert_array_equal(finest, 2 * rounding_bound(left, right))


def test_a_pattern_that_cancels_in_half_of_the_trials_is_caught_by_all_of_them() -> None:
    # +e and -e side by side: a trial with the same r at both places sees nothing.
    left, right = sides(4, 50, 2)
    honest = product(left, right)
    missed = {1: 0, 40: 0}
    for seed in range(200):
        for trials in missed:
            found = Freivalds(right, trials=trials, chance=np.random.default_rng(seed))
            found.values = 2
            draws = np.random.default_rng(seed).integers(0, 2, size=(2, trials)) * 2 - 1
            found._probes = draws.astype(np.float32)
            found._known = (right.astype(np.float64) @ draws).astype(np.float32)
            wrong = honest + np.array([1000.0, -1000.0], dtype=np.float32)
            missed[trials] += found.holds(left, wrong)
    assert 70 < missed[1] < 130  # half of 200
    assert missed[40] == 0


def test_results_of_another_shape_or_kind_do_not_hold() -> None:
    left, right = sides(5, 6, 7)
    found = check(right)
    assert "shape" in found.judge(left, np.zeros((5, 6), np.float32)).reason
    assert "float64" in found.judge(left, left.astype(np.float64) @ right).reason
    for poison in (np.nan, np.inf, -np.inf, 3e38):
        wrong = product(left, right)
        wrong[2, 3] = poison
        assert not found.holds(left, wrong)


def test_a_product_that_overflows_honestly_holds() -> None:
    left, right = sides(5, 6, 7)
    with np.errstate(all="ignore"):
        large = product(left * np.float32(1e30), right * np.float32(1e30))
    assert not np.isfinite(large).all()
    assert check(right * np.float32(1e30)).holds(left * np.float32(1e30), large)


def test_sums_that_run_far_and_come_back_are_honest_too() -> None:
    # 2000 ones, then 2000 minus ones, nearly: what is left is small, its rounding is not.
    chance = np.random.default_rng(3)
    left = (1 + 0.01 * chance.standard_normal((100, 4000))).astype(np.float32)
    signs = np.concatenate([np.ones(2000), -np.ones(2000)])[:, None]
    right = (signs * (1 + 0.01 * chance.standard_normal((4000, 50)))).astype(np.float32)
    assert check(right).holds(left, product(left, right))


def test_rows_that_cancel_usually_hold_at_first_look() -> None:
    # Values far from 0 by weights around it: sums are larger on the way than at the end.
    left, right = sides(400, 700, 100)
    left += np.float32(5)
    right -= right.mean(axis=0)
    assert check(right).judge(left, product(left, right)).rows_proved < 10


def test_noise_within_the_bound_is_looked_at_twice_and_let_pass() -> None:
    left, right = sides(20, 100, 60)
    honest = product(left, right)
    signs = np.sign(np.random.default_rng(2).standard_normal(honest.shape))
    judged = check(right, trials=40).judge(
        left, (honest + 0.8 * signs * rounding_bound(left, right)).astype(np.float32)
    )
    assert judged.holds
    assert judged.rows_proved > 10


def test_a_left_side_that_is_no_number_makes_no_liar_of_anybody() -> None:
    left, right = sides(6, 5, 4)
    left[2] = np.nan
    left[3, 1] = np.inf
    with np.errstate(all="ignore"):
        result = product(left, right)
    found = check(right)
    assert found.holds(left, result)
    result[4, 1] += 1
    assert not found.holds(left, result)


def test_weights_may_change_in_place_while_results_of_the_old_ones_come() -> None:
    left, right = sides(20, 100, 60)
    noisy = product(left, right) + 0.8 * rounding_bound(left, right)
    found = check(right)
    right *= 2
    assert found.holds(left, noisy.astype(np.float32))


def test_an_empty_left_side_holds() -> None:
    _, right = sides(1, 3, 4)
    assert check(right).holds(np.zeros((0, 3), np.float32), np.zeros((0, 4), np.float32))


def test_what_cannot_be_checked_is_refused() -> None:
    with pytest.raises(Misuse, match="trials"):
        check(np.ones((2, 2), np.float32), trials=41)
    with pytest.raises(Misuse, match="meet"):
        check(np.ones((2, 2), np.float32)).holds(np.ones((2, 3), np.float32), np.ones((2, 2), np.float32))
    with pytest.raises(Misuse, match="whole numbers"):
        FreivaldsExact(np.ones((2, 2)), chance=np.random.default_rng(0))


# Whole numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [1, -1, 2**16, 2**30, PRIME, -PRIME, 2**32])
def test_any_wrong_whole_number_is_found_in_its_row(error: int) -> None:
    chance = np.random.default_rng(0)
    left = chance.integers(-1000, 1000, (30, 40))
    right = chance.integers(-512, 512, (40, 20))
    found = FreivaldsExact(right, chance=chance)
    result = left @ right
    assert found.holds(left, result)
    result[11, 5] += error
    assert found.wrong_rows(left, result).tolist() == [11]
    assert not found.holds(left, result)


def test_modulo_a_power_of_two_an_error_would_pass_every_other_time() -> None:
    # Why the check is modulo a prime: 2^31·r is 0 modulo 2^32 for every even r.
    passes = [((2**31) * r) % 2**32 == 0 for r in range(1000)]
    assert sum(passes) == 500
    assert not any((2**31 * r) % PRIME == 0 for r in range(1, 1000))


# Votes -----------------------------------------------------------------------------------------------------------


def test_most_votes_win_bit_for_bit() -> None:
    a, b = np.zeros(2, np.float32), np.array([0.0, -0.0], np.float32)
    vote = majority([a, b, a.copy()])
    assert vote.value is not None
    assert vote.value.tobytes() == a.tobytes()
    assert (vote.agree, vote.differ) == ((0, 2), (1,))


def test_half_is_not_most() -> None:
    a, b = np.zeros(2, np.float32), np.ones(2, np.float32)
    assert majority([a, b]).value is None
    assert majority([a, b]).differ == (0, 1)
    assert majority([]).value is None
    assert majority([a, a.astype(np.float64), a.reshape(1, 2)]).value is None
