"""Safetensors files: ours against the reference package, and hostile headers refused fast."""

from __future__ import annotations

import io
import json
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from shoal.errors import Corrupt, Misuse
from shoal.wire import tensors
from shoal.wire.limits import TENSOR_COUNT_MAX, TENSOR_FILE_HEADER_MAX_BYTES, TENSOR_FILE_NOTES_MAX

EVERY_DTYPE = [dtype for name, dtype in tensors.DTYPES.items() if name != "BF16"]


def written(arrays: dict[str, np.ndarray], metadata: dict[str, str] | None = None, **options: object) -> bytes:
    file = io.BytesIO()
    tensors.write(file, arrays, metadata or {}, **options)  # type: ignore[arg-type]
    return file.getvalue()


def framed(header: bytes | str, data: bytes = b"") -> bytes:
    raw = header.encode() if isinstance(header, str) else header
    return len(raw).to_bytes(8, "little") + raw + data


def one_tensor(**changes: object) -> str:
    return json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes})


# Against the reference ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (0,), (2, 0, 3), (2, 3, 4)], ids=str)
def test_the_reference_reads_what_we_write_and_we_read_what_it_writes(dtype: np.dtype, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)

    theirs = safetensors.numpy.load(written({"a": array}))["a"]
    ours, _ = tensors.read(safetensors.numpy.save({"a": array}))

    for got in (theirs, ours["a"]):
        assert got.dtype == array.dtype
        assert got.shape == array.shape
        assert np.array_equal(got, array)


def test_metadata_reaches_the_reference_and_comes_back_from_it(tmp_path: Path) -> None:
    metadata = {"state": '{"a": "b\\"c"}', "unicode ключ": "naïve ☃"}
    path = tmp_path / "ours.safetensors"
    path.write_bytes(written({"a": np.ones(3, np.float32)}, metadata))
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == metadata
    assert tensors.read(safetensors.numpy.save({"a": np.ones(1)}, metadata))[1] == metadata


def test_bfloat16_is_read_and_written_as_its_bits() -> None:
    bits = np.array([0x3F80, 0xC000], np.uint16)  # 1.0 and -2.0
    theirs = dict(safetensors.deserialize(written({"a": bits, "b": bits}, bfloat16={"a"})))
    assert {name: info["dtype"] for name, info in theirs.items()} == {"a": "BF16", "b": "U16"}

    whole = framed(one_tensor(dtype="BF16", data_offsets=[0, 4]), bits.tobytes())
    assert np.array_equal(tensors.read(whole)[0]["a"], bits)
    assert tensors.parse_header(whole, total_bytes=len(whole)).tensors["a"].dtype == "BF16"


def test_order_is_the_callers_and_every_tensor_lies_aligned(tmp_path: Path) -> None:
    arrays = {
        "z": np.ones(3, np.int8),
        "a": np.ones(3, np.float64),
        "m": np.ones(5, np.float16),
        "b": np.ones(1, np.float32),
    }
    path = tmp_path / "a.safetensors"
    path.write_bytes(written(arrays))
    back, _ = tensors.read(path)
    assert list(back) == ["z", "a", "m", "b"]
    assert all(array.flags.aligned for array in back.values())


def test_unaligned_tensors_of_other_writers_are_read() -> None:
    entries = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]},
    }
    arrays, _ = tensors.read(framed(json.dumps(entries), b"\x07" + np.float32(1.5).tobytes()))
    assert arrays["a"].tolist() == [7]
    assert arrays["b"].tolist() == [1.5]


def test_awkward_arrays_are_written_by_value() -> None:
    grid = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = {
        "transposed": grid.T,
        "strided": grid[:, ::2],
        "reversed": grid[::-1],
        "fortran": np.asfortranarray(grid),
        "big-endian": grid.astype(">f4"),
    }
    back = safetensors.numpy.load(written(arrays))
    assert all(np.array_equal(back[name], array) for name, array in arrays.items())


def test_a_contiguous_array_is_not_copied() -> None:
    array = np.zeros(4 << 20, np.float32)

    class Sink(io.BytesIO):
        def write(self, data: object, /) -> int:
            return memoryview(data).nbytes  # type: ignore[arg-type]

    tracemalloc.start()
    try:
        tensors.write(Sink(), {"a": array}, {})
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < array.nbytes // 16


