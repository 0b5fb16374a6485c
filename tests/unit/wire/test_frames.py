"""Frames: what one side writes the other reads, and what is malformed is refused before memory is taken."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from shoal.errors import Misuse, PeerViolation
from shoal.wire import contract
from shoal.wire import frames as frames_module
from shoal.wire.frames import (
    Assembly,
    chunk_frame,
    chunk_frames,
    envelope_frame,
    frames,
    payload_bytes,
    read_chunk_frame,
    read_message,
    read_opening,
)
from shoal.wire.limits import CHUNK_BYTES, ENVELOPE_MAX_BYTES, MESSAGE_MAX_BYTES, PAYLOAD_MAX_BYTES
from shoal.wire.messages import Go, Heartbeat, HeartbeatSeen, Leave, Status, Update, Wait


def update(**tensors: np.ndarray) -> Update:
    return Update(job="a", term=1, lease=1, version=1, examples=1, tensors=tensors)


def announced(*tensors: dict[str, Any]) -> bytes:
    """An Update's envelope that promises these tensors, made by the generated classes."""
    frame = contract.Frame()
    frame.envelope.update.job = "a"
    for tensor in tensors:
        frame.envelope.tensors.add(**tensor)
    return bytes(frame.SerializeToString())


def test_the_bytes_are_those_of_the_contract() -> None:
    # Frame.envelope is field 1, Envelope.go field 14, Go.job 1, Go.term 2, Go.lease 3; tag = number·8 + wire type.
    assert envelope_frame(Go(job="a", term=2, lease=3)) == bytes.fromhex("0a09 7207 0a0161 1002 1803")
    assert chunk_frame(b"xyz") == b"\x12\x03xyz"


def test_a_message_without_tensors_is_one_frame() -> None:
    message = Wait(job="a", reason="2 of 3 workers are here")
    assert len(list(frames(message))) == 1
    assert read_message(frames(message)) == message


def test_a_small_model_rides_with_its_envelope_in_one_frame() -> None:
    (only,) = frames(update(t=np.arange(3, dtype=np.uint8)))
    opening = read_opening(only)
    assert opening.chunk == b"\x00\x01\x02"
    assert payload_bytes(opening.infos) == 3


def test_tensors_follow_back_to_back_in_chunks_the_odd_one_first() -> None:
    # 1 MiB and 5 bytes: the odd chunk is 5 bytes long, and "b" ends the full one.
    sent = update(a=np.arange(CHUNK_BYTES + 1, dtype=np.uint8), b=np.array([1.5], dtype=np.float32))
    head, *chunks = frames(sent)
    assert read_opening(head).chunk == b"\x00\x01\x02\x03\x04"
    assert [len(read_chunk_frame(chunk)) for chunk in chunks] == [CHUNK_BYTES]
    assert all(len(frame) <= MESSAGE_MAX_BYTES for frame in (head, *chunks))
    received = read_message(iter([head, *chunks]))
    assert isinstance(received, Update)
    assert received == sent
    for name, array in sent.tensors.items():
        assert received.tensors[name].dtype == array.dtype
        assert np.array_equal(received.tensors[name], array)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_every_shape_comes_back(shape: tuple[int, ...], dtype: str) -> None:
    array = np.ones(shape, dtype=dtype)
    received = read_message(frames(update(t=array)))
    assert isinstance(received, Update)
    assert received.tensors["t"].shape == shape
    assert np.array_equal(received.tensors["t"], array)


def test_views_that_are_not_contiguous_are_sent_as_what_they_show() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4).T[::2]
    received = read_message(frames(update(t=array)))
    assert isinstance(received, Update)
    assert received.tensors["t"].tolist() == array.tolist()


def test_a_tensor_off_its_alignment_is_usable() -> None:
    received = read_message(frames(update(odd=np.ones(3, np.uint8), even=np.arange(4, dtype=np.float64))))
    assert isinstance(received, Update)
    assert received.tensors["even"].flags.aligned
    assert received.tensors["even"].sum() == 6.0


@pytest.mark.parametrize("array", [np.zeros(1, np.complex64), np.zeros(1, ">f4"), np.array(["x"]), np.array([None])])
def test_types_that_do_not_cross_the_wire_are_our_own_fault(array: np.ndarray) -> None:
    with pytest.raises(Misuse, match="does not cross the wire"):
        list(frames(update(t=array)))


