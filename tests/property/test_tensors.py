"""Safetensors files: what goes in comes out, and no bytes make the reader fail in a way it does not name."""

from __future__ import annotations

import io

import numpy as np
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.errors import Corrupt
from shoal.wire import tensors

DTYPES = st.sampled_from([dtype for name, dtype in tensors.DTYPES.items() if name != "BF16"])
ARRAYS = DTYPES.flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAMES = TEXT.filter(lambda name: name != "__metadata__")


def written(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    file = io.BytesIO()
    tensors.write(file, arrays, metadata)
    return file.getvalue()


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and left[name].tobytes() == right[name].tobytes()
        for name in left
    )


@given(arrays=st.dictionaries(NAMES, ARRAYS, max_size=5), metadata=st.dictionaries(TEXT, TEXT, max_size=3))
@settings(deadline=None, max_examples=200)
def test_tensors_round_trip_through_us_and_through_the_reference(
    arrays: dict[str, np.ndarray], metadata: dict[str, str]
) -> None:
    raw = written(arrays, metadata)
    back, notes = tensors.read(raw)
    assert list(back) == list(arrays)
    assert same(back, arrays)
    assert notes == metadata
    assert same(safetensors.numpy.load(raw), arrays)
    assert same(tensors.read(safetensors.numpy.save(arrays, metadata or None))[0], arrays)


def refused_or_read(raw: bytes) -> None:
    try:
        arrays, _ = tensors.read(raw)
    except Corrupt:
        return
    assert sum(array.nbytes for array in arrays.values()) <= len(raw)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=300)
def test_random_bytes_are_refused_by_name(raw: bytes) -> None:
    refused_or_read(raw)


WORDS = '"a" "dtype" "shape" "data_offsets" "__metadata__" "F32" "BOOL" "\\ud800" 0 1 4 -1 1e9 NaN null true'
FRAGMENTS = st.sampled_from([*'{}[],: "\\\0', *WORDS.split(), "9" * 30])


@given(st.lists(FRAGMENTS, max_size=40), st.binary(max_size=16))
@settings(deadline=None, max_examples=300)
def test_headers_of_the_right_pieces_in_any_order_are_refused_by_name(pieces: list[str], data: bytes) -> None:
    header = ("{" + "".join(pieces)).encode()
    refused_or_read(len(header).to_bytes(8, "little") + header + data)


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_a_damaged_file_is_refused_by_name_or_still_well_formed(data: st.DataObject) -> None:
    raw = bytearray(written({"a": np.arange(4, dtype=np.float32), "b": np.ones(3, bool)}, {"k": "v"}))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    refused_or_read(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