# Reading from disk --------------------------------------------------------------------------------


def test_a_mapped_file_gives_read_only_views_that_outlive_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(written({"a": np.arange(1000.0)}))
    array = tensors.read(path, mmap=True)[0]["a"]
    path.unlink()
    assert array.sum() == 499_500
    assert not array.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_a_loaded_file_gives_private_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(written({"a": np.arange(3.0), "b": np.zeros(0)}))
    arrays, _ = tensors.read(path, mmap=False)
    arrays["a"][0] = 9
    assert arrays["a"].tolist() == [9, 1, 2]
    assert tensors.read(path)[0]["a"].tolist() == [0, 1, 2]


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = written({"a": np.arange(4, dtype=np.float32)}, {"k": "v"})
    path = tmp_path / "a.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        for source in (path, whole[:length]):
            with pytest.raises(Corrupt):
                tensors.read(source)
    with pytest.raises(Corrupt):
        tensors.read(whole + b"\0")


# Hostile headers ----------------------------------------------------------------------------------

FILL = TENSOR_FILE_HEADER_MAX_BYTES - 64

HOSTILE = {
    "empty": b"",
    "length of 2^64 - 1": b"\xff" * 8 + b"{}",
    "length beyond the file": (100).to_bytes(8, "little") + b"{}",
    "length beyond the limit": framed(b" " * (TENSOR_FILE_HEADER_MAX_BYTES + 1)),
    "empty header": framed(""),
    "no object": framed("[]"),
    "leading space": framed(" {}"),
    "two objects": framed("{}{}"),
    "not UTF-8": framed(b'{"\xff": 1}'),
    "lone surrogate": framed('{"\\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}'),
    "raw newline in a name": framed('{"a\nb": {}}'),
    "unknown dtype": framed(one_tensor(dtype="F8_E4M3"), bytes(8)),
    "dtype of the wrong kind": framed(one_tensor(dtype=4), bytes(8)),
    "dtype missing": framed('{"a": {"shape": [2], "data_offsets": [0, 8]}}', bytes(8)),
    "field unknown": framed(one_tensor(code="import os"), bytes(8)),
    "entry not an object": framed('{"a": [0, 8]}', bytes(8)),
    "shape negative": framed(one_tensor(shape=[-2]), bytes(8)),
    "shape fractional": framed(one_tensor(shape=[2.0]), bytes(8)),
    "shape exponential": framed('{"a": {"dtype": "F32", "shape": [2e0], "data_offsets": [0, 8]}}', bytes(8)),
    "shape not a list": framed(one_tensor(shape=2), bytes(8)),
    "shape true": framed(one_tensor(shape=[True]), bytes(8)),
    "shape with leading zero": framed('{"a": {"dtype": "F32", "shape": [02], "data_offsets": [0, 8]}}', bytes(8)),
    "shape too small": framed(one_tensor(shape=[1]), bytes(8)),
    "shape overflows": framed(one_tensor(shape=[2**62, 2**62, 0], data_offsets=[0, 0])),
    "shape wraps to 8": framed(one_tensor(shape=[2**63, 2, 1]), bytes(8)),
    "shape of many dimensions": framed(one_tensor(shape=[1] * 33 + [2]), bytes(8)),
    "offsets negative": framed(one_tensor(data_offsets=[-8, 0]), bytes(8)),
    "offsets reversed": framed(one_tensor(data_offsets=[8, 0]), bytes(8)),
    "offsets outside": framed(one_tensor(data_offsets=[8, 16]), bytes(8)),
    "offsets of 4,000 digits": framed(one_tensor(data_offsets=[0, 10**4000]), bytes(8)),
    "offsets of one number": framed(one_tensor(data_offsets=[8]), bytes(8)),
    "offsets of three numbers": framed(one_tensor(data_offsets=[0, 8, 8]), bytes(8)),
    "hole before": framed(one_tensor(data_offsets=[4, 12]), bytes(12)),
    "bytes after": framed(one_tensor(), bytes(9)),
    "overlap": framed(
        '{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},'
        ' "b": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]}}',
        bytes(6),
    ),
    "same bytes twice": framed(
        '{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},'
        ' "b": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}',
        bytes(4),
    ),
    "duplicate name": framed(
        '{"a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]},'
        ' "a": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}'
    ),
    "duplicate field": framed('{"a": {"dtype": "U8", "dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}'),
    "duplicate metadata": framed('{"__metadata__": {"a": "1", "a": "2"}}'),
    "metadata not text": framed('{"__metadata__": {"a": 1}}'),
    "metadata nested": framed('{"__metadata__": {"a": {}}}'),
    "NaN": framed('{"a": NaN}'),
    "NaN in offsets": framed('{"a": {"dtype": "F32", "shape": [2], "data_offsets": [NaN, Infinity]}}', bytes(8)),
    "null": framed('{"a": null}'),
    "trailing comma": framed('{"__metadata__": {"a": "b",}}'),
    "BOOL that is neither": framed('{"a": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}}', b"\x02"),
    "pickle": framed(b"\x80\x04\x95\x00\x00\x00\x00.", b""),
    "deep lists": framed('{"a":' + "[" * FILL),
    "deep objects": framed('{"a":' * (FILL // 5)),
    "wide lists": framed('{"a":{"shape":[' + "[]," * (FILL // 3)),
    "many numbers": framed('{"a":{"shape":[' + "1," * (FILL // 2)),
    "many fields": framed('{"a":{' + ",".join(f'"{n}":0' for n in range(FILL // 12))),
    "many notes": framed('{"__metadata__":{' + ",".join(f'"{n}":""' for n in range(FILL // 12)) + "}}"),
    "many tensors": framed(
        "{" + ",".join(f'"{n}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for n in range(FILL // 64)) + "}"
    ),
    "one endless name": framed('{"' + "a" * FILL),
    "one endless number": framed('{"a":{"shape":[' + "1" * FILL),
    "only spaces": framed("{" + " " * FILL),
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_refused_fast_and_costs_little(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(raw)
    started_s = time.process_time()
    with pytest.raises(Corrupt) as caught:
        tensors.read(raw)
    assert time.process_time() - started_s < 0.5
    assert len(str(caught.value)) < 400

    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            tensors.read(path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 32 << 20


def test_sizes_are_refused_before_the_header_is_there() -> None:
    with pytest.raises(Corrupt, match="claims"):
        tensors.header_bytes((TENSOR_FILE_HEADER_MAX_BYTES + 1).to_bytes(8, "little"), total_bytes=1 << 40)
    with pytest.raises(Corrupt, match="truncated"):
        tensors.parse_header((50).to_bytes(8, "little") + b"{", total_bytes=1000)


def test_the_limits_themselves_are_allowed() -> None:
    arrays = {f"t{n}": np.zeros(1, np.uint8) for n in range(TENSOR_COUNT_MAX)}
    notes = {f"n{n}": "" for n in range(TENSOR_FILE_NOTES_MAX)}
    back, metadata = tensors.read(written(arrays, notes))
    assert len(back) == TENSOR_COUNT_MAX
    assert metadata == notes
    deep = np.zeros((1,) * 32, np.uint8)
    assert tensors.read(written({"a": deep}))[0]["a"].shape == deep.shape


@pytest.mark.parametrize(
    ("arrays", "metadata"),
    [
        ({"a": np.zeros(1, complex)}, {}),
        ({"a": np.array(["text"])}, {}),
        ({"a": np.array([object()])}, {}),
        ({"__metadata__": np.zeros(1)}, {}),
        ({"\ud800": np.zeros(1)}, {}),
        ({"a": np.zeros(1)}, {"k": 1}),
        ({}, {"k": "v" * TENSOR_FILE_HEADER_MAX_BYTES}),
        ({}, {str(n): "" for n in range(TENSOR_FILE_NOTES_MAX + 1)}),
        ({str(n): np.zeros(0) for n in range(TENSOR_COUNT_MAX + 1)}, {}),
    ],
    ids=["complex", "text", "object", "reserved name", "surrogate", "note", "long note", "notes", "tensors"],
)
def test_what_could_not_be_read_back_is_not_written(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    file = io.BytesIO()
    with pytest.raises(Misuse):
        tensors.write(file, arrays, metadata)
    assert file.getvalue() == b""
