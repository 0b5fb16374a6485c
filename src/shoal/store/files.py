"""Files that are whole or absent, whatever happens while they are written. Knows paths and bytes, not contents."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from shoal.errors import ShoalError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_PREFIX, _SUFFIX = ".shoal-", ".tmp"
#: A cleaner can only win the race for a fresh temporary file while a store is being opened.
_CREATE_ATTEMPTS = 100
#: A directory that may not be read, or lies on a disk that is never written, holds no name that we made.
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL)


class DiskFull(ShoalError):
    """A disk has no room for what was to be written. What it held before is untouched."""


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Put what ``write`` produces at ``path``, durably. On failure ``path`` is as it was and nothing is left over.

    Only its owner can read the file, as with a temporary file.
    """
    with telling_disk_full(path.parent):
        pending = AtomicFile(path.parent)
        try:
            write(pending.file)
            pending.commit(path)
        finally:
            pending.abort()


def drawn_once(path: Path, *, prefix: str = "") -> str:
    """A name that no other file of this kind has: drawn when it is first asked for, and kept there."""
    if not path.exists():
        name = f"{prefix}{os.urandom(8).hex()}".encode()
        write_atomically(path, lambda file: file.write(name))
    return path.read_text()


class AtomicFile:
    """A temporary file that becomes a durable one under a name that may depend on its hash, or disappears.

    It is locked while it is open, and the lock dies with the process: that is how ``remove_stale`` tells a
    leftover from a file that somebody is still writing.
    """

    def __init__(self, directory: Path) -> None:
        self._temporary, descriptor = _locked_temporary(directory)
        self._file = _HashingWriter(io.FileIO(descriptor, "wb"))

    @property
    def file(self) -> BinaryIO:
        """Where to write, in order: the hash follows the stream, so it must not be sought in."""
        return self._file

    @property
    def size_bytes(self) -> int:
        return self._file.size_bytes

    @property
    def sha256(self) -> str:
        return self._file.hash.hexdigest()

    def written(self) -> Path:
        """Return a path from which the bytes already written can be read, until ``commit`` or ``abort``."""
        self._file.flush()
        return self._temporary

    def commit(self, path: Path) -> None:
        """Make the bytes durable, then the name."""
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._temporary, path)
        self._file.close()
        sync_directory(path.parent)

    def abort(self) -> None:
        """Remove the temporary file; without effect after ``commit``."""
        if self._file.closed:
            return
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk fails again at the last flush
            self._file.close()


class _HashingWriter(io.BufferedWriter):
    def __init__(self, raw: io.FileIO) -> None:
        # An idle agent writes no such file (see `identity.chain`).
        import hashlib

        super().__init__(raw)
        self.hash = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: ReadableBuffer, /) -> int:
        written = super().write(data)
        self.hash.update(data)
        self.size_bytes += written
        return written


def _locked_temporary(directory: Path) -> tuple[Path, int]:
    for _ in range(_CREATE_ATTEMPTS):
        path = directory.absolute() / f"{_PREFIX}{os.urandom(8).hex()}{_SUFFIX}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # a cleaner took it between its creation and its lock
    raise ShoalError(f"{directory}: temporary files disappear as they are made; what else cleans this directory?")


def remove_stale(directory: Path) -> None:
    """Remove the temporary files of writers that died. Files still being written are locked, and stay."""
    for path in sorted(directory.glob(f"{_PREFIX}*{_SUFFIX}")):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            path.unlink()


def bytes_below(path: Path) -> int:
    """The bytes of a file, or of all files below a folder. Files may go meanwhile."""
    found = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    total = 0
    for file in found if path.is_dir() else (path,):
        with contextlib.suppress(OSError):
            total += os.lstat(file).st_size
    return total


def make_directory(directory: Path) -> None:
    """Create a directory and its parents, durably. One that is there may still owe its durability to us."""
    with telling_disk_full(directory):
        missing = list(itertools.takewhile(lambda path: not path.exists(), (directory, *directory.parents)))
        # The process that made the deepest existing directory may have died before its name was durable. The ones
        # above it are durable: each is made only once its parent is.
        _sync_if_ours((missing[-1].parent if missing else directory).parent)
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            sync_directory(path.parent)
        directory.mkdir(exist_ok=True)  # says so where a file is in the way


def _sync_if_ours(directory: Path) -> None:
    try:
        sync_directory(directory)
    except OSError as error:
        if error.errno not in _NOT_OURS:
            raise


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable: a renamed or removed file is one only after this."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def telling_disk_full(directory: Path) -> Iterator[None]:
    """Turn the system's "no space left" into an error that says where, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFull(
            f"the disk that holds {directory} is full ({_room(directory)}): free space on it, then try again; "
            "what was stored there before is untouched"
        ) from error


def free_bytes_at(directory: Path) -> int:
    """Return how many more bytes the disk of this directory takes."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


def _room(directory: Path) -> str:
    try:
        disk = os.statvfs(directory)
    except OSError:
        return "its size cannot be read"
    free, total = (blocks * disk.f_frsize / 1e6 for blocks in (disk.f_bavail, disk.f_blocks))
    return f"{free:.1f} MB free of {total:.1f} MB"
