"""Coded updates come back as what was sent, never longer than declared; whatever else arrives is refused by name."""

from __future__ import annotations

import time
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.compress.codec import Codec
from shoal.compress.feedback import Feedback
from shoal.compress.quantise import restored
from shoal.compress.sparse import Sparse, largest
from shoal.errors import Misuse, PeerViolation
from shoal.learning.layout import Layout
from shoal.wire import rice
from shoal.wire.bits import pack, packed_bytes, unpack
from shoal.wire.coded import (
    bytes_max,
    bytes_of,
    code,
    cut,
    decode,
    decode_changes,
    decode_exact,
    encode,
    encode_exact,
    entries_max,
    sizes_of,
)
from shoal.wire.frames import frames, read_message
from shoal.wire.limits import UPDATE_NORM_MAX
from shoal.wire.messages import Update

NAMES = [
    "dense",
    "fp16",
    "bf16",
    "int16",
    "top1%",
    "top30%+ef",
    "top100%",
    "top10%+2bit",
    "top30%+ef+4bit",
    "top100%+8bit",
]
TOP = [name for name in NAMES if name.startswith("top")]

numbers = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5]) | st.floats(-1e4, 1e4, width=32)
tensors = st.lists(st.lists(numbers, max_size=12), min_size=1, max_size=4).filter(any)
names = st.sampled_from(NAMES)


def joined(parts: list[list[float]]) -> tuple[np.ndarray, list[int]]:
    return np.array([value for part in parts for value in part], dtype=np.float32), [len(part) for part in parts]


def flat(update: np.ndarray | Sparse) -> np.ndarray:
    return update.dense() if isinstance(update, Sparse) else update


