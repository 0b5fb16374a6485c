"""Safetensors files, read and written by our own code so that we set every limit.

A file is the length of its header (8 bytes, little-endian), a JSON header, and the tensors' bytes without a gap.
The header is read by its grammar, not as JSON in general: nesting, ``NaN``, huge numbers and duplicate keys
are refused at the character where they appear, before they cost memory.

numpy has no bfloat16: a BF16 tensor is read as ``uint16`` bit patterns, its header entry says BF16, and
``write(..., bfloat16={name})`` labels such an array again.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap as memory_map
import os
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from shoal.errors import Corrupt, Misuse
from shoal.wire.limits import (
    TENSOR_COUNT_MAX,
    TENSOR_DIMENSIONS_MAX,
    TENSOR_FILE_HEADER_MAX_BYTES,
    TENSOR_FILE_NOTES_MAX,
)

Array = npt.NDArray[Any]

#: The format's names for types that numpy has. The format's 8-bit floats and complex numbers are not among them.
DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAME_OF = {dtype.str: name for name, dtype in DTYPES.items() if name != "BF16"}

_LENGTH_BYTES = 8
_METADATA = "__metadata__"
#: Written headers end on a multiple of this, so that every tensor after them is aligned in a mapped file.
_ALIGNMENT_BYTES = 8
_SIZE_MAX_BYTES = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorEntry:
    """One tensor of a file. Offsets count from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """A file's contents, checked against the file's size, in the order in which the header names them."""

    data_start: int
    tensors: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]


# Writing ------------------------------------------------------------------------------------------


def write(
    file: BinaryIO,
    tensors: Mapping[str, Array],
    metadata: Mapping[str, str],
    *,
    bfloat16: AbstractSet[str] = frozenset(),
) -> None:
    """Stream tensors to ``file``. A contiguous little-endian array is not copied."""
    labels = {name: _label(name, array, as_bfloat16=name in bfloat16) for name, array in tensors.items()}
    # Widest first, as safetensors' own writer does: then every tensor starts on a multiple of its item size.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    file.write(_header(tensors, labels, order, metadata))
    for name in order:
        file.write(_raw(tensors[name]))


def _label(name: str, array: Array, *, as_bfloat16: bool) -> str:
    code = array.dtype.newbyteorder("<").str
    if name == _METADATA:
        raise Misuse(f"{_METADATA} is reserved by the format: give the tensor another name")
    if as_bfloat16:
        if code != DTYPES["BF16"].str:
            raise Misuse(f"tensor {name!r} is {array.dtype}; BF16 must be given as uint16 bit patterns")
        return "BF16"
    if code not in _NAME_OF:
        raise Misuse(f"tensor {name!r} has dtype {array.dtype}: convert it to one of {', '.join(DTYPES)}")
    if array.ndim > TENSOR_DIMENSIONS_MAX:
        raise Misuse(f"tensor {name!r} has {array.ndim} dimensions; the maximum is {TENSOR_DIMENSIONS_MAX}")
    return _NAME_OF[code]


def _header(
    tensors: Mapping[str, Array], labels: Mapping[str, str], order: list[str], metadata: Mapping[str, str]
) -> bytes:
    if len(tensors) > TENSOR_COUNT_MAX:
        raise Misuse(f"there are {len(tensors)} tensors; a file has at most {TENSOR_COUNT_MAX}: join some of them")
    if len(metadata) > TENSOR_FILE_NOTES_MAX:
        raise Misuse(f"there are {len(metadata)} metadata entries; a file has at most {TENSOR_FILE_NOTES_MAX}")
    if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise Misuse("metadata must map text to text: convert other values to JSON first")
    begin, spans = 0, {}
    for name in order:
        spans[name] = [begin, begin + tensors[name].nbytes]
        begin += tensors[name].nbytes
    content: dict[str, object] = {_METADATA: dict(metadata)} if metadata else {}
    for name, array in tensors.items():
        content[name] = {"dtype": labels[name], "shape": list(array.shape), "data_offsets": spans[name]}
    try:
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Misuse(f"a tensor name or metadata text is not valid Unicode: {error.reason}") from None
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    if len(text) > TENSOR_FILE_HEADER_MAX_BYTES:
        raise Misuse(
            f"the header has {len(text)} bytes; the maximum is {TENSOR_FILE_HEADER_MAX_BYTES}: "
            "shorten names and metadata, and put large values into a tensor"
        )
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _raw(array: Array) -> memoryview:
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8).data


# Reading ------------------------------------------------------------------------------------------


