"""Borrowed compute: tiles cover, masks cancel, codes decode from any enough, checks refuse nothing honest."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mask_error import error_bound

from benchmarks.offload_layer_shuffle import dynamic_layer_shuffle
from benchmarks.offload_order import sum_in_order
from papers.dcl.lagrange import Coding, compute, decode, encode
from shoal.offload.masking import combined, mask, masked, quantise_fixed, quantise_right, restored, share_product
from shoal.offload.shares import MeasuredExecutor, ends_s, split
from shoal.offload.shuffle import shuffle_left, unshuffle
from shoal.offload.tiling import assemble, product, rows_each, tiles
from shoal.offload.verify import Freivalds, FreivaldsExact

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 40)


def matrix(chance: np.random.Generator, rows: int, columns: int, *, scale: float, kind: str) -> np.ndarray:
    """Of the kinds that occur: signed, positive, mostly zero, constant, of very different sizes."""
    values = chance.standard_normal((rows, columns))
    if kind == "positive":
        values = np.abs(values)
    elif kind == "sparse":
        values *= chance.random((rows, columns)) < 0.1
    elif kind == "constant":
        values = np.full((rows, columns), 0.1)
    elif kind == "wild":
        values *= np.exp(3 * chance.standard_normal((rows, columns)))
    return (values * scale).astype(np.float32)


kinds = st.sampled_from(["signed", "positive", "sparse", "constant", "wild"])
scales = st.integers(-60, 50).map(lambda exponent: 2.0**exponent)


# Tiles -----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 500), st.integers(1, 100))
def test_tiles_cover_every_row_once(rows: int, height: int) -> None:
    cut = tiles(rows, rows_each=height)
    assert [row for tile in cut for row in range(tile.start, tile.stop)] == list(range(rows))
    assert [tile.number for tile in cut] == list(range(len(cut)))
    assert all(tile.rows == height for tile in cut[:-1])
    assert all(1 <= tile.rows <= height for tile in cut)


@given(st.integers(1, 500), sizes, sizes, st.integers(1, 10**6))
def test_a_height_is_one_of_the_rows(rows: int, inner: int, columns: int, operations: int) -> None:
    assert 1 <= rows_each(rows, inner, columns, operations=operations) <= rows


@given(st.data(), seeds, sizes, sizes, sizes, st.integers(1, 12))
def test_tiles_in_any_order_make_the_product_bit_for_bit(
    data: st.DataObject, seed: int, rows: int, inner: int, columns: int, height: int
) -> None:
    chance = np.random.default_rng(seed)
    left = matrix(chance, rows, inner, scale=1, kind="signed")
    right = matrix(chance, inner, columns, scale=1, kind="signed")
    cut = tiles(rows, rows_each=height)
    parts = {tile.number: product(left[tile.start : tile.stop], right) for tile in data.draw(st.permutations(cut))}
    whole = assemble(parts, cut, columns)
    again = assemble({tile.number: product(left[tile.start : tile.stop], right) for tile in cut}, cut, columns)
    assert whole.tobytes() == again.tobytes()
    np.testing.assert_allclose(whole, left.astype(float) @ right.astype(float), rtol=1e-4, atol=1e-4)


# Masks -----------------------------------------------------------------------------------------------------------


@given(seeds, sizes, sizes, sizes, kinds, kinds, scales, scales, st.integers(1, 3))
def test_masks_cancel_exactly_and_the_error_is_within_its_bound(
    seed: int, rows: int, inner: int, columns: int, kind: str, other: str, scale: float, weight: float, limbs: int
) -> None:
    chance = np.random.default_rng(seed)
    left = matrix(chance, rows, inner, scale=scale, kind=kind)
    right = matrix(chance, inner, columns, scale=weight, kind=other)
    fixed_right = quantise_right(right, limbs=limbs)
    fixed_left = quantise_fixed(left, fixed_right)
    key = chance.bytes(16)
    share = masked(fixed_left.values, key)
    whole = combined(
        share_product(mask(key, share.shape), fixed_right.digits), share_product(share, fixed_right.digits)
    )
    exact = fixed_left.values.astype(np.int64) @ fixed_right.digits.astype(np.int64)
    assert whole.tolist() == exact.tolist()
    assert FreivaldsExact(fixed_right.digits, chance=chance).holds(fixed_left.values, whole)
    truth = left.astype(float) @ right.astype(float)
    error = np.abs(restored(whole, fixed_left, fixed_right) - truth)
    assert (error <= error_bound(left, right, fixed_left, fixed_right)).all()


@settings(max_examples=20)
@given(seeds, st.sampled_from([0, 1, -1, 2**31 - 1, -(2**31), 255]))
def test_bytes_of_a_share_are_uniform_whatever_is_hidden(seed: int, value: int) -> None:
    share = masked(np.full((64, 256), value, dtype=np.int32), np.random.default_rng(seed).bytes(16))
    counts = np.bincount(share.view(np.uint8).reshape(-1), minlength=256)
    expected = share.nbytes / 256
    # Chi-square of 255 degrees: 6.5 deviations of 22.6 either way.
    assert 108 < float(((counts - expected) ** 2 / expected).sum()) < 402


# Codes -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.data(), seeds, st.integers(1, 4), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2), st.integers(1, 2))
def test_any_enough_results_decode_and_liars_are_named(
    data: st.DataObject, seed: int, blocks: int, colluders: int, stragglers: int, lying: int, degree: int
) -> None:
    shares = (blocks + colluders - 1) * degree + stragglers + 2 * lying + 1
    coding = Coding(
        blocks=blocks, shares=shares, colluders=colluders, stragglers=stragglers, liars=lying, degree=degree
    )
    chance = np.random.default_rng(seed)
    left = chance.integers(-1000, 1000, (blocks, 3, 5))
    key = chance.bytes(16)
    coded = encode(left, coding, seed=key)
    if degree == 1:
        public = chance.integers(-1000, 1000, (5, 2))
        results = {share: compute(coded[share], public) for share in range(shares)}
        truth = left @ public
    else:
        right = chance.integers(-1000, 1000, (blocks, 5, 2))
        other = encode(right, coding, seed=key, side="right")
        results = {share: compute(coded[share], other[share]) for share in range(shares)}
        truth = left @ right
    order = data.draw(st.permutations(range(shares)))
    for late in order[:stragglers]:
        del results[late]
    liars = tuple(sorted(order[stragglers : stragglers + lying]))
    for liar in liars:
        results[liar] = results[liar].copy()
        results[liar][data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))] += data.draw(st.integers(1, 10**6))
    found = decode(results, coding, seed=chance.bytes(16))
    assert found.liars == liars
    assert found.signed.tolist() == truth.tolist()


# Checks ----------------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(seeds, sizes, st.integers(1, 600), sizes, kinds, kinds, scales, scales, st.sampled_from([4, 8, 40]))
def test_an_honest_product_is_never_refused(
    seed: int, rows: int, inner: int, columns: int, kind: str, other: str, scale: float, weight: float, trials: int
) -> None:
    chance = np.random.default_rng(seed)
    left = matrix(chance, rows, inner, scale=scale, kind=kind)
    right = matrix(chance, inner, columns, scale=weight, kind=other)
    check = Freivalds(right, trials=trials, chance=chance)
    with np.errstate(all="ignore"):
        assert check.holds(left, product(left, right))
        # Added up in another order, or more finely: as honest.
        assert check.holds(left, product(left[:, ::-1], right[::-1]))
        assert check.holds(left, (left.astype(np.float64) @ right).astype(np.float32))
        slowly = np.zeros((rows, columns), dtype=np.float32)
        for place in range(inner):
            slowly += np.multiply.outer(left[:, place], right[place])
        assert check.holds(left, slowly)


@settings(max_examples=200)
@given(st.data(), seeds, sizes, st.integers(1, 300), sizes, kinds, scales, st.sampled_from([8, 40]))
def test_any_single_entry_beyond_the_bound_is_caught(
    data: st.DataObject, seed: int, rows: int, inner: int, columns: int, kind: str, scale: float, trials: int
) -> None:
    chance = np.random.default_rng(seed)
    left = matrix(chance, rows, inner, scale=scale, kind=kind)
    right = matrix(chance, inner, columns, scale=1, kind="signed")
    check = Freivalds(right, trials=trials, chance=chance)
    result = product(left, right)
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    off = data.draw(st.floats(1.01, 1e6)) * data.draw(st.sampled_from([-1, 1])) * check.catches(left)[row, column]
    result[row, column] += np.float32(off)
    assert not check.holds(left, result)


@given(st.data(), seeds, sizes, sizes, sizes, st.integers(-(2**31), 2**31).filter(bool))
def test_any_wrong_whole_number_is_caught_in_its_row(
    data: st.DataObject, seed: int, rows: int, inner: int, columns: int, error: int
) -> None:
    chance = np.random.default_rng(seed)
    left, right = chance.integers(-1000, 1000, (rows, inner)), chance.integers(-512, 512, (inner, columns))
    result = left @ right
    check = FreivaldsExact(right, chance=chance)
    assert check.holds(left, result)
    row = data.draw(st.integers(0, rows - 1))
    result[row, data.draw(st.integers(0, columns - 1))] += error
    assert check.wrong_rows(left, result).tolist() == [row]


# The rest --------------------------------------------------------------------------------------------------------


@given(seeds, sizes, sizes, st.integers(0, 5))
def test_what_is_shuffled_comes_back(seed: int, rows: int, columns: int, computation: int) -> None:
    values = np.random.default_rng(seed).standard_normal((rows, columns))
    shuffle = dynamic_layer_shuffle(
        seed.to_bytes(8, "little"), layer=0, computation=computation, rows=rows, inner=columns, columns=columns
    )
    sent = values[np.ix_(shuffle.rows, shuffle.columns)]
    assert unshuffle(sent, shuffle).tolist() == values.tolist()
    assert sorted(shuffle_left(values, shuffle).reshape(-1)) == sorted(values.reshape(-1))


@given(seeds, st.integers(1, 20))
def test_parts_that_arrive_in_any_order_sum_to_the_same_bits(seed: int, count: int) -> None:
    chance = np.random.default_rng(seed)
    parts = [chance.standard_normal(5).astype(np.float32) for _ in range(count)]
    order = chance.permutation(count)
    arrived = {int(number): parts[number] for number in chance.permutation(count)}
    assert sum_in_order(parts, order).tobytes() == sum_in_order(arrived, order).tobytes()


@given(
    st.integers(0, 60),
    st.lists(st.tuples(st.floats(1, 1000), st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=6),
)
def test_no_tile_would_end_earlier_elsewhere(tiles_: int, measures: list[tuple[float, float, float]]) -> None:
    executors = [
        MeasuredExecutor(name=f"e{number}", operations_per_s=speed, latency_s=latency_s, busy_s=busy_s)
        for number, (speed, latency_s, busy_s) in enumerate(measures)
    ]
    counts = split(tiles_, executors, operations_each=50)
    assert sum(counts.values()) == tiles_
    end_s = ends_s(counts, executors, operations_each=50)
    for executor in executors:
        one_more = {name: count + (name == executor.name) for name, count in counts.items()}
        own_s = executor.busy_s + executor.latency_s + one_more[executor.name] * 50 / executor.operations_per_s
        # Had somebody room for one more before the end, the last tile would be theirs.
        assert not tiles_ or own_s >= end_s * (1 - 1e-9)
