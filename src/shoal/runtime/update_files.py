"""Room for what a leader holds and seldom reads: small arrays in memory, large ones in a file that has no name. These
are the updates that a robust leader compares, and the version that it would go back to.

The kernel writes pages of such a file out when memory is short, and the file goes with the process. Its blocks are
taken when it is made: a disk that fills up later cannot stop a leader in the middle of a version.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from shoal.roles.leader.memory import GetBack, Memory, PutAway, keep
from shoal.roles.leader.weighing import Room, in_memory
from shoal.wire.limits import UPLOAD_BUDGET_BYTES, UPLOAD_SHARED_MAX_BYTES, VALUE_BYTES

log = logging.getLogger(__name__)

#: Up to this much lies in memory: as much as a leader lends to uploads.
MEMORY_BYTES = UPLOAD_BUDGET_BYTES


def memory_in(folder: Path) -> Memory:
    """Return how a real leader holds its arrays, with large ones on the disk that this folder is on."""
    return Memory(room=room_in(folder), put_away=put_away_in(folder), owned_from_bytes=UPLOAD_SHARED_MAX_BYTES + 1)


def put_away_in(folder: Path, *, memory_bytes: int = MEMORY_BYTES) -> PutAway:
    """Return what writes large arrays to a file and reads them back. The file goes with what reads it."""

    def put_away(arrays: Sequence[np.ndarray]) -> GetBack:
        wanted_bytes = sum(array.nbytes for array in arrays)
        if wanted_bytes <= memory_bytes:
            return keep(arrays)
        try:
            return _written(arrays, folder)
        except OSError as error:
            log.warning(
                "no room for %d MB of the version to go back to in %s (%s): it is held in memory",
                wanted_bytes >> 20,
                folder,
                error,
            )
            return keep(arrays)

    return put_away


def _written(arrays: Sequence[np.ndarray], folder: Path) -> GetBack:
    file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  # open as long as it may be read
    try:
        for array in arrays:
            array.tofile(file)
        file.flush()
    except BaseException:
        file.close()
        raise
    shapes = [(array.dtype, array.shape) for array in arrays]
    weakref.finalize(get := _Reader(file, shapes), file.close)
    return get


class _Reader:
    """Reads arrays that were put away. Calling it twice reads them twice."""

    def __init__(self, file: IO[bytes], shapes: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> None:
        self._file, self._shapes = file, shapes

    def __call__(self) -> list[np.ndarray]:
        self._file.seek(0)
        arrays = []
        for dtype, shape in self._shapes:
            array = np.fromfile(self._file, dtype=dtype, count=math.prod(shape)).reshape(shape)
            array.flags.writeable = False
            arrays.append(array)
        return arrays


def room_in(folder: Path, *, memory_bytes: int = MEMORY_BYTES) -> Room:
    """Room on the disk that this folder is on."""

    def room(rows: int, size: int) -> np.ndarray:
        wanted_bytes = rows * size * VALUE_BYTES
        if wanted_bytes <= memory_bytes:
            return in_memory(rows, size)
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                os.truncate(file.fileno(), wanted_bytes)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, wanted_bytes)
                mapped = mmap.mmap(file.fileno(), wanted_bytes)
        except OSError as error:
            log.warning(
                "no room for %d MB of updates in %s (%s): they are held in memory", wanted_bytes >> 20, folder, error
            )
            return in_memory(rows, size)
        return np.frombuffer(mapped, dtype=np.float32).reshape(rows, size)

    return room
