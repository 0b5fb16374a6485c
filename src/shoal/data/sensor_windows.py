"""Windows of recordings in .npy files, mapped and never read whole. Numpy only; files may come and grow meanwhile."""

from __future__ import annotations

import functools
import glob as paths
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import Corrupt, Misuse

#: Recordings that stay mapped.
_MAPPED_MAX = 32


@dataclass(frozen=True, slots=True)
class _Recording:
    path: str
    dtype: np.dtype[Any]
    #: The shape of the values of all channels at one moment.
    shape: tuple[int, ...]
    offset: int
    moments: int


class Windows:
    """A Dataset of arrays: ``length`` moments each, a new one every ``hop`` moments, file after file by name."""

    def __init__(self, pattern: str | Path, length: int, hop: int) -> None:
        if length < 1 or hop < 1:
            raise Misuse(f"a window of {length} moments every {hop}: both are at least 1")
        self._length, self._hop = length, hop
        self._files = [_recording(path) for path in sorted(paths.glob(str(pattern), recursive=True))]
        for file in self._files[1:]:
            first = self._files[0]
            if (file.dtype, file.shape) != (first.dtype, first.shape):
                other = f"{first.path} of {first.dtype} {first.shape}"
                raise Corrupt(f"{file.path} holds moments of {file.dtype} {file.shape}, and {other}")
        counts = [max(0, (file.moments - length) // hop + 1) for file in self._files]
        self._ends = np.cumsum(counts, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"there are windows 0 to {len(self) - 1}, not {index}")
        at = int(np.searchsorted(self._ends, index, side="right"))
        start = (index - (int(self._ends[at - 1]) if at else 0)) * self._hop
        return np.array(_mapped(self._files[at])[start : start + self._length])


def _recording(path: str) -> _Recording:
    try:
        with open(path, "rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = read(file)
            offset, size_bytes = file.tell(), os.fstat(file.fileno()).st_size
    except (ValueError, OSError) as error:
        raise Corrupt(f"{path} is no .npy file: {error}") from None
    if is_fortran or dtype.hasobject or not shape:
        raise Corrupt(f"{path}: a recording is an array of numbers whose rows follow each other in time (C order)")
    # By its size: a recorder may append to a file whose header still says how long it was.
    row_bytes = dtype.itemsize * int(np.prod(shape[1:]))
    moments = (size_bytes - offset) // row_bytes if row_bytes else 0
    return _Recording(path, dtype, tuple(shape[1:]), offset, moments)


@functools.lru_cache(_MAPPED_MAX)
def _mapped(file: _Recording) -> np.ndarray[Any, Any]:
    return np.memmap(file.path, file.dtype, "r", file.offset, (file.moments, *file.shape))


def windows(pattern: str | Path, length: int, hop: int = 0) -> Windows:
    """Windows over every .npy file that a pattern such as ``folder/*.npy`` finds: arrays of (moments, channels...).

    A file that is appended to, or a new one whose name sorts last, adds windows at the end. ``hop`` 0: windows do not
    overlap.
    """
    return Windows(pattern, length, hop or length)
