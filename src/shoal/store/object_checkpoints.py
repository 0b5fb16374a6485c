"""Checkpoints in object storage, with a folder of copies. A checkpoint is one once the bucket has it.

The bucket also keeps the first checkpoint of each hour for a day: a database that went back by less than that names a
version close to one that is still there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Set
from pathlib import Path

from shoal.store.checkpoints import NAME, CheckpointStore, LoadedCheckpoint, SavedCheckpoint, counts, version_in
from shoal.store.files import write_atomically
from shoal.store.objects import ObjectFacts, Objects
from shoal.wire.limits import CHECKPOINT_FILE_MAX_BYTES
from shoal.wire.tensors import Array

#: For how long the bucket keeps checkpoints that were replaced, and one in how many seconds.
GRACE_S = 86400.0
SPARE_EVERY_S = 3600.0

#: A checkpoint holds a model, its momentum and its history.
_MOST_BYTES = CHECKPOINT_FILE_MAX_BYTES


class ObjectCheckpoints(CheckpointStore):
    def __init__(self, objects: Objects, folder: str, directory: Path, *, keep: int = 2) -> None:
        """``folder``: where in the bucket; ``directory``: where the copies are kept."""
        super().__init__(directory, keep=keep)
        self._objects = objects
        self._folder = folder

    def names(self) -> list[str]:
        return list(self._kept())

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
            # The checkpoint was not acknowledged, so it must not look like a stored one.
            saved.path.unlink(missing_ok=True)
            raise
        return saved

    def _thin_out(self, saved: SavedCheckpoint) -> None:
        super()._thin_out(saved)
        kept = self._kept()
        copies = {found.path.name for found in self._found()}
        for name in kept.keys() - newest(kept, saved.path.name, copies, keep=self._keep) - spare(kept, saved.version):
            self._objects.remove(f"{self._folder}/{name}")

    def _kept(self) -> dict[str, ObjectFacts]:
        """Every checkpoint in the bucket, by its name."""
        listed = {name.rsplit("/", 1)[-1]: facts for name, facts in self._objects.list(self._folder).items()}
        return {name: facts for name, facts in listed.items() if NAME.fullmatch(name)}

    @property
    def _place(self) -> str:
        return f"{self._objects.name}/{self._folder}"

    def _mirror(self, named: str | None) -> None:
        """Make the copies those of the bucket: what it lacks was never acknowledged, what is damaged is fetched."""
        all_kept = self._kept()
        if named and named not in all_kept and _is_whole(copy := self._directory / named, _sha256_in(named)):
            # Somebody removed it there.
            self._objects.put(f"{self._folder}/{named}", copy)
            all_kept = self._kept()
        is_missing = bool(named) and named not in all_kept
        kept = {name: facts for name, facts in all_kept.items() if is_missing or counts(name, named)}
        for found in self._found():
            if found.path.name not in kept or not _is_whole(found.path, found.sha256):
                found.path.unlink(missing_ok=True)
        for name in sorted(kept, key=lambda name: _age(name, kept))[-self._keep :]:
            path = self._directory / name
            if not path.exists():
                with contextlib.suppress(FileNotFoundError):  # thinned out meanwhile
                    self._fetch(name, path)
                    # If a version has two checkpoints, the one that the bucket got later counts.
                    os.utime(path, (kept[name].modified_s, kept[name].modified_s))

    def _fetch(self, name: str, path: Path) -> None:
        def write(file: object) -> None:
            if not self._objects.fetch(f"{self._folder}/{name}", file, most_bytes=_MOST_BYTES):  # type: ignore[arg-type]
                raise FileNotFoundError(name)

        write_atomically(path, write)


def newest(kept: Mapping[str, ObjectFacts], saved: str, copies: Set[str], *, keep: int) -> set[str]:
    """Return the checkpoints that stay now that this one is saved: it and those before it, ``keep`` in all. Those of
    which this manager has copies go first, since another manager may have left some that nobody acknowledged. Copies
    may be lost at any time, so others make up for those that are."""
    older = [name for name in kept if version_in(name) < version_in(saved)]
    return {saved, *sorted(older, key=lambda name: (name in copies, *_age(name, kept)), reverse=True)[: keep - 1]}


def _age(name: str, kept: Mapping[str, ObjectFacts]) -> tuple[int, float, str]:
    """Order checkpoints by version. If two have the same, the one that the bucket had later is newer."""
    return version_in(name), kept[name].modified_s, name


def spare(kept: Mapping[str, ObjectFacts], version: int) -> set[str]:
    """Return which replaced checkpoints stay for a while, now that this version is saved: the first of each hour, up to
    a day old, by the clock of the bucket. Those of the same or a later version belong to a history that was given up.
    """
    older = [name for name in kept if version_in(name) < version]
    now_s = max((facts.modified_s for facts in kept.values()), default=0.0)
    first: dict[int, str] = {}
    for name in sorted(older, key=lambda name: (kept[name].modified_s, name)):
        if now_s - kept[name].modified_s <= GRACE_S:
            first.setdefault(int(kept[name].modified_s // SPARE_EVERY_S), name)
    return set(first.values())


def _sha256_in(name: str) -> str:
    found = NAME.fullmatch(name)
    return found[2] if found else ""


def _is_whole(path: Path, sha256: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    except OSError:
        return False