def test_a_message_too_large_to_be_read_is_not_sent() -> None:
    many = Status(cluster="c", manager="m", events=())
    assert envelope_frame(many)
    with pytest.raises(Misuse, match=f"Leave takes .* the maximum is {1000}"):
        envelope_frame(Leave(reason="x" * 2000), max_bytes=1000)


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (b"", "a chunk was sent where a message was expected"),
        (b"\x0a", "truncated"),
        (b"\x0a\x80", "truncated"),
        (b"\x0a" + b"\xff" * 9, "truncated"),
        (b"\x0a\x05abc", "truncated"),
        (b"\x0a\x02abc", "must have an envelope, a chunk or both, and nothing else"),
        (b"\x0a\x00", "no message that this release knows"),
        (b"\x0a\x03\xff\xff\xff", "cannot be decoded"),
        (b"\x12\x03abc", "a chunk was sent where a message was expected"),
        (b"\x1a\x03abc", "must have an envelope, a chunk or both"),
        (b"\x12\x01a\x0a\x00", "and nothing else"),
        (b"\x12\x01a\x12\x01b", "and nothing else"),
        (b"\x0a" + b"\xff\xff\xff\xff\x0f", "the maximum is"),
        # Invalid UTF-8 in Wait.job.
        (bytes.fromhex("0a05 6203 0a01ff"), "cannot be decoded"),
    ],
)
def test_malformed_envelopes_are_refused(frame: bytes, told: str) -> None:
    with pytest.raises(PeerViolation, match=told):
        read_opening(frame)


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        ({"name": "t", "dtype": "object", "shape": [1]}, "has type 'object'; it must be one of"),
        ({"name": "t", "dtype": "O", "shape": [1]}, "it must be one of"),
        ({"name": "t", "dtype": ">f4", "shape": [1]}, "it must be one of"),
        ({"name": "", "dtype": "float32", "shape": [1]}, "name has 0 characters"),
        ({"name": "n" * 129, "dtype": "float32", "shape": [1]}, "name has 129 characters"),
        ({"name": "t", "dtype": "float32", "shape": [-1]}, "impossible shape"),
        ({"name": "t", "dtype": "float32", "shape": [1] * 9}, "impossible shape"),
        ({"name": "t", "dtype": "float32", "shape": [1 << 62]}, "impossible shape"),
        ({"name": "t", "dtype": "float32", "shape": [1 << 20, 1 << 20]}, "bytes of tensors were announced"),
        ({"name": "t", "dtype": "uint8", "shape": [PAYLOAD_MAX_BYTES + 1]}, "impossible shape"),
    ],
)
def test_tensors_that_cannot_be_are_refused_by_their_announcement(tensor: dict[str, Any], told: str) -> None:
    with pytest.raises(PeerViolation, match=told):
        read_opening(announced(tensor))


def test_two_tensors_of_one_name_or_too_many_are_refused() -> None:
    one = {"name": "t", "dtype": "uint8", "shape": [1]}
    with pytest.raises(PeerViolation, match="two tensors have the same name"):
        read_opening(announced(one, one))
    with pytest.raises(PeerViolation, match="4097 tensors were announced"):
        read_opening(announced(*({"name": f"t{i}", "dtype": "uint8", "shape": [0]} for i in range(4097))))


def test_a_message_that_carries_no_tensors_may_announce_none() -> None:
    frame = contract.Frame()
    frame.envelope.wait.job = "a"
    frame.envelope.tensors.add(name="t", dtype="uint8", shape=[1])
    with pytest.raises(PeerViolation, match="Wait carries no tensors, but 1 were announced"):
        read_opening(frame.SerializeToString())


def started(size: int, **limits: int) -> Assembly:
    opening = read_opening(announced({"name": "t", "dtype": "uint8", "shape": [size]}))
    assert payload_bytes(opening.infos) == size
    return Assembly(opening.message, opening.infos, **limits)


