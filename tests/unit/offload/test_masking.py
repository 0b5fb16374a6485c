"""Masks: exact, uniform, and what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest
from mask_error import error_bound

from shoal.errors import Misuse
from shoal.offload.masking import (
    combined,
    liars,
    mask,
    masked,
    quantise_fixed,
    quantise_right,
    restored,
    share_product,
    unmask,
)
from shoal.offload.verify import FreivaldsExact

SEED = bytes(range(16))


def sides(rows: int = 40, inner: int = 784, columns: int = 30) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(0)
    return (
        chance.standard_normal((rows, inner), dtype=np.float32),
        chance.standard_normal((inner, columns), dtype=np.float32),
    )


def test_a_mask_is_the_same_everywhere() -> None:
    # ChaCha20 under the SHA-256 of a label and the seed: it must not change, or two versions cannot work together.
    assert mask(SEED, (1, 3)).tolist() == [[802420307, 4083538781, 2526922524]]
    assert mask(SEED, (2, 3)).tolist()[0] == mask(SEED, (1, 3)).tolist()[0]


def test_digits_are_the_number() -> None:
    right = np.array([[1.0, -0.5, 0.25, 0.0]], dtype=np.float32)
    for limbs, largest in ((1, 511), (2, 511 * 1024), (3, 511 * 1024**2)):
        fixed = quantise_right(right, limbs=limbs)
        whole = np.zeros(4, dtype=np.int64)
        for limb in range(limbs):
            whole = whole * 1024 + fixed.digits[0, 4 * limb : 4 * limb + 4]
        assert whole.tolist() == [2**fixed.exponent * value for value in (1.0, -0.5, 0.25, 0.0)]
        assert 2**fixed.exponent <= largest < 2 ** (fixed.exponent + 1)
        assert fixed.columns == 4


@pytest.mark.parametrize(("limbs", "relative"), [(1, 5e-3), (2, 1e-4), (3, 1e-4)])
def test_accuracy_is_as_said(limbs: int, relative: float) -> None:
    # One limb: 9 bits of W are what counts. Two: 14 or so of X, since the product of 784 terms fits in 30.
    left, right = sides()
    fixed_right = quantise_right(right, limbs=limbs)
    fixed_left = quantise_fixed(left, fixed_right)
    share = masked(fixed_left.values, SEED)
    found = unmask(
        share_product(mask(SEED, share.shape), fixed_right.digits),
        share_product(share, fixed_right.digits),
        fixed_left,
        fixed_right,
    )
    assert found.dtype == np.float32
    truth = left.astype(float) @ right.astype(float)
    error = np.abs(found - truth)
    assert (error <= error_bound(left, right, fixed_left, fixed_right)).all()
    assert np.sqrt(np.mean(error**2)) < relative * np.sqrt(np.mean(truth**2))


def test_small_rows_keep_their_digits() -> None:
    # As gradients are: rows of very different length.
    left, right = sides(3)
    left *= np.array([[1.0], [1e-6], [1e6]], dtype=np.float32)
    fixed_right = quantise_right(right)
    fixed_left = quantise_fixed(left, fixed_right)
    found = restored(fixed_left.values.astype(np.int64) @ fixed_right.digits.astype(np.int64), fixed_left, fixed_right)
    truth = left.astype(float) @ right.astype(float)
    worst = np.abs(found - truth).max(axis=1) / np.abs(truth).max(axis=1)
    assert (worst < 1e-3).all()


def test_a_share_says_nothing_about_what_it_hides() -> None:
    # Under a mask, black and white are the same: each is uniform. Under one seed twice, they are not hidden.
    black, white = np.zeros((200, 300), np.int32), np.full((200, 300), 4095, np.int32)
    for hidden in (black, white):
        share = masked(hidden, SEED)
        counts = np.bincount(share.view(np.uint8).reshape(-1), minlength=256)
        expected = share.nbytes / 256
        # Chi-square of 255 degrees: 255 ± 5 deviations of 22.6.
        assert 142 < float(((counts - expected) ** 2 / expected).sum()) < 368
        assert abs(np.corrcoef(share.reshape(-1), mask(bytes(16), share.shape).reshape(-1))[0, 1]) < 0.02
    reused = masked(white, SEED) - masked(black, SEED)
    assert (reused == 4095).all()


def test_sums_longer_than_float64_holds_are_cut() -> None:
    # 20,000 products of 2^31 and 2^9 would be 2^54.3: beyond exact.
    chance = np.random.default_rng(1)
    share = np.full((2, 20_000), 2**31, dtype=np.uint32) + chance.integers(0, 3, (2, 20_000)).astype(np.uint32)
    digits = np.where(chance.random((20_000, 3)) < 0.9, -512, 511).astype(np.int16)
    truth = (share.astype(object) @ digits.astype(object)) % 2**32
    assert share_product(share, digits).tolist() == truth.tolist()


def test_a_wrong_share_is_found_and_its_maker_named() -> None:
    left, right = sides(30, 50, 10)
    fixed_right = quantise_right(right)
    fixed_left = quantise_fixed(left, fixed_right)
    share = masked(fixed_left.values, SEED)
    a = share_product(mask(SEED, share.shape), fixed_right.digits)
    b = share_product(share, fixed_right.digits)
    check = FreivaldsExact(fixed_right.digits, chance=np.random.default_rng(5))
    assert check.holds(fixed_left.values, combined(a, b))
    for error in (1, 2**31, 2**31 - 1):
        for who in (0, 1):
            wrong = [a.copy(), b.copy()]
            wrong[who][17:18, 3] += np.uint32(error)
            rows = check.wrong_rows(fixed_left.values, combined(*wrong))
            assert rows.tolist() == [17]
            named = liars(rows, seed=SEED, share=share, right=fixed_right, a=wrong[0], b=wrong[1])
            assert named == (who == 0, who == 1)


def test_what_does_not_fit_is_refused_with_a_reason() -> None:
    left, right = sides(3, 20, 4)
    fixed = quantise_right(right)
    with pytest.raises(Misuse, match="lower exponent"):
        quantise_fixed(left, fixed, exponent=40)
    assert quantise_fixed(left, fixed, exponent=8).exponents.tolist() == [8, 8, 8]
    for bad in (np.nan, np.inf):
        with pytest.raises(Misuse, match="finite"):
            quantise_fixed(np.full((1, 20), bad, np.float32), fixed)
        with pytest.raises(Misuse, match="finite"):
            quantise_right(np.full((1, 20), bad, np.float32))
    with pytest.raises(Misuse, match="meet"):
        quantise_fixed(left[:, :5], fixed)
    with pytest.raises(Misuse, match="limbs"):
        quantise_right(right, limbs=4)
    with pytest.raises(Misuse, match="quantise_fixed first"):
        masked(left, SEED)
    with pytest.raises(Misuse, match="16 bytes"):
        mask(b"short", (1, 1))
    with pytest.raises(Misuse, match="10 bits"):
        share_product(np.zeros((1, 1), np.uint32), np.full((1, 1), 512, np.int16))
