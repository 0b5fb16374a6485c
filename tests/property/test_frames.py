"""Frames against the generated protobuf classes, which they equal, and against nonsense, which they refuse."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from shoal.errors import PeerViolation
from shoal.wire import contract
from shoal.wire.encoding import DTYPES, encode_envelope
from shoal.wire.frames import (
    chunk_frame,
    envelope_frame,
    frames,
    read_chunk_frame,
    read_message,
    read_opening,
    small_frame,
)
from shoal.wire.limits import CHUNK_BYTES, MESSAGE_MAX_BYTES, SMALL_BYTES
from shoal.wire.messages import Leave, Update, Wait

#: What a reader in these tests may take for one message.
LIMIT_BYTES = 64 << 10

tensors = st.dictionaries(
    st.text("abcdefgh.", min_size=1, max_size=8),
    arrays.arrays(
        dtype=st.sampled_from([np.dtype(name) for name in DTYPES]),
        shape=arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    ),
    max_size=5,
)


def update(carried: dict[str, np.ndarray]) -> Update:
    return Update(job="a", term=1, lease=2, version=3, examples=4, tensors=carried)


def same(sent: dict[str, np.ndarray], received: Any) -> None:
    assert list(received.tensors) == list(sent)
    for name, array in sent.items():
        got = received.tensors[name]
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert got.tobytes() == array.tobytes()
        assert got.flags.aligned


@contextmanager
def memory_below(limit_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit_bytes
    finally:
        tracemalloc.stop()


@settings(deadline=None)
@given(tensors)
def test_tensors_come_back_bit_for_bit(carried: dict[str, np.ndarray]) -> None:
    received = read_message(frames(update(carried)))
    assert received == update({})
    same(carried, received)


@settings(deadline=None)
@given(tensors)
def test_a_small_message_is_the_same_bytes_and_comes_back_whole_from_its_frame(carried: dict[str, np.ndarray]) -> None:
    # Columns too: not every tensor lies in one piece.
    carried = {name: array.T for name, array in carried.items()}
    frame = small_frame(update(carried))
    assert [frame] == list(frames(update(carried)))
    opening = read_opening(frame or b"")
    if opening.chunk is not None:
        same(carried, opening.whole())


@given(st.integers(-2, 2))
def test_only_small_messages_have_one_frame_of_their_own(more: int) -> None:
    carried = {"delta": np.zeros(SMALL_BYTES // 2 + more, np.uint8), "more": np.zeros(SMALL_BYTES // 2, np.uint8)}
    assert (small_frame(update(carried)) is None) == (more > 0)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 2 * CHUNK_BYTES + 9), min_size=1, max_size=3))
def test_any_sizes_around_the_chunk_are_cut_and_joined(sizes: list[int]) -> None:
    carried = {f"t{i}": np.arange(size, dtype=np.uint32).astype(np.uint8) for i, size in enumerate(sizes)}
    pieces = list(frames(update(carried)))
    assert all(len(piece) <= MESSAGE_MAX_BYTES for piece in pieces)
    assert len(pieces) == max(1, -(-sum(sizes) // CHUNK_BYTES))
    same(carried, read_message(iter(pieces)))


@settings(deadline=None)
@given(tensors, st.text(max_size=40).map(lambda text: text.replace("\0", "")))
def test_generated_classes_read_what_we_write_and_write_what_we_read(
    carried: dict[str, np.ndarray], reason: str
) -> None:
    for message in (update(carried), Wait(job="a", reason=reason), Leave(reason=reason)):
        for piece in frames(message):
            theirs = contract.Frame.FromString(piece)
            assert theirs.SerializeToString() == piece
        first = contract.Frame.FromString(next(frames(message)))
        assert first.envelope.SerializeToString() == encode_envelope(message)


@given(st.binary(min_size=1, max_size=500))
def test_a_chunk_is_the_contracts_chunk(data: bytes) -> None:
    assert contract.Frame(chunk=data).SerializeToString() == chunk_frame(data)
    assert read_chunk_frame(contract.Frame(chunk=data).SerializeToString()) == data
    envelope = contract.Envelope.FromString(encode_envelope(Leave(reason="x")))
    assert contract.Frame(envelope=envelope).SerializeToString() == envelope_frame(Leave(reason="x"))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=60) | st.binary(max_size=60).map(lambda body: b"\x0a" + body), max_size=3))
def test_random_bytes_are_refused(pieces: list[bytes]) -> None:
    with suppress(PeerViolation):
        read_message(iter(pieces), max_bytes=LIMIT_BYTES)


@settings(max_examples=200, deadline=None)
@given(tensors, st.data())
def test_a_message_cut_short_or_changed_is_bounded(carried: dict[str, np.ndarray], data: st.DataObject) -> None:
    (only,) = frames(update(carried))
    cut = only[: data.draw(st.integers(0, len(only) - 1))]
    changed = bytearray(only)
    changed[data.draw(st.integers(0, len(only) - 1))] ^= data.draw(st.integers(1, 255))
    longer = only + data.draw(st.binary(min_size=1, max_size=5))
    for piece in (cut, bytes(changed), longer):
        with suppress(PeerViolation):
            message = read_message(iter([piece]), max_bytes=LIMIT_BYTES)
            assert sum(array.nbytes for array in getattr(message, "tensors", {}).values()) <= LIMIT_BYTES


@settings(max_examples=60, deadline=None)
@example("float32", [0, 1 << 21, 1 << 21, 1 << 21], b"")
@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 1 << 31), max_size=10),
    st.binary(max_size=20),
)
def test_a_huge_promise_takes_no_memory(dtype: str, shape: list[int], data: bytes) -> None:
    frame = contract.Frame(chunk=data)
    frame.envelope.update.job = "a"
    frame.envelope.tensors.add(name="t", dtype=dtype, shape=shape)
    piece = frame.SerializeToString()
    with memory_below(LIMIT_BYTES + (256 << 10)), suppress(PeerViolation):
        read_message(iter([piece]), max_bytes=LIMIT_BYTES)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 70), st.binary(max_size=20), st.sampled_from([0x0A, 0x12]))
def test_a_length_that_lies_takes_no_memory(length: int, data: bytes, tag: int) -> None:
    varint = bytearray()
    while length > 0x7F:
        varint.append(length & 0x7F | 0x80)
        length >>= 7
    piece = bytes([tag, *varint, length]) + data
    with memory_below(256 << 10):
        for read in (read_opening, read_chunk_frame):
            with suppress(PeerViolation):
                read(piece)