# Bits -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 32), st.data())
def test_packed_numbers_come_back_in_the_bytes_they_take(bits: int, drawn: st.DataObject) -> None:
    numbers = drawn.draw(st.lists(st.integers(0, (1 << bits) - 1), max_size=60))
    data = pack(np.array(numbers, dtype=np.int64), bits)
    assert data.size == packed_bytes(len(numbers), bits) == -(-len(numbers) * bits // 8)
    assert unpack(data, len(numbers), bits).tolist() == numbers


@pytest.mark.parametrize("bits", [1, 3, 7, 8, 11, 31])
def test_numbers_of_several_blocks_are_packed_alike(bits: int) -> None:
    numbers = np.random.default_rng(bits).integers(0, 1 << bits, 20_001)
    data = pack(numbers, bits)
    assert np.array_equal(unpack(data, numbers.size, bits), numbers)
    written = "".join(f"{number:0{bits}b}" for number in numbers.tolist())
    assert data.tobytes() == int(written.ljust(8 * data.size, "0"), 2).to_bytes(data.size, "big")


def test_bits_that_do_not_belong_are_refused() -> None:
    with pytest.raises(PeerViolation, match="bits after the last number"):
        unpack(np.array([0b101_00001], np.uint8), 1, 3)
    for size in (0, 2):
        with pytest.raises(PeerViolation, match="1 numbers of 3 bits"):
            unpack(np.zeros(size, np.uint8), 1, 3)
    with pytest.raises(Misuse):
        pack(np.zeros(1, np.int64), 33)


# Rice -------------------------------------------------------------------------------------------------------


@st.composite
def ascending(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    size = draw(st.sampled_from([1, 2, 50, 1000, 1 << 20, 1 << 28]))
    places = draw(st.sets(st.integers(0, size - 1) | st.integers(0, min(size - 1, 60)), max_size=40))
    return np.array(sorted(places), dtype=np.int64), size


@settings(max_examples=100)
@given(ascending())
def test_places_come_back_and_take_no_more_than_declared(drawn: tuple[np.ndarray, int]) -> None:
    places, size = drawn
    parameter, data = rice.encode(places, size)
    assert data.size <= rice.coded_bytes_max(places.size, size)
    back = rice.decode(data, count=places.size, size=size, parameter=parameter)
    assert back.tolist() == places.tolist()


def test_more_places_are_never_declared_to_take_less() -> None:
    """A bound for the most is one for fewer: ``bytes_max`` asks for the most alone."""
    for size in (1, 7, 1000, 50_000):
        bounds = [rice.coded_bytes_max(count, size) for count in range(min(size, 3000) + 1)]
        assert bounds == sorted(bounds)


def test_rice_by_hand() -> None:
    """Gaps 3, 0, 5 with two low bits: high parts 0, 0, 1 as 1 1 01, low parts 11 00 01."""
    places = np.array([3, 4, 10])
    data = np.array([0b1101_0000, 0b1100_0100], np.uint8)
    assert rice.decode(data, count=3, size=11, parameter=2).tolist() == places.tolist()
    with pytest.raises(PeerViolation, match="the last place is 10; it must be below 10"):
        rice.decode(data, count=3, size=10, parameter=2)
    with pytest.raises(PeerViolation, match="bytes after the last place"):
        rice.decode(np.insert(data, 1, 0), count=3, size=1000, parameter=2)
    with pytest.raises(PeerViolation, match="3 places were sent, but 2 were announced"):
        rice.decode(data, count=2, size=11, parameter=2)


def test_places_at_one_percent_take_what_rice_codes_take() -> None:
    """The entropy at 1 % is 8.08 bits a place."""
    size = 700_000
    places = np.flatnonzero(np.random.default_rng(0).random(size) < 0.01)
    _, data = rice.encode(places, size)
    assert 8.0 < 8 * data.size / places.size < 8.3


@pytest.mark.parametrize("places", [[3, 3], [4, 3], [-1], [10]])
def test_places_that_do_not_ascend_are_misuse(places: list[int]) -> None:
    with pytest.raises(Misuse):
        rice.encode(np.array(places), 10)


@settings(max_examples=300)
@given(st.binary(max_size=40), st.integers(-1, 60), st.sampled_from([1, 50, 1000, 1 << 28]), st.integers(-1, 40))
def test_any_bytes_are_places_or_refused(data: bytes, count: int, size: int, parameter: int) -> None:
    try:
        places = rice.decode(np.frombuffer(data, np.uint8), count=count, size=size, parameter=parameter)
    except PeerViolation:
        return
    assert places.size == count
    assert (np.diff(places, prepend=-1) > 0).all()
    assert places.max(initial=0) < size


# Whole updates ----------------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(tensors, names, st.integers(0, 5) | st.none())
def test_what_arrives_is_what_was_chosen_and_no_longer_than_declared(
    parts: list[list[float]], name: str, seed: int | None
) -> None:
    update, sizes = joined(parts)
    codec = Codec.parse(name)
    chance = None if seed is None else np.random.default_rng(seed)
    sent = encode(codec, update, sizes, chance=chance)
    assert list(sent) == ["delta"]
    assert bytes_of(sent) <= bytes_max(codec, sizes)
    arrived = decode(codec, sent, sizes)
    if codec.form != "top":
        # A word of 16 bits is off by half a step of its tensor, and no step is longer than one of the largest value.
        step = float(np.abs(update).max()) / 32767 if codec.form == "int16" else 0.0
        assert flat(arrived) == pytest.approx(update, rel=2**-8, abs=max(2**-24, 0.51 * step))
        return
    assert isinstance(arrived, Sparse)
    assert arrived.places.size <= entries_max(codec, sizes)
    chosen = largest(update, sizes, share_ppm=codec.share_ppm)
    assert set(arrived.places) <= set(chosen.places)
    if codec.bits == 32:
        assert np.array_equal(arrived.dense(), chosen.dense())
    else:
        # Off by half a step of its tensor, or a whole one where levels are drawn.
        start = 0
        for size in sizes:
            most = np.abs(update[start : start + size]).max(initial=0)
            step = most / (1 << (codec.bits - 1))
            error = np.abs(arrived.dense() - chosen.dense())[start : start + size]
            # A step has no room below the smallest values of float32.
            least = float(np.finfo(np.float32).tiny)
            assert error.max(initial=0) <= step * (1.0 if chance else 0.5) * (1 + 1e-6) + least
            start += size
    # What has arrived can be sent on as it is: its largest are still there, so its steps are the same.
    if chance is None:
        assert np.array_equal(flat(decode(codec, encode(codec, arrived, sizes), sizes)), arrived.dense())


@settings(max_examples=40)
@given(st.lists(tensors.map(lambda parts: joined(parts)[0]), min_size=1, max_size=4), st.sampled_from(TOP))
def test_nothing_is_lost_between_the_wire_and_what_is_kept(updates: list[np.ndarray], name: str) -> None:
    size = min(update.size for update in updates)
    codec, sizes, feedback = Codec.parse(name), [size // 2, size - size // 2], Feedback(size)
    for update in updates:
        total = feedback.add(np.ascontiguousarray(update[:size])).copy()
        arrived = decode(codec, encode(codec, total, sizes), sizes)
        feedback.sent(arrived)
        assert np.array_equal(flat(arrived) + feedback.kept, total)


def test_an_update_of_zeros_takes_next_to_nothing() -> None:
    codec = Codec.parse("top1%+4bit")
    sent = encode(codec, np.zeros(100_000, np.float32), [60_000, 40_000])
    assert bytes_of(sent) == 5 + 2 * 4
    assert not flat(decode(codec, sent, [60_000, 40_000])).any()


def test_a_coded_update_by_hand() -> None:
    """Half of four values, 4 bits: -8 and 3 steps of 0.25 at places 1 and 2. Gaps 1, 0: with no low bits 01 1."""
    codec = Codec.parse("top50%+4bit")
    sent = encode(codec, np.array([0.1, -2.0, 0.8, 0.0], np.float32), [4])["delta"]
    scale = np.array([0.25], "<f4").tobytes()
    # Sign and magnitude less one: 1111 is -8, 0010 is 3.
    by_hand = b"\x02\x00\x00\x00" + b"\x00" + scale + bytes([0b011_00000, 0b1111_0010])
    assert sent.tobytes() == by_hand
    assert flat(decode(codec, {"delta": sent}, [4])).tolist() == [0.0, -2.0, 0.75, 0.0]


def test_coded_updates_cross_in_frames() -> None:
    layout = Layout.of([("weight", (40, 30), "parameter"), ("bias", (30,), "parameter"), ("none", (0,), "buffer")])
    sizes = sizes_of(layout)
    assert sizes == (1200, 30, 0)
    update = np.random.default_rng(0).normal(size=layout.size).astype(np.float32)
    for name in NAMES:
        codec = Codec.parse(name)
        sent = encode(codec, update, sizes)
        message = Update(job="job", term=1, lease=1, version=0, examples=1, tensors=sent)
        arrived = read_message(frames(message))
        assert isinstance(arrived, Update)
        assert np.array_equal(flat(decode(codec, arrived.tensors, sizes)), flat(decode(codec, sent, sizes)))


def test_merged_updates_name_more_and_are_read_where_that_is_said() -> None:
    codec, sizes = Codec.parse("top10%+8bit"), [100]
    merged = Sparse(100, np.arange(0, 100, 3), np.ones(34, np.float32))
    sent = encode(codec, merged, sizes, name="mean")
    assert bytes_of(sent) <= bytes_max(codec, sizes, entries=40)
    with pytest.raises(PeerViolation):
        decode(codec, sent, sizes, name="mean")
    assert np.array_equal(flat(decode(codec, sent, sizes, name="mean", entries=40)), merged.dense())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_not_sent(name: str, bad: float) -> None:
    update = np.ones(50, np.float32)
    update[20] = bad
    with pytest.raises(Misuse, match="not finite"):
        encode(Codec.parse(name), update, [10, 40])


def test_what_does_not_fit_the_model_is_not_sent() -> None:
    for name in ("fp16", "top1%"):
        with pytest.raises(Misuse):
            encode(Codec.parse(name), np.ones(4, np.float32), [3])
    with pytest.raises(Misuse):
        encode(Codec.parse("top1%"), Sparse(4, np.array([0]), np.ones(1, np.float32)), [3])


# Hostile input ----------------------------------------------------------------------------------------------

SIZES = (300, 7, 0, 93)


def sound(codec: Codec) -> np.ndarray:
    update = np.random.default_rng(1).normal(size=sum(SIZES)).astype(np.float32)
    return encode(codec, update, SIZES)["delta"]


def read_or_refuse(codec: Codec, data: np.ndarray) -> None:
    try:
        arrived = decode(codec, {"delta": data}, SIZES)
    except PeerViolation:
        return
    whole = flat(arrived)
    assert whole.shape == (sum(SIZES),)
    assert np.isfinite(whole).all()
    assert np.linalg.norm(whole) <= UPDATE_NORM_MAX * 1.001
    if isinstance(arrived, Sparse):
        assert arrived.places.size <= entries_max(codec, SIZES)
        assert (np.diff(arrived.places, prepend=-1) > 0).all()


@settings(max_examples=300)
@given(names, st.binary(max_size=300))
def test_any_bytes_are_an_update_or_refused(name: str, data: bytes) -> None:
    codec = Codec.parse(name)
    read_or_refuse(codec, np.frombuffer(data, np.uint8))
    # As long as it should be: then what it says is looked at.
    like = sound(codec)
    read_or_refuse(codec, np.resize(np.frombuffer(data or b"\0", np.uint8), like.nbytes).view(like.dtype))


@settings(max_examples=150)
@given(st.sampled_from(TOP), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4), st.data())
def test_damaged_updates_are_read_or_refused(name: str, changes: list[tuple[int, int]], drawn: st.DataObject) -> None:
    codec = Codec.parse(name)
    data = sound(codec).copy()
    for place, value in changes:
        data[place % min(data.size, drawn.draw(st.sampled_from([5, 25, data.size])))] = value
    end = drawn.draw(st.just(data.size) | st.integers(0, data.size))
    read_or_refuse(codec, np.concatenate((data[:end], np.zeros(drawn.draw(st.sampled_from([0, 0, 1, 50])), np.uint8))))


def test_a_coded_update_does_not_expand() -> None:
    """A model of a gigabyte, and every way to claim more than was sent: refused at once, out of hardly any memory."""
    sizes = (1 << 28,)
    for name in TOP:
        codec = Codec.parse(name)
        for count in (0, 1, 1000, 1 << 20, 1 << 31, (1 << 32) - 1):
            for parameter in (0, 1, 7, 28, 29, 255):
                for fill in (0x00, 0xFF):
                    head = count.to_bytes(4, "little") + bytes([parameter])
                    data = np.frombuffer(head + bytes([fill]) * 1000, np.uint8)
                    began_s = time.process_time()
                    tracemalloc.start()
                    try:
                        decode(codec, {"delta": data}, sizes)
                    except PeerViolation:
                        pass
                    finally:
                        peak_bytes = tracemalloc.get_traced_memory()[1]
                        tracemalloc.stop()
                    assert peak_bytes < 1 << 18
                    assert time.process_time() - began_s < 0.5


def test_no_more_is_read_than_a_codec_may_send() -> None:
    """As many zeros and ones as a message may hold: the length alone is enough to refuse it."""
    codec, sizes = Codec.parse("top0.1%+4bit"), (10_000_000,)
    for fill in (0x00, 0xFF):
        data = np.full(8 << 20, fill, np.uint8)
        tracemalloc.start()
        with pytest.raises(PeerViolation, match="bytes in top0"):
            decode(codec, {"delta": data}, sizes)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
        # The longest that is read: scratch is in proportion to what came and to what may be named.
        longest = data[: bytes_max(codec, sizes)].copy()
        longest[:5] = [*(10_000).to_bytes(4, "little"), rice.parameter_for(10_000, 10_000_000)]
        tracemalloc.reset_peak()
        with pytest.raises(PeerViolation):
            decode(codec, {"delta": longest}, sizes)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 8 * longest.size + 100 * entries_max(codec, sizes)


def test_more_values_than_a_codec_leaves_are_refused_however_short() -> None:
    codec, sizes = Codec.parse("top10%+2bit"), [1000]
    sent = encode(codec, Sparse(1000, np.arange(101), np.ones(101, np.float32)), sizes)
    assert bytes_of(sent) <= bytes_max(codec, sizes)
    with pytest.raises(PeerViolation, match="names 101 values; the maximum is 100"):
        decode(codec, sent, sizes)


@pytest.mark.parametrize(("name", "count"), [("top100%", 30), ("top100%+8bit", 90), ("top100%+8bit", 101)])
def test_more_values_than_there_are_bytes_for_are_refused(name: str, count: int) -> None:
    data = np.frombuffer(count.to_bytes(4, "little") + bytes(96), np.uint8)
    with pytest.raises(PeerViolation, match=f"{count} values do not fit into 100 bytes"):
        decode(Codec.parse(name), {"delta": data}, [1000] * 4)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, 3e38])
