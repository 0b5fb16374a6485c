"""How this process keeps freed memory. A node frees and takes the same few megabytes every round."""

from __future__ import annotations

import contextlib
import ctypes

#: Parameters of glibc's mallopt(3), and what we set them to.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
#: What a node with small models keeps, and one that leads a large model: next to that, 48 MB would be much.
KEPT_BYTES = 48 << 20
KEPT_BY_LARGE_BYTES = 8 << 20
_GROWN_BY_BYTES = 4 << 20
#: The largest that glibc takes.
_MAPPED_FROM_BYTES = 32 << 20
#: By default there are eight heaps a core, and what lies free in one is of no use to the threads of another.
_ARENAS = 2


def keep_freed_memory(kept_bytes: int = KEPT_BYTES) -> None:
    """Let malloc reuse what was freed instead of returning it and faulting every page in again.

    By default a chunk of a model is given back to the kernel and taken again, zeroed, in every round: much of a
    busy leader's processor time. Where the C library is not glibc this does nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, kept_bytes)
        libc.mallopt(_TOP_PAD, _GROWN_BY_BYTES)
        libc.mallopt(_ARENA_MAX, _ARENAS)


def return_freed_memory() -> None:
    """Return to the system what ``keep_freed_memory`` kept, after work that is over. glibc only; may take a moment."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