def read(
    source: Path | BinaryIO | bytes | bytearray | memoryview, *, mmap: bool = True, private: bool = False
) -> tuple[dict[str, Array], dict[str, str]]:
    """Return the tensors and the metadata of a file, given as a path, an open file or a buffer with its bytes.

    For a file, ``mmap=True`` gives read-only views of a mapping: nothing is copied, and the file may be unlinked but
    must not be truncated. With ``private`` the views are writable and the file does not change. ``mmap=False`` gives
    private writable arrays. For a buffer, the tensors are always read-only views of it.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        view = memoryview(source).cast("B").toreadonly()
        header = parse_header(view, total_bytes=len(view))
        return _arrays(header, view[header.data_start :]), dict(header.metadata)
    with source.open("rb") if isinstance(source, Path) else contextlib.nullcontext(source) as file:
        file.seek(0)
        total_bytes = os.fstat(file.fileno()).st_size
        head = file.read(_LENGTH_BYTES)
        head += file.read(header_bytes(head, total_bytes=total_bytes))
        header = parse_header(head, total_bytes=total_bytes)
        data = _mapped(file, header, total_bytes, private=private) if mmap else _loaded(file, header, total_bytes)
    return _arrays(header, data), dict(header.metadata)


def header_bytes(head: bytes | memoryview, *, total_bytes: int) -> int:
    """Return the length of the JSON header, from the first 8 bytes of a file of ``total_bytes``."""
    if len(head) < _LENGTH_BYTES or total_bytes < _LENGTH_BYTES:
        raise _corrupt(f"{min(len(head), total_bytes)} bytes are too few")
    length = int.from_bytes(head[:_LENGTH_BYTES], "little")
    if length > TENSOR_FILE_HEADER_MAX_BYTES:
        raise _corrupt(f"its header claims {length} bytes, the maximum is {TENSOR_FILE_HEADER_MAX_BYTES}")
    if length > total_bytes - _LENGTH_BYTES:
        raise _corrupt(f"its header claims {length} bytes of a file of {total_bytes}")
    return length


def parse_header(head: bytes | memoryview, *, total_bytes: int) -> Header:
    """Read and check a header. ``head`` is the start of the file, at least to the header's end.

    Afterwards every tensor's size follows from its dtype and shape, and the tensors fill the rest of the file
    exactly: no hole, no overlap, nothing outside.
    """
    length = header_bytes(head, total_bytes=total_bytes)
    data_start = _LENGTH_BYTES + length
    if len(head) < data_start:
        raise _corrupt("its header is truncated")
    try:
        text = bytes(head[_LENGTH_BYTES:data_start]).decode()
    except UnicodeDecodeError:
        raise _corrupt("its header is not UTF-8") from None
    tensors, metadata = _Scanner(text).header()
    _check_spans(tensors, data_bytes=total_bytes - data_start)
    return Header(data_start=data_start, tensors=tensors, metadata=metadata)


def _check_spans(tensors: Mapping[str, TensorEntry], *, data_bytes: int) -> None:
    at = 0
    for name, entry in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        itemsize = DTYPES[entry.dtype].itemsize
        # An empty tensor's other dimensions still have to fit what numpy can address.
        if itemsize * math.prod(max(size, 1) for size in entry.shape) > _SIZE_MAX_BYTES:
            raise _corrupt(f"tensor {_shown(name)} has an impossible shape")
        wanted_bytes = itemsize * math.prod(entry.shape)
        if entry.begin != at or entry.end - entry.begin != wanted_bytes:
            raise _corrupt(
                f"tensor {_shown(name)} of {wanted_bytes} bytes is at {entry.begin} to {entry.end}, "
                f"where {at} to {at + wanted_bytes} was expected"
            )
        at = entry.end
    if at != data_bytes:
        raise _corrupt(f"its tensors take {at} bytes, but the file has {data_bytes}")


def _mapped(file: BinaryIO, header: Header, total_bytes: int, *, private: bool) -> memoryview:
    access = memory_map.ACCESS_COPY if private else memory_map.ACCESS_READ
    try:
        mapping = memory_map.mmap(file.fileno(), total_bytes, access=access)
    except ValueError:  # shorter than it was a moment ago
        raise _corrupt("it changed while it was read") from None
    return memoryview(mapping)[header.data_start :]


def _loaded(file: BinaryIO, header: Header, total_bytes: int) -> memoryview:
    data = np.empty(total_bytes - header.data_start, np.uint8).data
    at = 0
    while at < len(data):
        count = file.readinto(data[at:])  # type: ignore[attr-defined]  # typeshed's BinaryIO lacks readinto
        if not count:
            raise _corrupt("it changed while it was read")
        at += count
    return data


def _arrays(header: Header, data: memoryview) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for name, entry in header.tensors.items():
        raw = np.frombuffer(data[entry.begin : entry.end], np.uint8)
        if entry.dtype == "BOOL" and raw.size and raw.max() > 1:
            raise _corrupt(f"tensor {_shown(name)} is BOOL but has bytes other than 0 and 1")
        arrays[name] = raw.view(DTYPES[entry.dtype]).reshape(entry.shape)
    return arrays


class _Scanner:
    """Reads the header's grammar: ``{name: {dtype, shape, data_offsets} | __metadata__: {text: text}}``."""

    _SPACE = re.compile(r"[ \t\n\r]*+")
    #: Up to 19 digits: no offset has more. The caller checks the text after the number.
    _WHOLE = re.compile(r"0|[1-9][0-9]{0,18}")
    _TEXT = json.JSONDecoder()

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def header(self) -> tuple[dict[str, TensorEntry], dict[str, str]]:
        tensors: dict[str, TensorEntry] = {}
        metadata: dict[str, str] = {}
        if not self._text.startswith("{"):
            raise _corrupt("its header does not start with {")
        for name in self._members(most=TENSOR_COUNT_MAX + 1):
            if name == _METADATA:
                metadata = {key: self._string() for key in self._members(most=TENSOR_FILE_NOTES_MAX)}
            else:
                tensors[name] = self._entry(name)
        if len(tensors) > TENSOR_COUNT_MAX:
            raise _corrupt(f"it names more than {TENSOR_COUNT_MAX} tensors")
        self._skip_space()
        if self._at != len(self._text):
            raise self._unexpected("the end")
        return tensors, metadata

    def _entry(self, name: str) -> TensorEntry:
        dtype: str | None = None
        shape: tuple[int, ...] | None = None
        span: tuple[int, ...] = ()
        for key in self._members(most=3):
            match key:
                case "dtype":
                    dtype = self._string()
                case "shape":
                    shape = self._whole_numbers(most=TENSOR_DIMENSIONS_MAX)
                case "data_offsets":
                    span = self._whole_numbers(most=2)
                case _:
                    raise _corrupt(f"tensor {_shown(name)} has an unknown field {_shown(key)}")
        if dtype is None or shape is None or len(span) != 2:
            raise _corrupt(f"tensor {_shown(name)} lacks its dtype, its shape or its two offsets")
        if dtype not in DTYPES:
            raise _corrupt(f"tensor {_shown(name)} has dtype {_shown(dtype)}, not one of {', '.join(DTYPES)}")
        return TensorEntry(dtype=dtype, shape=shape, begin=span[0], end=span[1])

    def _members(self, *, most: int) -> Iterator[str]:
        """Yield the keys of an object. The caller must read a key's value before it asks for the next key."""
        seen: set[str] = set()
        self._expect("{")
        if self._take("}"):
            return
        while True:
            key = self._string()
            if key in seen:
                raise _corrupt(f"its header names {_shown(key)} twice")
            seen.add(key)
            if len(seen) > most:
                raise _corrupt(f"an object of its header has more than {most} keys")
            self._expect(":")
            yield key
            if self._take("}"):
                return
            self._expect(",")

    def _whole_numbers(self, *, most: int) -> tuple[int, ...]:
        numbers: list[int] = []
        self._expect("[")
        if self._take("]"):
            return ()
        while True:
            self._skip_space()
            found = self._WHOLE.match(self._text, self._at)
            if found is None:
                raise self._unexpected("an integer")
            numbers.append(int(found[0]))
            self._at = found.end()
            if self._take("]"):
                return tuple(numbers)
            if len(numbers) == most:
                raise _corrupt(f"a list of its header has more than {most} numbers")
            self._expect(",")

    def _string(self) -> str:
        self._skip_space()
        if not self._text.startswith('"', self._at):
            raise self._unexpected("text")
        try:
            value, self._at = self._TEXT.raw_decode(self._text, self._at)
            value.encode()  # refuses a lone surrogate, which no file or log could take
        except ValueError:
            raise self._unexpected("valid text") from None
        return str(value)

    def _expect(self, char: str) -> None:
        if not self._take(char):
            raise self._unexpected(char)

    def _take(self, char: str) -> bool:
        self._skip_space()
        if not self._text.startswith(char, self._at):
            return False
        self._at += 1
        return True

    def _skip_space(self) -> None:
        found = self._SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _unexpected(self, wanted: str) -> Corrupt:
        got = _shown(self._text[self._at : self._at + 16]) if self._at < len(self._text) else "the end"
        return _corrupt(f"its header has {got} at character {self._at}, where {wanted} was expected")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 64 else text[:61] + "...")


def _corrupt(reason: str) -> Corrupt:
    return Corrupt(f"not a usable safetensors file: {reason}; fetch or write it again")