def test_a_scale_that_cannot_be_is_refused(scale: float) -> None:
    codec = Codec.parse("top30%+ef+4bit")
    data = sound(codec).copy()
    data[5:9] = np.frombuffer(np.array([scale], "<f4").tobytes(), np.uint8)
    with pytest.raises(PeerViolation, match=r"scale|norm"):
        decode(codec, {"delta": data}, SIZES)


@pytest.mark.parametrize("name", NAMES)
def test_other_tensors_are_refused(name: str) -> None:
    codec = Codec.parse(name)
    data = sound(codec)
    for tensors in (
        {},
        {"mean": data},
        {"delta": data, "more": data},
        {"delta": data.astype(np.int16)},
        {"delta": data.reshape(1, -1)},
        {"delta": data[:0]},
        {"delta": np.concatenate((data, data))},
    ):
        with pytest.raises(PeerViolation):
            decode(codec, tensors, SIZES)
    assert flat(decode(codec, {"delta": data}, SIZES)).any()


@pytest.mark.parametrize(("name", "bits"), [("fp16", 0x7C00), ("fp16", 0x7E00), ("bf16", 0x7F80), ("bf16", 0xFFFF)])
def test_halves_that_are_not_finite_are_refused(name: str, bits: int) -> None:
    data = np.zeros(sum(SIZES), np.uint16)
    data[17] = bits
    with pytest.raises(PeerViolation):
        decode(Codec.parse(name), {"delta": data.view(sound(Codec.parse(name)).dtype)}, SIZES)


