"""Noise as whole numbers: its chances are exact, an update keeps its length, and no sum wraps."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Misuse
from shoal.sealing.noise import ChanceTable, NoisePoint, drawn, largest, picked, table_of

KEY = bytes(range(32))


def key_of(number: int) -> bytes:
    return hashlib.sha256(number.to_bytes(4, "big")).digest()


@pytest.mark.parametrize("variance", [1, 7, 400])
def test_the_table_has_the_chances_of_poisson_numbers_taken_from_each_other(variance: int) -> None:
    half, first = variance / 2, table_of(variance).first
    terms = int(half + 40 * math.sqrt(half) + 60)
    poisson = np.array([math.exp(-half + k * math.log(half) - math.lgamma(k + 1)) for k in range(terms)])
    summed = 0.0
    for number in range(8):
        there = float(np.dot(poisson[number:], poisson[: terms - number]))
        summed += there if number == 0 else 2 * there
        assert int(first[number]) / 2**63 == pytest.approx(summed, rel=1e-12)


@pytest.mark.parametrize("variance", [3, 5000, 20_000_000])
def test_the_table_ends_with_certainty_where_next_to_nothing_is_left(variance: int) -> None:
    first, last = table_of(variance).first, table_of(variance).last
    assert int(first[-1]) == 2**63
    assert np.all(np.diff(first.astype(object)) >= 0)
    # Before the last number, less than 2^-99 is missing.
    before = (int(first[-2]) << 64) + int(last[-2])
    assert 0 < (1 << 127) - before < 1 << (127 - 99)


def test_bits_that_are_the_beginning_of_an_entry_are_looked_at_further() -> None:
    # Numbers 0 and 1 have chances of 5/8 less 2^-66, and 5/8 and 2^-65; 2 has the rest.
    five = 5 << 60
    first = np.array([five - 1, five, 1 << 63], dtype=np.uint64)
    last = np.array([0, 1 << 62, 0], dtype=np.uint64)

    def of(bits: int, more: int) -> int:
        return int(picked(np.array([bits], dtype=np.uint64), ChanceTable(first, last), more=lambda: more)[0])

    assert of(2 * (five - 2), 0) == 0
    assert of(2 * five, (1 << 62) - 1) == 1
    assert of(2 * five, 1 << 62) == 2
    assert of(2 * five + 1, 1 << 62) == -2
    assert of(2 * (five + 1), 0) == 2
    assert of(2 * (five - 1), 0) == 1


@pytest.mark.parametrize("variance", [1, 90, 40_000_000])
def test_a_place_is_found_as_by_looking_everywhere(variance: int) -> None:
    table = table_of(variance)
    wanted = np.random.default_rng(1).integers(0, 1 << 63, 50_000, dtype=np.uint64)
    # Chances of the rarest too, and the entries themselves.
    wanted = np.concatenate([wanted, (1 << 63) - 1 - (wanted[:2000] >> np.uint64(30)), table.first[:-1]])
    wanted = wanted[wanted < 1 << 63]
    assert np.array_equal(table.find(wanted), np.searchsorted(table.first, wanted, side="right"))


def test_draws_have_mean_variance_and_tails() -> None:
    variance, size = 1_000_000, 400_000
    numbers = drawn(variance, size, KEY)
    assert abs(float(numbers.mean())) < 5 * math.sqrt(variance / size)
    # The variance of a sample variance is 2/n of its square.
    assert float(numbers.var()) == pytest.approx(variance, rel=5 * math.sqrt(2 / size))
    for deviations, chance in ((1.0, 0.3173), (2.0, 0.0455), (3.0, 0.0027)):
        share = float(np.mean(np.abs(numbers) > deviations * math.sqrt(variance)))
        assert share == pytest.approx(chance, abs=5 * math.sqrt(chance / size))
    assert np.array_equal(numbers, drawn(variance, size, KEY))
    assert not np.array_equal(numbers, drawn(variance, size, key_of(1)))


@given(
    values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=60),
    clip=st.floats(1e-3, 1e3),
    length=st.sampled_from([3, 16, 4096, 1 << 20]),
    number=st.integers(0, 1000),
)
def test_an_update_in_steps_is_never_longer_than_it_may_be(
    values: list[float], clip: float, length: int, number: int
) -> None:
    point, chance = NoisePoint(clip, length, 400, 5), key_of(number)
    update = np.array(values, dtype=np.float32)
    words = point.encode(update, factor=1.0, chance=chance)
    steps = words.view("<i4").astype(np.int64) - point.noise(update.size, chance=chance)
    assert int(np.dot(steps, steps)) <= length**2
    norm = float(np.linalg.norm(update.astype(np.float64)))
    if norm and length == 1 << 20:
        # Nothing but rounding is lost of it.
        expected = update.astype(np.float64) * (length / max(clip, norm))
        assert np.allclose(steps, expected, atol=1.0 + 3e-3 * length)


def test_many_small_values_are_kept_in_the_mean_though_each_is_rounded() -> None:
    # Each is a third of a step: what is rounded up makes the vector longer than it may be, and it is shortened.
    point, size = NoisePoint(1.0, 512, 400, 5), 9 * 512 * 512
    update = np.full(size, 1.0 / math.sqrt(size), dtype=np.float32)
    steps = point.encode(update, factor=1.0, chance=KEY).view("<i4") - point.noise(size, chance=KEY)
    assert float(np.dot(steps, steps)) <= 512**2
    # As long as it may be, or nearly: f of them are 1, whose squares add up to f.
    assert 0.98 * 512**2 < steps.sum() <= 512**2


def test_a_sum_is_that_of_the_updates_and_their_noise() -> None:
    point = NoisePoint(0.5, 1 << 14, 1_000_000, 20)
    rng = np.random.default_rng(3)
    updates = [rng.normal(0, 0.02, 50).astype(np.float32) for _ in range(20)]
    total = np.zeros(50, dtype="<u4")
    for number, update in enumerate(updates):
        total += point.encode(update, factor=1.0, chance=key_of(number))
    noise = sum(point.noise(50, chance=key_of(number)) for number in range(20)) / point.steps
    got = point.decode(total, times=1 / 20)
    assert np.allclose(got, (sum(updates) + noise) / 20, atol=1.5 / point.steps)


def test_no_sum_wraps_whatever_devices_draw() -> None:
    variance = 1 << 30
    most = (1 << 31) // ((1 << 12) + largest(variance))
    NoisePoint(1.0, 1 << 12, variance, most - 1)
    with pytest.raises(Misuse, match="wraps"):
        NoisePoint(1.0, 1 << 12, variance, most + 1)
    with pytest.raises(Misuse, match="same weight"):
        NoisePoint(1.0, 4096, 400, 5).encode(np.zeros(3, np.float32), factor=0.5, chance=KEY)
    with pytest.raises(Misuse, match="variance 0"):
        NoisePoint(1.0, 4096, 0, 5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 49])
def test_a_value_that_is_not_finite_is_refused(value: float, at: int) -> None:
    update = np.zeros(50, dtype=np.float32)
    update[at] = value
    with pytest.raises(Misuse, match="not finite"):
        NoisePoint(1.0, 4096, 400, 5).encode(update, factor=1.0, chance=KEY)


def test_the_largest_finite_values_are_cut_to_the_length() -> None:
    point = NoisePoint(1.0, 4096, 400, 5)
    update = np.full(50, np.finfo(np.float32).max, dtype=np.float32)
    steps = point.encode(update, factor=1.0, chance=KEY).view("<i4").astype(np.int64) - point.noise(50, chance=KEY)
    assert 0.98 * 4096**2 < float(np.dot(steps, steps)) <= 4096**2