@pytest.mark.parametrize(
    ("size", "chunk", "told"),
    [
        (3, b"four", "a chunk has 4 bytes where 3 were announced"),
        (3, b"ab", "a chunk has 2 bytes where 3"),
        (3, b"", "a chunk has 0 bytes where 3"),
        (0, b"", "a chunk has 0 bytes where 0"),
        (CHUNK_BYTES + 1, bytes(CHUNK_BYTES), "where 1 were announced"),
        (2 * CHUNK_BYTES, b"abc", f"where {CHUNK_BYTES} were announced"),
    ],
)
def test_chunks_that_do_not_fit_the_announcement_are_refused(size: int, chunk: bytes, told: str) -> None:
    with pytest.raises(PeerViolation, match=told):
        started(size).feed(memoryview(chunk))


def test_nothing_follows_a_complete_message() -> None:
    assembly = started(3)
    assembly.feed(memoryview(b"abc"))
    assert assembly.complete
    with pytest.raises(PeerViolation, match="where 0 were announced"):
        assembly.feed(memoryview(b"d"))


def test_a_message_that_ends_too_early_is_the_peers_fault() -> None:
    head, _ = frames(update(t=np.zeros(CHUNK_BYTES + 1, np.uint8)))
    with pytest.raises(PeerViolation):
        read_message(iter([head]))
    with pytest.raises(PeerViolation):
        read_message(iter([]))


def test_frames_that_are_not_chunks_are_refused_as_such() -> None:
    for frame in (envelope_frame(Leave(reason="")), b"", *frames(update(t=np.zeros(1, np.uint8)))):
        with pytest.raises(PeerViolation):
            read_chunk_frame(frame)
    with pytest.raises(PeerViolation, match=f"the maximum is {CHUNK_BYTES}"):
        read_chunk_frame(chunk_frame(bytes(CHUNK_BYTES + 1)))


def test_a_chunk_with_a_message_that_announced_none_is_refused() -> None:
    with pytest.raises(PeerViolation, match="a chunk was sent with Leave, which announced no tensors"):
        read_opening(envelope_frame(Leave(reason="")) + chunk_frame(b"x"))


def test_memory_may_be_used_again_if_it_is_of_the_size_announced() -> None:
    opening = read_opening(announced({"name": "t", "dtype": "uint8", "shape": [2]}))
    memory = np.zeros(2, np.uint8)
    assembly = Assembly(opening.message, opening.infos, buffer=memory)
    assembly.feed(memoryview(b"ab"))
    assert np.shares_memory(assembly.message().tensors["t"], memory)  # type: ignore[attr-defined]
    with pytest.raises(Misuse, match="the buffer has 3 bytes; it must have 2"):
        Assembly(opening.message, opening.infos, buffer=np.zeros(3, np.uint8))


def test_a_payload_above_the_readers_limit_is_refused_before_memory_is_taken() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(PeerViolation, match="Update has 1000000000 bytes of tensors; the maximum is 1000"):
            started(1_000_000_000, max_bytes=1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_an_envelope_above_the_limit_is_not_parsed() -> None:
    with pytest.raises(PeerViolation, match=f"the maximum is {ENVELOPE_MAX_BYTES}"):
        read_opening(b"\x0a" + b"\x81\x80\x10" + bytes(ENVELOPE_MAX_BYTES + 1))


def test_chunks_are_cut_without_holding_the_whole() -> None:
    def pieces() -> Iterator[bytes]:
        yield from chunk_frames({"t": np.zeros(3 * CHUNK_BYTES, np.uint8)})

    assert [len(piece) for piece in pieces()] == [CHUNK_BYTES + 4] * 3


def test_a_heartbeat_that_was_read_before_is_read_by_those_alone_that_may_hear_it() -> None:
    beat = Heartbeat(seq=9, is_idle=True, is_same=True)
    frame = envelope_frame(beat)
    assert len(frame) == 10
    assert read_opening(frame).message == beat
    assert read_opening(frame, hears={"Heartbeat"}).message is read_opening(frame).message
    with pytest.raises(PeerViolation, match="Heartbeat may not be sent here"):
        read_opening(frame, hears={"Leave"})


def test_no_peer_makes_us_keep_more_than_so_many_heartbeats() -> None:
    for seq in range(1, 5000):
        assert read_opening(envelope_frame(Heartbeat(seq=seq, is_same=True))).message.seq == seq
        answer = HeartbeatSeen(seq=seq, next_s=5.0)
        assert read_opening(envelope_frame(answer)).message == answer
    assert len(frames_module._ALIKE) <= frames_module._ALIKE_MAX