def test_every_code_is_a_level() -> None:
    """There is none for zero and none to spare."""
    codec = Codec.parse("top100%+4bit")
    levels = np.array([*range(-8, 0), *range(1, 9)], np.int16)
    update = restored(levels, np.full(16, 0.5, np.float32))
    sent = encode(codec, update, [16])["delta"]
    assert len(set(unpack(sent[-8:], 16, 4).tolist())) == 16
    assert np.array_equal(flat(decode(codec, {"delta": sent}, [16])), update)


# Cut for aggregators, and brought up to date --------------------------------------------------------------------


@given(names, tensors, st.data())
def test_parts_of_an_update_are_the_values_it_has_as_a_whole_wherever_it_is_cut(
    name: str, parts: list[list[float]], drawn: st.DataObject
) -> None:
    update, sizes = joined(parts)
    codec = Codec.parse(name)
    coded = code(codec, update, sizes)
    whole = flat(decode(codec, coded.tensors(), sizes))
    assert np.array_equal(flat(coded.values), whole)
    assert np.array_equal(whole, flat(decode(codec, encode(codec, update, sizes), sizes)))
    ends = sorted({0, update.size, *drawn.draw(st.lists(st.integers(0, update.size), max_size=4))})
    read = [
        flat(decode(codec, coded.part(start, stop), cut(sizes, start, stop)[1], entries=stop - start))
        for start, stop in pairwise(ends)
    ]
    assert np.array_equal(np.concatenate(read), whole)


