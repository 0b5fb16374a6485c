"""Checkpoints: a model and the state that belongs to it, in one file that proves itself by its name.

Knows tensors, a JSON state and versions. What they mean, and which term may write, is the caller's to know.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from shoal.errors import Corrupt, Misuse, ShoalError
from shoal.store.files import (
    AtomicFile,
    DiskFull,
    make_directory,
    remove_stale,
    sync_directory,
    telling_disk_full,
)
from shoal.wire import tensors as tensor_files
from shoal.wire.tensors import Array

NAME = re.compile(r"([0-9]{12,18})-([0-9a-f]{64})\.safetensors")
_VERSION_MAX = 10**18 - 1
_ASIDE = ".corrupt"
#: Damaged files kept for a look at what happened to them; more would fill a small disk.
_ASIDE_KEPT = 2
#: A reader may find that a saver thinned out the file it was about to read. The newest is then another.
_LOAD_ATTEMPTS = 20
_FORMAT_KEY, _FORMAT = "shoal", "checkpoint 1"


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """A durable checkpoint."""

    version: int
    path: Path
    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint whose contents match its name, and why it is not a newer one."""

    version: int
    path: Path
    sha256: str
    #: Read-only views over the file; they outlive its deletion.
    tensors: Mapping[str, Array]
    state: Mapping[str, object]
    which: Literal["newest", "the one before"]
    #: Name and reason of every newer file that failed its check.
    skipped: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    version: int
    sha256: str
    path: Path


