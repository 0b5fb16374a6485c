"""Float32 vectors that an agent and its trainer both see: the model going in, the update coming out. No torch.

If the device has its own part of the model, there are two more, for the values before a lease and after it.

The memory has no name, so nothing is left behind however the two processes end. multiprocessing.shared_memory would
start a third process to clean up names.

SIGBUS kills a process that touches a mapping beyond the end of its file. So the agent maps only memory that is sealed:
nobody, not even the trainer, can truncate it. Where the system cannot seal, the agent maps nothing and copies with
``give`` and ``take``; a truncated file is then an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import tempfile
from typing import Any, Self, TypeAlias

import numpy as np

from shoal.errors import Corrupt, Misuse
from shoal.learning.layout import SIZE_MAX

Vector: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

_COPY_BYTES = 1 << 20


class SharedVectors:
    """Made by the agent with ``create``, mapped by the trainer with ``attach`` from the inherited descriptor."""

    model: Vector
    update: Vector
    #: The device's own part of the model, as a lease begins and as it ends.
    own: Vector
    own_after: Vector

    def __init__(self, fd: int, size: int, own: int = 0, *, mapped: bool = True) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = mmap.mmap(fd, _total_bytes(size, own)) if mapped else None
        self._open = True
        #: The offsets of the last two vectors.
        self._own_at = _total_bytes(size), _total_bytes(size) + _region_bytes(own)
        if self._map is None:
            self.model, self.update = np.zeros(size, np.float32), np.zeros(size, np.float32)
            self.own, self.own_after = np.zeros(own, np.float32), np.zeros(own, np.float32)
        else:
            self.model = np.frombuffer(self._map, np.float32, size)
            self.update = np.frombuffer(self._map, np.float32, size, offset=_region_bytes(size))
            none = np.zeros(0, np.float32)
            self.own, self.own_after = (
                np.frombuffer(self._map, np.float32, own, offset=at) if own else none for at in self._own_at
            )

    @classmethod
    def create(cls, size: int, own: int = 0) -> Self:
        """Reserve memory for two vectors of ``size`` values and two of ``own``, all zero."""
        if not (1 <= size <= SIZE_MAX and 0 <= own <= SIZE_MAX):
            raise Misuse(f"a shared vector holds 1 to {SIZE_MAX:,} values, not {size:,} and {own:,}")
        fd = anonymous_file()
        try:
            reserve(fd, _total_bytes(size, own))
            return cls(fd, size, own, mapped=seal(fd, growing=False))
        except OSError as error:
            os.close(fd)
            raise Misuse(f"no room for {_total_bytes(size, own):,} bytes of shared memory: {error}") from None

    @classmethod
    def attach(cls, fd: int, size: int, own: int = 0) -> Self:
        """Map what ``create`` made."""
        if size < 1 or os.fstat(fd).st_size != _total_bytes(size, own):
            raise Misuse(f"the shared memory does not hold two vectors of {size} values and two of {own}")
        return cls(fd, size, own)

    def give(self) -> None:
        """Make ``model`` and ``own`` visible to the other process. Nothing to do where the memory is mapped."""
        if self._map is None and self._open:
            write_at(self.fd, self.model, 0)
            write_at(self.fd, self.own, self._own_at[0])

    def take(self) -> None:
        """Fetch ``update`` and ``own_after`` as the other process left it. Nothing to do where the memory is mapped."""
        if self._map is None and self._open:
            read_at(self.fd, self.update, _region_bytes(self.update.size))
            read_at(self.fd, self.own_after, self._own_at[1])

    def close(self) -> None:
        """Release the memory. A view that is still in use stays valid and keeps the memory until it is dropped."""
        if not self._open:
            return
        self._open = False
        mapped, self._map = self._map, None
        self.model = self.update = self.own = self.own_after = np.zeros(0, np.float32)
        if mapped is not None:
            with contextlib.suppress(BufferError):
                mapped.close()
        os.close(self.fd)


def _region_bytes(size: int) -> int:
    return -(-4 * size // mmap.PAGESIZE) * mmap.PAGESIZE


def _total_bytes(size: int, own: int = 0) -> int:
    return 2 * _region_bytes(size) + 2 * _region_bytes(own)


def anonymous_file() -> int:
    # The size of /dev/shm, which containers set to 64 MB, does not limit Linux's memfd.
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            return os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def reserve(fd: int, count: int) -> None:
    """Allocate the pages now: a full disk must be an error here, not a SIGBUS in the middle of a copy."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, count)
    else:
        os.ftruncate(fd, count)


def seal(fd: int, *, growing: bool) -> bool:
    """Forbid truncating this memory, for good, and growing it unless ``growing``. Return whether that worked."""
    if not hasattr(fcntl, "F_ADD_SEALS"):
        return False
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL | (0 if growing else fcntl.F_SEAL_GROW)
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals == seals
    except OSError:
        # It is a file, or the kernel cannot seal.
        return False


def write_at(fd: int, array: np.ndarray[Any, Any], offset: int) -> None:
    """Copy an array into a file that another process may have truncated meanwhile."""
    rest = np.ascontiguousarray(array).data.cast("B") if array.size else memoryview(b"")
    while rest:
        count = os.pwrite(fd, rest, offset)
        rest, offset = rest[count:], offset + count


def read_at(fd: int, array: np.ndarray[Any, Any], offset: int) -> None:
    """Fill a contiguous array from a file; an error if the file ends before the array does."""
    rest = array.data.cast("B") if array.size else memoryview(b"")
    while rest:
        part = os.pread(fd, min(len(rest), _COPY_BYTES), offset)
        if not part:
            raise Corrupt("the memory that is shared with this process was cut short by the other one")
        rest[: len(part)] = part
        rest, offset = rest[len(part) :], offset + len(part)
