"""Blobs: bytes stored under their own SHA-256."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from shoal.errors import Corrupt, Misuse, PeerViolation
from shoal.store.files import (
    AtomicFile,
    DiskFull,
    free_bytes_at,
    make_directory,
    remove_stale,
    sync_directory,
    telling_disk_full,
)
from shoal.wire.limits import BLOB_MAX_BYTES, BLOB_READ_MAX_BYTES, CHUNK_BYTES

HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class BlobFacts:
    size_bytes: int
    modified_s: float


def read_small(path: Path) -> bytes:
    """Return the bytes of a blob's file, which must be small enough to read into memory."""
    if (size_bytes := path.stat().st_size) > BLOB_READ_MAX_BYTES:
        raise Corrupt(f"a blob of {size_bytes} bytes is not read into memory; the limit is {BLOB_READ_MAX_BYTES}")
    return path.read_bytes()


class BlobStore:
    """A directory of blobs, fanned out by the first two digits of their hash.

    Hashes come from peers, so a malformed one is a ``PeerViolation`` and never becomes a path.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        make_directory(directory)
        remove_stale(directory)

    def put(self, data: bytes | Path) -> str:
        """Store bytes or a copy of a file, and return their hash. Storing them again has no effect."""
        if isinstance(data, bytes):
            return self._put(io.BytesIO(data), size_bytes=len(data))
        with data.open("rb") as file:
            return self._put(file, size_bytes=data.stat().st_size)

    def _put(self, source: io.BytesIO | io.BufferedReader, *, size_bytes: int) -> str:
        if size_bytes > BLOB_MAX_BYTES:
            raise Misuse(f"the blob has {size_bytes} bytes; the maximum is {BLOB_MAX_BYTES}: split it into shards")
        # Reading twice spares a flash card from writing a blob that it already has.
        sha256 = _sha256(source)
        if self.has(sha256):
            return sha256
        source.seek(0)
        with self.writer(sha256, size_bytes) as writer:
            try:
                writer.take(source)
            except PeerViolation as error:
                raise Misuse(f"the file changed while it was stored ({error.reason}): try again") from None
        return sha256

    def make(self, write: Callable[[BinaryIO], object]) -> tuple[str, int]:
        """Store what ``write`` produces, durably. Return its hash and size."""
        with telling_disk_full(self._directory):
            pending = AtomicFile(self._directory)
            try:
                write(pending.file)
                sha256, size_bytes = pending.sha256, pending.size_bytes
                if size_bytes > BLOB_MAX_BYTES:
                    raise Misuse(f"the blob has {size_bytes} bytes; the maximum is {BLOB_MAX_BYTES}")
                if not self.has(sha256):
                    self._keep(pending, sha256)
            finally:
                pending.abort()
        return sha256, size_bytes

    def url(self, sha256: str) -> str:
        """Return where others can download a blob, or an empty text if only this store has it."""
        return ""

    def _keep(self, pending: AtomicFile, sha256: str) -> None:
        """Make a written file durable under its hash."""
        place = self.place(sha256)
        make_directory(place.parent)
        pending.commit(place)

    def adopt(self, path: Path, sha256: str) -> bool:
        """Add a file that should have this hash: linked if possible, which takes no space, else copied. Return False
        if it has another hash."""
        place, size_bytes = self.place(sha256), path.stat().st_size
        make_directory(place.parent)
        with contextlib.suppress(OSError):
            os.link(path, place)
        if place.is_file():
            return self.verify(sha256)
        with path.open("rb") as file, self.writer(sha256, size_bytes) as writer, contextlib.suppress(PeerViolation):
            writer.take(file)
        return self.has(sha256)

    def has(self, sha256: str) -> bool:
        return self.place(sha256).is_file()

    def facts(self, sha256: str) -> BlobFacts | None:
        """Return a blob's size and age without reading it, or None if the store does not have it."""
        try:
            found = self.place(sha256).stat()
        except OSError:
            return None
        return BlobFacts(size_bytes=found.st_size, modified_s=found.st_mtime)

    def path(self, sha256: str) -> Path:
        """Return the file of a stored blob. Read it, but never change it."""
        place = self.place(sha256)
        if not place.is_file():
            raise Misuse(f"blob {sha256} is not in this store: fetch or put it first")
        return place

    def read(self, sha256: str) -> bytes:
        """Return the bytes of a blob that should be small. A large one is refused before memory is allocated."""
        return read_small(self.path(sha256))

    def verify(self, sha256: str) -> bool:
        """Whether the store has the blob and it still matches its hash. A damaged blob is deleted, to be fetched
        again."""
        place = self.place(sha256)
        try:
            with place.open("rb") as file:
                matches = _sha256(file) == sha256
        except FileNotFoundError:
            return False
        if not matches:
            place.unlink(missing_ok=True)
            sync_directory(place.parent)
        return matches

    def remove(self, sha256: str) -> None:
        """Delete a blob. Readers that have it open can continue."""
        self.place(sha256).unlink(missing_ok=True)

    def hashes(self) -> list[str]:
        """Return the hashes of all blobs in the store, in order."""
        return sorted(path.name for path in self._directory.glob("??/*") if HASH.fullmatch(path.name))

    def writer(self, expected_sha256: str, size_bytes: int) -> BlobWriter:
        """Receive a blob in pieces. Use it in ``with``: on exit it is deleted unless it was committed."""
        self.place(expected_sha256)  # refuses a malformed hash
        if not 0 <= size_bytes <= BLOB_MAX_BYTES:
            raise PeerViolation(f"the blob has {size_bytes} bytes; it may have 0 to {BLOB_MAX_BYTES}")
        if size_bytes > (free_bytes := free_bytes_at(self._directory)):
            raise DiskFull(
                f"a file of {size_bytes / 1e6:,.0f} MB does not fit on the disk that holds {self._directory}:"
                f" {free_bytes / 1e6:,.0f} MB are free. Free space on it, then try again"
            )
        return BlobWriter(self._directory, self._keep, expected_sha256=expected_sha256, size_bytes=size_bytes)

    def place(self, sha256: str) -> Path:
        """Return the path of a blob's file, whether or not the store has it."""
        if not HASH.fullmatch(sha256):
            raise PeerViolation(f"{sha256[:80]!r} is not a SHA-256 in 64 lower-case hexadecimal digits")
        return self._directory / sha256[:2] / sha256


