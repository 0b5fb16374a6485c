"""Room for the updates that a robust leader compares: small ones in memory, large ones in a file that has no name.

The kernel writes pages of such a file out when memory is short, and the file goes with the process. Its blocks are
taken when it is made: a disk that fills up later cannot stop a leader in the middle of a version.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
from pathlib import Path

import numpy as np

from shoal.roles.leader.weighing import Room, in_memory
from shoal.wire.limits import UPLOAD_BUDGET_BYTES, VALUE_BYTES

log = logging.getLogger(__name__)

#: Up to this much lies in memory: as much as a leader lends to uploads.
MEMORY_BYTES = UPLOAD_BUDGET_BYTES


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
