"""What of an update is sent: the largest, coarsely, and nothing is lost on the way between sent and kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.compress.codec import GRAMMAR, Codec
from shoal.compress.feedback import Feedback
from shoal.compress.quantise import (
    BITS_MAX,
    BITS_MIN,
    from_bfloat16,
    levels_of,
    quantise,
    restored,
    scales_of,
    to_bfloat16,
    to_float16,
)
from shoal.compress.sparse import WHOLE_PPM, Sparse, count_of, largest
from shoal.errors import Misuse

#: Ties and zeros are what goes wrong: few different values, and any at all.
numbers = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.5]) | st.floats(-1e6, 1e6, width=32)
tensors = st.lists(st.lists(numbers, max_size=12), min_size=1, max_size=4)
shares_ppm = st.sampled_from([1, 1_000, 10_000, 100_000, 333_333, 999_999, WHOLE_PPM])
bits = st.integers(BITS_MIN, BITS_MAX)


def joined(parts: list[list[float]]) -> tuple[np.ndarray, list[int]]:
    return np.array([value for part in parts for value in part], dtype=np.float32), [len(part) for part in parts]


def by_sorting(part: np.ndarray, count: int) -> list[int]:
    """The plain way: sort by magnitude, of equals the first; leave zeros out."""
    order = sorted(range(part.size), key=lambda place: (-abs(float(part[place])), place))
    return sorted(place for place in order[:count] if part[place] != 0)


# The largest ------------------------------------------------------------------------------------------------


@given(tensors, shares_ppm)
def test_the_largest_of_each_tensor_are_chosen_and_of_equals_the_first(parts: list[list[float]], ppm: int) -> None:
    update, sizes = joined(parts)
    chosen = largest(update, sizes, share_ppm=ppm)
    expected, start = [], 0
    for size in sizes:
        part = update[start : start + size]
        expected += [start + place for place in by_sorting(part, count_of(size, share_ppm=ppm))]
        start += size
    assert chosen.places.tolist() == expected
    assert np.array_equal(chosen.values, update[expected])
    assert np.array_equal(chosen.dense() != 0, np.isin(np.arange(update.size), expected))


@pytest.mark.parametrize("ppm", [10, 1_000, 10_000, 500_000, WHOLE_PPM])
@pytest.mark.parametrize("kind", ["normal", "heavy", "zeros", "equal", "striped", "seen", "few", "sorted"])
def test_large_tensors_are_sampled_and_still_exact(kind: str, ppm: int) -> None:
    size = 100_003
    draw = np.random.default_rng(0)
    normal = draw.normal(size=size).astype(np.float32)
    update = {
        "normal": normal,
        "heavy": draw.standard_cauchy(size).astype(np.float32),
        "zeros": np.zeros(size, np.float32),
        "equal": np.full(size, -0.5, np.float32),
        # What a sample at equal distances sees is nothing like the rest: far smaller, far larger.
        "striped": np.where(np.arange(size) % (size // (1 << 14)) == 0, 1e-6 * normal, normal).astype(np.float32),
        "seen": np.where(np.arange(size) % (size // (1 << 14)) == 0, 1e6 * normal, normal).astype(np.float32),
        "few": np.where(np.arange(size) % 997 == 3, normal, 0).astype(np.float32),
        "sorted": np.sort(normal),
    }[kind]
    count = count_of(size, share_ppm=ppm)
    # Stable, so that of equals the first come first.
    order = np.argsort(-np.abs(update), kind="stable")[:count]
    expected = np.sort(order[update[order] != 0])
    assert np.array_equal(largest(update, [size], share_ppm=ppm).places, expected)


@given(st.integers(0, 10**7), shares_ppm)
def test_a_share_is_rounded_down_but_never_to_nothing(size: int, ppm: int) -> None:
    count = count_of(size, share_ppm=ppm)
    assert count == 0 if size == 0 else 1 <= count <= max(1, size * ppm / WHOLE_PPM)
    assert count >= size * ppm // WHOLE_PPM


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_among_the_largest(bad: float) -> None:
    """So that looking at those that were chosen is enough to find it."""
    update = np.full(50_000, 1e38, np.float32)
    update[[31_234, 40_000]] = bad
    assert not np.isfinite(largest(update, [50_000], share_ppm=1).values).all()


@given(tensors, st.data())
def test_parts_of_a_sparse_update_are_its_parts(parts: list[list[float]], drawn: st.DataObject) -> None:
    update, sizes = joined(parts)
    sparse = largest(update, sizes, share_ppm=500_000)
    start = drawn.draw(st.integers(0, update.size))
    stop = drawn.draw(st.integers(start, update.size))
    assert np.array_equal(sparse.part(start, stop).dense(), sparse.dense()[start:stop])


def test_an_update_that_does_not_fit_is_misuse() -> None:
    ones = np.ones(4, np.float32)
    for update, sizes, ppm in ((ones, [3], 1), (ones.astype(np.float64), [4], 1), (ones, [4], 0), (ones, [4], 10**7)):
        with pytest.raises(Misuse):
            largest(update, sizes, share_ppm=ppm)
    with pytest.raises(Misuse):
        Sparse(4, np.arange(4), ones).part(3, 5)


# Few bits ---------------------------------------------------------------------------------------------------


def quantised(parts: list[list[float]], bits: int, chance: np.random.Generator | None) -> tuple[np.ndarray, ...]:
    values, sizes = joined(parts)
    scales = np.repeat(scales_of(values, np.array(sizes), bits=bits), sizes)
    levels = quantise(values, scales, bits=bits, chance=chance)
    return values, scales, levels, restored(levels, scales)


@given(tensors, bits, st.integers(0, 9) | st.none())
def test_levels_are_within_their_bits_and_values_within_their_error(
    parts: list[list[float]], bits: int, seed: int | None
) -> None:
    chance = None if seed is None else np.random.default_rng(seed)
    values, scales, levels, back = quantised(parts, bits, chance)
    assert np.abs(levels).max(initial=0) <= levels_of(bits)
    assert (levels[scales == 0] == 0).all()
    error = np.abs(values.astype(np.float64) - back)[scales > 0]
    # A level times its scale is itself rounded to 24 bits.
    within = scales[scales > 0] * (0.5 if chance is None else 1.0) + np.abs(back[scales > 0]) * 2.0**-24
    assert (error <= within).all()


@given(tensors, bits)
def test_the_largest_value_of_a_tensor_comes_back_as_it_was(parts: list[list[float]], bits: int) -> None:
    _, _, _, back = quantised(parts, bits, None)
    start = 0
    for part in parts:
        most = max((abs(np.float32(value)) for value in part), default=0.0)
        if most > 1e-35:
            assert np.abs(back[start : start + len(part)]).max() == most
        start += len(part)


def test_drawn_levels_are_right_on_average() -> None:
    values = np.array([0.1, -0.3, 0.77, 1.0], np.float32)
    scales = np.full(4, 0.5, np.float32)
    chance = np.random.default_rng(0)
    drawn = [restored(quantise(values, scales, bits=2, chance=chance), scales) for _ in range(20_000)]
    # Twenty thousand draws of at most half a unit: the mean is within 0.5 / sqrt(20000) = 0.0035, five times over.
    assert np.abs(np.mean(drawn, axis=0) - values).max() < 0.018


def test_levels_by_hand() -> None:
    """4 bits: 8 levels a side, so 0.8 makes steps of 0.1; 0.05 is half a step and goes to the even one: zero."""
    values = np.array([0.8, -0.34, 0.05, 0.16], np.float32)
    scales = scales_of(values, np.array([0, 4, 0]), bits=4)
    assert scales.tolist() == pytest.approx([0, 0.1, 0])
    assert quantise(values, np.repeat(scales, [0, 4, 0]), bits=4).tolist() == [8, -3, 0, 2]
    with pytest.raises(Misuse, match="2 to 8 bits"):
        levels_of(9)


@given(st.lists(st.integers(-5000, 5000), min_size=1, max_size=20), bits)
def test_what_is_too_small_for_a_scale_is_not_sent(least: list[int], bits: int) -> None:
    """Multiples of the smallest float32 there is: a scale made of them would be rounded itself."""
    _, scales, levels, _ = quantised([[2.0**-149 * number for number in least]], bits, None)
    assert not scales.any()
    assert not levels.any()


anything = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(anything, max_size=40))
def test_bfloat16_is_the_nearest(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    coded = to_bfloat16(array)
    back = from_bfloat16(coded).astype(np.float64)
    assert coded.dtype == np.uint16
    assert np.isfinite(back).all()
    for step in (-1, 1):
        # No neighbour is nearer, and one as near is odd. At either end there is no neighbour on that side.
        beside = (coded.astype(np.int64) + step).clip(0, 0xFFFF).astype(np.uint16)
        other = from_bfloat16(beside).astype(np.float64)
        real = np.isfinite(other) & ((beside ^ coded) < 0x8000)
        mine, theirs = np.abs(back - array), np.abs(other - array)
        assert (mine <= theirs)[real].all()
        assert (coded % 2 == 0)[real & (mine == theirs) & (other != back)].all()
    assert np.array_equal(to_bfloat16(from_bfloat16(coded)), coded)


@given(st.lists(st.integers(0, 0x7F7E), max_size=40))
def test_halfway_between_two_bfloat16_is_the_even_one(bits: list[int]) -> None:
    halfway = (np.array(bits, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    even = [place + place % 2 for place in bits]
    assert to_bfloat16(halfway).tolist() == even
    assert to_bfloat16(-halfway).tolist() == [place | 0x8000 for place in even]


@given(st.lists(anything, max_size=40))
def test_float16_is_the_nearest_or_the_largest(values: list[float]) -> None:
    array = np.array(values, dtype=np.float32)
    back = to_float16(array)
    assert np.isfinite(back).all()
    small = np.abs(array) <= 65504
    assert np.array_equal(back[small], array[small].astype(np.float16))
    assert (np.abs(back[~small]) == 65504).all()


# Feedback ---------------------------------------------------------------------------------------------------

SIZES = [20, 1, 9]


def vector(seed: int) -> np.ndarray:
    """Zeros, equals, and values of very different magnitudes."""
    draw = np.random.default_rng(seed)
    wide = draw.normal(size=30) * 10.0 ** draw.integers(-12, 6, 30)
    return np.where(draw.random(30) < 0.3, draw.choice([0.0, -0.0, 1.0, -1.0], 30), wide).astype(np.float32)


vectors = st.integers(0, 2**32 - 1).map(vector)


@settings(max_examples=200)
@given(st.lists(vectors, min_size=1, max_size=5), shares_ppm, bits | st.none(), st.sampled_from([1.0, 0.9, 0.0]))
def test_sent_and_kept_make_the_update_and_what_was_kept_before(
    updates: list[np.ndarray], ppm: int, bits: int | None, decay: float
) -> None:
    feedback = Feedback(30, decay=decay)
    for update in updates:
        before = feedback.snapshot()
        total = feedback.add(update).copy()
        assert np.array_equal(total, before * np.float32(decay) + update)
        sent = largest(total, SIZES, share_ppm=ppm)
        if bits is not None:
            counts = np.diff(np.searchsorted(sent.places, np.cumsum(SIZES)), prepend=0)
            scales = np.repeat(scales_of(sent.values, counts, bits=bits), counts)
            sent = Sparse(30, sent.places, restored(quantise(sent.values, scales, bits=bits), scales))
        feedback.sent(sent)
        # To the bit: in the numbers themselves, and so also in float32.
        assert np.array_equal(sent.dense().astype(np.float64) + feedback.kept, total.astype(np.float64))
        assert np.array_equal(sent.dense() + feedback.kept, total)
        if bits is None:
            assert not feedback.kept[sent.places].any()


@given(vectors, vectors)
def test_what_never_left_or_came_back_is_kept(first: np.ndarray, second: np.ndarray) -> None:
    feedback = Feedback(30)
    feedback.add(first)
    total = feedback.add(second).copy()
    assert np.array_equal(total, first + second)
    sent = largest(total, SIZES, share_ppm=100_000)
    feedback.sent(sent)
    feedback.returned(sent)
    assert np.array_equal(feedback.kept, total)
    feedback.sent(total)
    assert not feedback.kept.any()
    feedback.returned(total)
    assert np.array_equal(feedback.kept, total)


@given(vectors)
def test_a_snapshot_outlives_its_sender(update: np.ndarray) -> None:
    feedback = Feedback(30)
    feedback.add(update)
    snapshot = feedback.snapshot()
    feedback.reset()
    assert not feedback.kept.any()
    other = Feedback(30)
    other.restore(snapshot)
    assert np.array_equal(other.kept, update)
    feedback.add(update)
    assert np.array_equal(snapshot, update), "a snapshot is a copy"


def test_feedback_refuses_what_does_not_fit() -> None:
    feedback = Feedback(3)
    with pytest.raises(Misuse):
        feedback.add(np.ones(4, np.float32))
    with pytest.raises(Misuse):
        feedback.sent(Sparse(4, np.array([1]), np.ones(1, np.float32)))
    with pytest.raises(Misuse):
        feedback.restore(np.full(3, np.nan, np.float32))
    with pytest.raises(Misuse):
        Feedback(3, decay=1.5)
    with pytest.raises(ValueError, match="read-only"):
        feedback.kept[0] = 1


# Names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "form", "share_ppm", "bits", "feedback"),
    [
        ("dense", "dense", 0, 32, False),
        ("fp16", "fp16", 0, 32, False),
        ("bf16+ef", "bf16", 0, 32, True),
        ("top1%", "top", 10_000, 32, False),
        ("top1%+ef", "top", 10_000, 32, True),
        ("top1%+ef+4bit", "top", 10_000, 4, True),
        ("top0.1%+ef+8bit", "top", 1_000, 8, True),
        ("top0.0001%+2bit", "top", 1, 2, False),
        ("top100%", "top", WHOLE_PPM, 32, False),
    ],
)
def test_codecs_by_name(name: str, form: str, share_ppm: int, bits: int, feedback: bool) -> None:
    codec = Codec.parse(name)
    assert (codec.form, codec.share_ppm, codec.bits, codec.feedback) == (form, share_ppm, bits, feedback)
    assert str(codec) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "top", "top%", "top0%", "top101%", "top1", "top1%+", "+ef", "top1%+4bit+ef", "top1%+ef+ef", "top1%+9bit"),
        *("top1%+1bit", "top0.00001%", "top-1%", "top1e1%", "top١%", "dense+ef", "fp16+4bit", "Dense", "dense ", "zip"),
        *("top1%+ef\n", "top" + "9" * 5000 + "%"),
    ],
)
def test_other_names_are_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(Misuse) as refusal:
        Codec.parse(name)
    assert GRAMMAR in str(refusal.value)
    assert len(str(refusal.value)) < 400


@given(
    st.text(max_size=20) | st.lists(st.sampled_from(["top", "1", "%", "+", "ef", "4bit", "dense", "."])).map("".join)
)
def test_any_text_is_a_codec_or_refused(text: str) -> None:
    try:
        codec = Codec.parse(text)
    except Misuse:
        return
    assert codec == Codec.parse(str(codec))