class BlobWriter:
    """A blob that is being received. It is stored only if its size and hash are as announced."""

    def __init__(
        self, directory: Path, keep: Callable[[AtomicFile, str], None], *, expected_sha256: str, size_bytes: int
    ) -> None:
        self._directory = directory
        self._keep = keep
        self._expected_sha256 = expected_sha256
        self._size_bytes = size_bytes
        with telling_disk_full(directory):
            self._pending = AtomicFile(directory)

    def feed(self, data: bytes | memoryview) -> None:
        """Write the next bytes. If there are more than announced, they are refused before they are written."""
        if self._pending.size_bytes + len(data) > self._size_bytes:
            self.abort()
            raise PeerViolation(f"a blob announced with {self._size_bytes} bytes has more")
        with telling_disk_full(self._directory):
            self._pending.file.write(data)

    def take(self, source: io.BytesIO | io.BufferedReader) -> None:
        """Write a file's bytes, and commit."""
        while chunk := source.read(CHUNK_BYTES):
            self.feed(chunk)
        self.commit()

    def commit(self) -> None:
        """Check what arrived and store it durably."""
        try:
            if self._pending.size_bytes != self._size_bytes:
                got = self._pending.size_bytes
                raise PeerViolation(f"a blob announced with {self._size_bytes} bytes ended after {got}")
            if self._pending.sha256 != self._expected_sha256:
                raise PeerViolation(
                    f"a blob announced as {self._expected_sha256[:12]}... hashes to {self._pending.sha256[:12]}..."
                )
            with telling_disk_full(self._directory):
                self._keep(self._pending, self._expected_sha256)
        finally:
            self.abort()

    def abort(self) -> None:
        """Delete the received bytes. It has no effect after ``commit``."""
        self._pending.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def _sha256(file: io.BytesIO | io.BufferedReader) -> str:
    # An idle agent stores no blob (see `identity.chain`).
    import hashlib

    return hashlib.file_digest(file, "sha256").hexdigest()
