"""How many files this process may have open, and how many of them may be connections."""

from __future__ import annotations

import os
import resource

from shoal.wire.limits import (
    CONNECTION_BYTES,
    CONNECTIONS_FILE_SHARE,
    CONNECTIONS_LEAST,
    CONNECTIONS_MAX,
    CONNECTIONS_MEMORY_SHARE,
    OPEN_FILES_WANTED,
)

#: A device has a connection for control, and one for work while it has some.
CONNECTIONS_A_DEVICE = 2


def attainable(soft: int, hard: int) -> int:
    """Return how many files a process may open after raising its limit as far as Shoal needs."""
    most = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    return OPEN_FILES_WANTED if soft == resource.RLIM_INFINITY else max(soft, most)


def raise_limit() -> int:
    """Raise this process's limit of open files as far as the system allows and Shoal needs. Return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = attainable(soft, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            # Some systems have a lower bound than the hard limit says: what we have must do.
            return soft
    return wanted


def connections_max(files: int | None = None, *, memory_bytes: int | None = None) -> int:
    """Connections that one door takes at once. Well below the limit of files: checkpoints and blobs are files as well.

    ``files`` and ``memory_bytes``: None: as many as this process and this machine have."""
    if memory_bytes is None:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if files is None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    by_memory = int(memory_bytes * CONNECTIONS_MEMORY_SHARE / CONNECTION_BYTES)
    most = min(CONNECTIONS_MAX, max(CONNECTIONS_LEAST, by_memory))
    if files == resource.RLIM_INFINITY:
        return most
    return max(1, min(most, int(files * CONNECTIONS_FILE_SHARE)))


def is_full(devices: int, *, connections: int | None = None) -> bool:
    """Whether a manager holds as many devices as can work at once. ``connections``: None if as many as this process
    may have."""
    return devices >= (connections_max() if connections is None else connections) // CONNECTIONS_A_DEVICE
