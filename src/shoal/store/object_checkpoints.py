"""Checkpoints in object storage, with a folder of copies. A checkpoint is one once the bucket has it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from shoal.store.checkpoints import NAME, CheckpointStore, LoadedCheckpoint, SavedCheckpoint, counts
from shoal.store.files import write_atomically
from shoal.store.objects import ObjectFacts, Objects
from shoal.wire.limits import CHECKPOINT_FILE_MAX_BYTES
from shoal.wire.tensors import Array

#: A checkpoint holds a model, its momentum and its history.
_MOST_BYTES = CHECKPOINT_FILE_MAX_BYTES


class ObjectCheckpoints(CheckpointStore):
    def __init__(self, objects: Objects, folder: str, directory: Path, *, keep: int = 2) -> None:
        """``folder``: where in the bucket; ``directory``: where the copies are kept."""
        super().__init__(directory, keep=keep)
        self._objects = objects
        self._folder = folder

    def newest_version(self) -> int:
        return max((version for version, _ in self._kept()), default=-1)

    def load(self, *, named: str | None = None) -> LoadedCheckpoint | None:
        with self._lock:
            self._mirror(named)
        return super().load(named=named)

    def remove(self) -> None:
        for name in self._objects.list(self._folder):
            self._objects.remove(name)
        super().remove()

    def _write(self, version: int, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> SavedCheckpoint:
        saved = super()._write(version, tensors, metadata)
        try:
            self._objects.put(f"{self._folder}/{saved.path.name}", saved.path)
        except BaseException:
            # Nobody was told of it: it must not be taken for one that is kept.
            saved.path.unlink(missing_ok=True)
            raise
        return saved

    def _thin_out(self, saved: SavedCheckpoint) -> None:
        super()._thin_out(saved)
        here = {found.path.name for found in self._found()}
        for _, name in self._kept():
            if name not in here:
                self._objects.remove(f"{self._folder}/{name}")

    def _kept(self) -> list[tuple[int, str]]:
        """Version and name of every checkpoint in the bucket."""
        return [(int(match[1]), name) for name in self._facts() if (match := NAME.fullmatch(name))]

    def _facts(self) -> dict[str, ObjectFacts]:
        return {name.rsplit("/", 1)[-1]: facts for name, facts in self._objects.list(self._folder).items()}

    def _mirror(self, named: str | None) -> None:
        """Make the copies those of the bucket: what it lacks was never acknowledged, what is damaged is fetched."""
        all_kept = {name: facts for name, facts in self._facts().items() if NAME.fullmatch(name)}
        kept = {name: facts for name, facts in all_kept.items() if counts(name, named)}
        for found in self._found():
            if found.path.name not in kept or not _is_whole(found.path, found.sha256):
                found.path.unlink(missing_ok=True)
        newest = sorted(kept, key=lambda name: (int(name.split("-")[0]), kept[name].modified_s, name))[-self._keep :]
        for name in newest:
            path = self._directory / name
            if not path.exists():
                with contextlib.suppress(FileNotFoundError):  # thinned out meanwhile
                    self._fetch(name, path)
                    # Of two of one version the later one counts, by when the bucket had it.
                    os.utime(path, (kept[name].modified_s, kept[name].modified_s))

    def _fetch(self, name: str, path: Path) -> None:
        def write(file: object) -> None:
            if not self._objects.fetch(f"{self._folder}/{name}", file, most_bytes=_MOST_BYTES):  # type: ignore[arg-type]
                raise FileNotFoundError(name)

        write_atomically(path, write)


def _is_whole(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False
