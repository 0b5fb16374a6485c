"""Blobs in object storage, with a folder that spares fetching them twice. The folder may be lost at any time."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from shoal.errors import Misuse, ShoalError
from shoal.store.blobs import HASH, BlobFacts, BlobStore
from shoal.store.files import AtomicFile, make_directory
from shoal.store.objects import Objects
from shoal.wire.limits import BLOB_MAX_BYTES

#: What the folder may hold, before the blobs go that were not used for longest.
CACHE_MAX_BYTES = 8 << 30
#: Where devices download: through the manager, or from the bucket by signed URLs. Any other value is the https address
#: of a CDN in front of the bucket's prefix.
DOWNLOADS_MANAGER, DOWNLOADS_BUCKET = "manager", "bucket"
#: A download begins within this, or asks for another URL.
_SIGNED_S = 900.0

#: After this long, nobody is about to open a blob that was requested.
_IN_USE_S = 600.0


class ObjectBlobs(BlobStore):
    """A blob is here once the bucket has it: it is there before its hash is acknowledged."""

    def __init__(
        self,
        objects: Objects,
        folder: str,
        directory: Path,
        *,
        downloads: str = DOWNLOADS_MANAGER,
        cache_max_bytes: int = CACHE_MAX_BYTES,
    ) -> None:
        """``folder``: where in the bucket; ``directory``: where the copies are kept; ``downloads``: where devices
        download from."""
        super().__init__(directory)
        self._objects = objects
        self._folder = folder
        self._downloads = downloads
        self._cache_max_bytes = cache_max_bytes

    def has(self, sha256: str) -> bool:
        return self.facts(sha256) is not None

    def facts(self, sha256: str) -> BlobFacts | None:
        found = self._objects.facts(self._name(sha256))
        return BlobFacts(size_bytes=found.size_bytes, modified_s=found.modified_s) if found else None

    def path(self, sha256: str) -> Path:
        """Where a copy lies: it is fetched first where there is none, and its hash is checked."""
        place = self.place(sha256)
        try:
            os.utime(place)
        except FileNotFoundError:
            if not self._fetch(sha256):
                raise Misuse(f"blob {sha256} is not in {self._objects.name}: put it first") from None
        return place

    def url(self, sha256: str) -> str:
        name = self._name(sha256)
        if self._downloads == DOWNLOADS_MANAGER:
            return ""
        if self._downloads == DOWNLOADS_BUCKET:
            return self._objects.signed_url(name, valid_s=_SIGNED_S)
        return f"{self._downloads.rstrip('/')}/{name}"

    def verify(self, sha256: str) -> bool:
        if super().verify(sha256):
            return self.has(sha256)
        with contextlib.suppress(Misuse):
            return self._fetch(sha256)
        return False

    def remove(self, sha256: str) -> None:
        self._objects.remove(self._name(sha256))
        super().remove(sha256)

    def hashes(self) -> list[str]:
        names = (name.rsplit("/", 1)[-1] for name in self._objects.list(self._folder))
        return sorted(name for name in names if HASH.fullmatch(name))

    def _name(self, sha256: str) -> str:
        return f"{self._folder}/{self.place(sha256).name}"

    def _keep(self, pending: AtomicFile, sha256: str) -> None:
        self._objects.put(self._name(sha256), pending.written())
        self._make_room(pending.size_bytes)
        super()._keep(pending, sha256)

    def _fetch(self, sha256: str) -> bool:
        """Copy a blob into the folder. Return False if the bucket does not have it."""
        pending = AtomicFile(self._directory)
        try:
            if not self._objects.fetch(self._name(sha256), pending.file, most_bytes=BLOB_MAX_BYTES):
                return False
            if pending.sha256 != sha256:
                raise ShoalError(f"blob {sha256} came damaged from {self._objects.name}: try again, then put it again")
            self._make_room(pending.size_bytes)
            place = self.place(sha256)
            make_directory(place.parent)
            pending.commit(place)
        finally:
            pending.abort()
        return True

    def _make_room(self, size_bytes: int) -> None:
        """Remove the copies that were not used for longest, until another of this size fits."""
        copies = []
        for path in self._directory.glob("??/*"):
            with contextlib.suppress(FileNotFoundError):
                copies.append((path.stat().st_mtime, path.name, path.stat().st_size, path))
        over = sum(size for _, _, size, _ in copies) + size_bytes - self._cache_max_bytes
        for used_s, _, size, path in sorted(copies):
            if over <= 0 or time.time() - used_s < _IN_USE_S:
                return
            path.unlink(missing_ok=True)
            over -= size
