"""Memory that a process shares with its child, as large as was ever needed.

A pipe would carry the same in pieces of 64 kB, and on a busy machine each waits for its turn: a tile took a hundred
times as long to hand over as to multiply.

As in ``trainer.shared``: its owner maps it only if it is sealed against being cut short, and copies otherwise.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
from collections.abc import Sequence

import numpy as np

from shoal.trainer.shared import anonymous_file, read_at, reserve, seal, write_at

#: Arrays begin on such a multiple.
ALIGNMENT_BYTES = 64


def aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Arena:
    def __init__(self, fd: int | None = None) -> None:
        """A new one, or the one behind this descriptor."""
        self.fd = anonymous_file() if fd is None else fd
        self._is_ours = fd is None
        #: Whether touching a mapping of it cannot end this process.
        self._is_safe = not self._is_ours or seal(self.fd, growing=True)
        self._map: mmap.mmap | None = None

    def grow(self, size_bytes: int) -> None:
        """Have at least this much; only its owner may grow it."""
        if os.fstat(self.fd).st_size < size_bytes:
            reserve(self.fd, -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)

    def at(self, offset: int, dtype: str, shape: Sequence[int]) -> np.ndarray:
        """An array there; a view, good until the arena is used for something else."""
        count = math.prod(shape)
        mapped = self._mapped(offset + count * np.dtype(dtype).itemsize)
        return np.frombuffer(mapped, dtype, count, offset).reshape(tuple(shape))

    def copy(self, offset: int, dtype: str, shape: Sequence[int]) -> np.ndarray:
        """A copy of the array there."""
        if self._is_safe:
            return np.array(self.at(offset, dtype, shape))
        array = np.empty(tuple(shape), dtype)
        read_at(self.fd, array, offset)
        return array

    def put(self, offset: int, array: np.ndarray) -> int:
        """Copy an array there, and return the offset where the next may begin."""
        if array.size and not self._is_safe:
            write_at(self.fd, array, offset)
        elif array.size:
            self.at(offset, array.dtype.name, array.shape)[...] = array
        return aligned(offset + array.nbytes)

    def close(self) -> None:
        self._unmap()
        if self._is_ours:
            os.close(self.fd)

    def _mapped(self, size_bytes: int) -> mmap.mmap:
        if self._map is None or len(self._map) < size_bytes:
            self._unmap()
            self._map = mmap.mmap(self.fd, os.fstat(self.fd).st_size)
        return self._map

    def _unmap(self) -> None:
        mapped, self._map = self._map, None
        if mapped is not None:
            # A view that someone still holds keeps it until it is dropped.
            with contextlib.suppress(BufferError):
                mapped.close()