class CheckpointStore:
    """The last good checkpoint of a job and the one before, in a directory of their own."""

    def __init__(self, directory: Path, *, keep: int = 2) -> None:
        if keep < 1:
            raise Misuse(f"a store keeps at least one checkpoint, not {keep}")
        self._directory = directory
        self._keep = keep
        self._lock = threading.Lock()
        #: Two saves that run at once may arrive in the wrong order; the later version must not be lost to it.
        self._last_saved = 0
        make_directory(directory)
        remove_stale(directory)

    def save(
        self, *, version: int, tensors: Mapping[str, Array], state: Mapping[str, object], thins: bool = True
    ) -> SavedCheckpoint:
        """Write a checkpoint and return once it is durable. Only then are earlier ones thinned out; without ``thins``
        they stay until ``thin_out``.

        The last save wins: files of the same or a higher version belong to a history that was abandoned, and go.
        A version below one this store saved itself is refused: it was overtaken, or needs a ``load`` first.
        ``state`` comes back as JSON gives it back: tuples as lists, keys as text.
        """
        if not 0 <= version <= _VERSION_MAX:
            raise Misuse(f"a version is between 0 and {_VERSION_MAX}, not {version}")
        metadata = {_FORMAT_KEY: _FORMAT, "version": str(version), "state": _encoded(state)}
        with self._lock:
            if version < self._last_saved:
                raise Misuse(
                    f"version {version} comes after version {self._last_saved}, which stays: save one after the other"
                )
            try:
                saved = self._write(version, tensors, metadata)
            except DiskFull as error:
                self._explain_full(version, tensors, error)
            self._last_saved = version
            if thins:
                with telling_disk_full(self._directory):
                    self._thin_out(saved)
        return saved

    def thin_out(self, saved: SavedCheckpoint) -> None:
        """A checkpoint was acknowledged: those that it replaces go."""
        with self._lock, telling_disk_full(self._directory):
            self._thin_out(saved)

    def newest_version(self) -> int:
        """The version of the newest file, read or not; -1 where there is none."""
        return max(map(version_in, self.names()), default=-1)

    def names(self) -> list[str]:
        """Return the names of all checkpoints that are kept, read or not."""
        return [found.path.name for found in self._found()]

    def load(self, *, named: str | None = None) -> LoadedCheckpoint | None:
        """Load the newest checkpoint that matches its name, or return None if none was ever saved. ``named`` is the
        last acknowledged one, or empty if there is none: no other checkpoint as new as it counts. If it is missing,
        somebody removed it or the database that names it went back; then the newest counts, and ``skipped`` says so.

        Damaged newer ones are renamed to ``.corrupt``, so that versions saved from now on are never mistaken for older
        than them. If files exist but none is good, they stay and ``Corrupt`` is raised: this must not silently start a
        job over.
        """
        for _ in range(_LOAD_ATTEMPTS):
            with self._lock, contextlib.suppress(FileNotFoundError), telling_disk_full(self._directory):
                return self._load(named)
        raise ShoalError(f"checkpoints in {self._directory} are replaced faster than they are read: try again")

    def _load(self, named: str | None) -> LoadedCheckpoint | None:
        self._last_saved = 0
        damaged: list[tuple[_Found, str]] = []
        is_missing = bool(named) and named not in CheckpointStore.names(self)
        missing = ((named, "it is missing"),) if named and is_missing else ()
        for found in self._found():
            if not is_missing and not counts(found.path.name, named):
                continue
            try:
                tensors, state = _verified(found)
            except Corrupt as error:
                damaged.append((found, str(error)))
                continue
            self._set_aside([found.path for found, _ in damaged])
            # Its writer may have died between the rename and what follows it: make the name durable, and
            # remove what that writer did not, or a crash loop would fill the disk.
            sync_directory(self._directory)
            self._remove_older_than(found.version)
            return LoadedCheckpoint(
                version=found.version,
                path=found.path,
                sha256=found.sha256,
                tensors=tensors,
                state=state,
                which="the one before" if damaged or found.version < version_in(named or "") else "newest",
                skipped=(*missing, *((found.path.name, reason) for found, reason in damaged)),
            )
        if damaged:
            reasons = "; ".join(f"{found.path.name}: {reason}" for found, reason in damaged)
            raise Corrupt(
                f"no checkpoint in {self._directory} is usable ({reasons}): "
                "check the disk, then restore a file from a copy, or move these away to start from the beginning"
            )
        if named:
            raise Corrupt(
                f"checkpoint {named} was acknowledged and is not in {self._place}, nor is any other of this job:"
                " restore one from a copy"
            )
        return None

    @property
    def _place(self) -> str:
        """Where checkpoints are, for people."""
        return str(self._directory)

    def _write(self, version: int, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> SavedCheckpoint:
        with telling_disk_full(self._directory):
            pending = AtomicFile(self._directory)
            try:
                tensor_files.write(pending.file, tensors, metadata)
                path = self._directory / f"{version:012d}-{pending.sha256}.safetensors"
                pending.commit(path)
            finally:
                pending.abort()
        return SavedCheckpoint(version=version, path=path, sha256=pending.sha256, size_bytes=pending.size_bytes)

    def remove(self) -> None:
        """Remove every checkpoint of the job."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _thin_out(self, saved: SavedCheckpoint) -> None:
        abandoned = [found for found in self._found() if found.version >= saved.version and found.path != saved.path]
        for found in abandoned:
            found.path.unlink(missing_ok=True)
        if abandoned:  # they must not come back after a power cut: load would prefer them
            sync_directory(self._directory)
        self._remove_older_than(saved.version)

    def _remove_older_than(self, version: int) -> None:
        older = [found for found in self._found() if found.version < version]
        for found in older[self._keep - 1 :]:
            with contextlib.suppress(OSError):  # the newer ones are safe; the next save tries again
                found.path.unlink(missing_ok=True)

    def _set_aside(self, paths: list[Path]) -> None:
        for path in paths:
            try:
                path.replace(path.with_name(path.name + _ASIDE))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                # No room for a longer name. Left where it is, it would count as one of those that are kept.
                path.unlink(missing_ok=True)
        for path in self._aside()[:-_ASIDE_KEPT]:
            path.unlink(missing_ok=True)

    def _aside(self) -> list[Path]:
        """Return the damaged files that were renamed, oldest first."""
        return sorted(self._directory.glob(f"*{_ASIDE}"), key=lambda path: (path.stat().st_mtime_ns, path.name))

    def _found(self) -> list[_Found]:
        """Return the checkpoints by name, newest first. If a version has two files, the one written later is newer."""
        found = []
        for path in self._directory.iterdir():
            if match := NAME.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):  # thinned out by a saver meanwhile
                    order = (int(match[1]), path.stat().st_mtime_ns, match[2])
                    found.append((order, _Found(version=int(match[1]), sha256=match[2], path=path)))
        return [each for _, each in sorted(found, key=lambda pair: pair[0], reverse=True)]

    def _explain_full(self, version: int, tensors: Mapping[str, Array], error: DiskFull) -> NoReturn:
        size_mb = sum(array.nbytes for array in tensors.values()) / 1e6
        aside = self._aside()
        spare = f"; {len(aside)} *{_ASIDE} file(s) in {self._directory} can be deleted" if aside else ""
        raise DiskFull(
            f"version {version} ({size_mb:.1f} MB) is not saved, earlier checkpoints are intact: {error}{spare}"
        ) from error


def version_in(name: str) -> int:
    """Return the version in a checkpoint's name, or -1 if it is not the name of a checkpoint."""
    match = NAME.fullmatch(name)
    return int(match[1]) if match else -1


def counts(name: str, named: str | None) -> bool:
    """Whether a job may continue from a checkpoint if ``named`` was acknowledged last."""
    return named is None or name == named or version_in(name) < version_in(named)


def _encoded(state: Mapping[str, object]) -> str:
    try:
        return json.dumps(state, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Misuse(f"a checkpoint's state is plain JSON with finite numbers: {error}") from None


def _verified(found: _Found) -> tuple[dict[str, Array], dict[str, object]]:
    try:
        with found.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != found.sha256:
            size_bytes = os.stat(found.path).st_size
            raise Corrupt(f"its {size_bytes} bytes hash to {digest[:12]}..., not to what its name says")
        tensors, metadata = tensor_files.read(found.path, mmap=True)
    except OSError as error:
        if error.errno != errno.EIO:  # a lack of memory or of rights says nothing about the file
            raise
        raise Corrupt("the disk cannot read it") from error
    if metadata.get(_FORMAT_KEY) != _FORMAT or metadata.get("version") != str(found.version):
        raise Corrupt(f"it is not the {_FORMAT} of version {found.version} that its name says")
    return tensors, _decoded(metadata.get("state", ""))


def _decoded(text: str) -> dict[str, object]:
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        raise Corrupt("its state is not JSON") from None
    if not isinstance(state, dict):
        raise Corrupt("its state is not a JSON object")
    return state