@given(tensors, st.data())
def test_a_cut_names_every_tensor_that_has_something_in_it(parts: list[list[float]], drawn: st.DataObject) -> None:
    sizes = [len(part) for part in parts]
    start = drawn.draw(st.integers(0, sum(sizes) - 1))
    stop = drawn.draw(st.integers(start + 1, sum(sizes)))
    first, taken = cut(sizes, start, stop)
    owners = [tensor for tensor, size in enumerate(sizes) for _ in range(size)][start:stop]
    assert sum(taken) == stop - start
    assert owners[0] == first
    assert {first + place for place, size in enumerate(taken) if size} == set(owners)


@given(st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.5]) | st.floats(-1e3, 1e3, width=32), min_size=1, max_size=80))
def test_a_sum_of_sparse_updates_comes_back_to_the_bit_and_is_never_longer_than_all_of_it(values: list[float]) -> None:
    update = np.array(values, dtype=np.float32)
    written = encode_exact(update, name="mean")
    assert bytes_of(written) <= update.nbytes
    assert np.array_equal(decode_exact("mean", written, size=update.size), update)
    with pytest.raises(PeerViolation):
        decode_exact("mean", {"other": written["mean"]}, size=update.size)


@given(names, st.integers(0, 5), st.integers(1, 4), tensors)
def test_changes_name_every_version_in_between_or_are_refused(
    name: str, base: int, count: int, parts: list[list[float]]
) -> None:
    update, sizes = joined(parts)
    codec = Codec.parse(name)
    written = {str(base + 1 + place): code(codec, update, sizes).tensors()["delta"] for place in range(count)}
    read = decode_changes(codec, written, sizes, base=base, version=base + count)
    assert [flat(change).tolist() for change in read] == [flat(code(codec, update, sizes).values).tolist()] * count
    for wrong in (base - 1, base + 1):
        with pytest.raises(PeerViolation, match="do not make version"):
            decode_changes(codec, written, sizes, base=wrong, version=base + count)


