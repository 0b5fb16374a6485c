"""Two float32 vectors that an agent and its trainer both see: the model going in, the update coming out. No torch.

The memory has no name, so nothing is left behind when both die however they die. multiprocessing.shared_memory would
start a third process to clean up after names.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from typing import Any, Self, TypeAlias

import numpy as np

from shoal.errors import Misuse
from shoal.learning.layout import SIZE_MAX

Vector: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


class SharedVectors:
    """Made by the agent with ``create``, mapped by the trainer with ``attach`` from the inherited descriptor."""

    model: Vector
    update: Vector

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = mmap.mmap(fd, _total_bytes(size))
        self.model = np.frombuffer(self._map, np.float32, size)
        self.update = np.frombuffer(self._map, np.float32, size, offset=_region_bytes(size))

    @classmethod
    def create(cls, size: int) -> Self:
        """Reserve memory for two vectors of ``size`` values, all zero."""
        if not 1 <= size <= SIZE_MAX:
            raise Misuse(f"a shared vector holds 1 to {SIZE_MAX:,} values, not {size:,}")
        fd = anonymous_file()
        try:
            reserve(fd, _total_bytes(size))
            return cls(fd, size)
        except OSError as error:
            os.close(fd)
            raise Misuse(f"no room for {_total_bytes(size):,} bytes of shared memory: {error}") from None

    @classmethod
    def attach(cls, fd: int, size: int) -> Self:
        """Map what ``create`` made."""
        if size < 1 or os.fstat(fd).st_size != _total_bytes(size):
            raise Misuse(f"the shared memory does not hold two vectors of {size} values")
        return cls(fd, size)

    def close(self) -> None:
        """Let go. A view someone still holds stays valid and keeps the memory until it is dropped."""
        if self._map is None:
            return
        mapped, self._map = self._map, None
        self.model = self.update = np.zeros(0, np.float32)
        with contextlib.suppress(BufferError):
            mapped.close()
        os.close(self.fd)


def _region_bytes(size: int) -> int:
    return -(-4 * size // mmap.PAGESIZE) * mmap.PAGESIZE


def _total_bytes(size: int) -> int:
    return 2 * _region_bytes(size)


def anonymous_file() -> int:
    # Linux's memfd is not bounded by the size of /dev/shm, which containers set to 64 MB.
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            return os.memfd_create("shoal")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def reserve(fd: int, count: int) -> None:
    """Take the pages now: a full disk must be an error here, not a SIGBUS in the middle of a copy."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, count)
    else:
        os.ftruncate(fd, count)
