"""Atomically written files that other users may read, as this user's umask allows: models, examples, caches.

``files`` keeps its files private, as temporary files are. A pulled model or a downloaded dataset is not secret, and
another user's service may read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shoal.store.files import AtomicFile, telling_disk_full, write_atomically


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """A file that its hash names."""

    sha256: str
    size_bytes: int
    #: Whether the directory had no file of that name.
    is_new: bool


def write_by_hash(directory: Path, write: Callable[[BinaryIO], object]) -> Named:
    """Write a file that others may read, and name it by its hash."""
    with telling_disk_full(directory):
        pending = AtomicFile(directory)
        try:
            write(pending.file)
            sha256, size_bytes = pending.sha256, pending.size_bytes
            let_others_read(pending.file)
            is_new = not (directory / sha256).exists()
            pending.commit(directory / sha256)
        finally:
            pending.abort()
    return Named(sha256=sha256, size_bytes=size_bytes, is_new=is_new)


def write_readable(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file like ``write_atomically``, but with the permissions of an ordinary new file."""

    def write_and_open(file: BinaryIO) -> None:
        write(file)
        let_others_read(file)

    write_atomically(path, write_and_open)


def let_others_read(file: BinaryIO) -> None:
    """Give an open file the permissions of an ordinary new file."""
    # The umask can only be read by setting it. Until it is restored, other threads' new files are private.
    umask = os.umask(0o077)
    os.umask(umask)
    os.fchmod(file.fileno(), 0o666 & ~umask)