def test_changes_over_a_great_many_versions_are_refused_before_their_names_are_made() -> None:
    with pytest.raises(PeerViolation, match="do not make version"):
        decode_changes(Codec.parse("top1%"), {"1": np.zeros(5, np.uint8)}, [4], base=0, version=1 << 60)


def test_words_of_16_bits_have_a_step_for_each_tensor() -> None:
    codec, update = Codec.parse("int16"), np.array([1.0, -0.5, 3e-5, 0.0, 0.0, 2e-7], np.float32)
    sizes = (3, 2, 0, 1)
    sent = encode(codec, update, sizes)["delta"]
    assert sent.nbytes == bytes_max(codec, sizes) == 4 * 4 + 6 * 2
    assert flat(decode(codec, {"delta": sent}, sizes)) == pytest.approx(update, abs=0.51 / 32767, rel=1e-6)
    assert not code(codec, np.zeros(6, np.float32), sizes).tensors()["delta"].any()
    for scale in (np.nan, np.inf, -1.0):
        wrong = sent.copy()
        wrong[:4] = np.frombuffer(np.float32(scale).tobytes(), np.uint8)
        with pytest.raises(PeerViolation):
            decode(codec, {"delta": wrong}, sizes)


def test_words_of_a_sealed_sum_are_no_update_by_themselves() -> None:
    codec, update = Codec.parse("led100%+ef"), np.zeros(4, np.float32)
    with pytest.raises(Misuse, match="only for sealed updates"):
        encode(codec, update, (4,))
    with pytest.raises(PeerViolation, match="words of a sealed sum"):
        decode(codec, {"delta": np.zeros(4, np.uint16)}, (4,))
    assert bytes_max(codec, (4,)) == 8
