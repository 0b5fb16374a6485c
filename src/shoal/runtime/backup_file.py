"""The file of a backup: a tar whose first part lists the others with their sizes and hashes. Knows bytes and names.

A backup may come from anywhere, so nothing is written under a name that is not expected, and every part is checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from shoal.errors import Corrupt, Misuse

FORMAT = "shoal backup 1"

#: The first part of a backup.
MANIFEST = "manifest.json"
_MANIFEST_MAX_BYTES = 256 << 20
_CHUNK_BYTES = 1 << 20

#: The names that a backup may hold.
_NAME = re.compile(
    r"(cluster/(authority|manager)/[a-z.]{1,40}\.json|operator/[a-z.]{1,40}\.json|cluster/registry\.sqlite"
    r"|cluster/(blobs|published)/[0-9a-f]{2}/[0-9a-f]{64}"
    r"|cluster/checkpoints/[A-Za-z0-9][A-Za-z0-9._-]{0,127}/[0-9]{12,18}-[0-9a-f]{64}\.safetensors)"
)
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """One part of a backup."""

    name: str
    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or not _HASH.fullmatch(self.sha256) or self.size_bytes < 0:
            raise ValueError(f"it lists {self.name[:80]!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """What a backup says of itself."""

    cluster: str
    made_s: float
    #: The release that made it.
    version: str
    files: tuple[Listed, ...]

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.files)

    @property
    def durable(self) -> dict[str, int]:
        """Job -> its newest version in the backup."""
        found: dict[str, int] = {}
        for each in self.files:
            parts = each.name.split("/")
            if parts[1] == "checkpoints":
                found[parts[2]] = max(found.get(parts[2], -1), int(parts[3].partition("-")[0]))
        return found


def list_files(stage: Path) -> tuple[Listed, ...]:
    """Every file below a folder, checked against the hash in its name where it has one."""
    found = []
    for path in sorted(path for path in stage.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        name = str(path.relative_to(stage))
        told = _HASH.search(path.name)
        if told is not None and told[0] != sha256:
            raise Corrupt(f"{name} is damaged on this disk: its bytes are not those that its name says. Check the disk")
        found.append(Listed(name=name, size_bytes=path.stat().st_size, sha256=sha256))
    return tuple(found)


def write(out: BinaryIO, stage: Path, listing: Listing) -> None:
    """Write the files of a folder, as listed. ``out`` is not sought in."""
    files = [{"name": each.name, "size_bytes": each.size_bytes, "sha256": each.sha256} for each in listing.files]
    plain = {"format": FORMAT, "cluster": listing.cluster, "made_s": listing.made_s, "version": listing.version}
    text = json.dumps({**plain, "files": files}).encode()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        with tempfile.TemporaryFile() as first:
            first.write(text)
            first.seek(0)
            tar.addfile(_header(MANIFEST, len(text)), first)
        for each in listing.files:
            with (stage / each.name).open("rb") as file:
                tar.addfile(_header(each.name, each.size_bytes), file)


def read(file: Path, stage: Path) -> Listing:
    """Unpack a backup into a folder, durably."""
    try:
        with tarfile.open(file, mode="r:") as tar:
            listing = _listing(tar, file)
            expected = {each.name: each for each in listing.files}
            while (member := tar.next()) is not None:
                each = expected.pop(member.name, None)
                if each is None or not member.isreg() or member.size != each.size_bytes:
                    raise _damaged(file, f"{member.name[:80]!r} is not as listed")
                _unpack(tar, member, stage / each.name, each.sha256, file)
    except FileNotFoundError:
        raise Misuse(f"there is no file {file}: name a file that `shoal backup` wrote") from None
    except IsADirectoryError:
        raise Misuse(f"{file} is a directory: name a file that `shoal backup` wrote") from None
    except (tarfile.TarError, EOFError) as error:
        raise _damaged(file, str(error)) from None
    if expected:
        raise _damaged(file, f"{len(expected)} of its files are missing")
    return listing


def _header(name: str, size_bytes: int) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size_bytes, 0o600
    return header


def _listing(tar: tarfile.TarFile, file: Path) -> Listing:
    first = tar.next()
    if first is None or first.name != MANIFEST or not first.isreg() or first.size > _MANIFEST_MAX_BYTES:
        raise _damaged(file, "it does not begin with its list")
    reader = tar.extractfile(first)
    assert reader is not None, "a regular file can be read"
    try:
        plain: Any = json.loads(reader.read())
        if plain["format"] != FORMAT:
            raise Misuse(f"{file} is of another release ({plain['format']!r:.80}): restore it with that release")
        return Listing(
            cluster=str(plain["cluster"]),
            made_s=float(plain["made_s"]),
            version=str(plain["version"]),
            files=_files(plain["files"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(file, str(error)) from None


def _files(plain: Sequence[Any]) -> tuple[Listed, ...]:
    files = tuple(
        Listed(name=str(each["name"]), size_bytes=int(each["size_bytes"]), sha256=str(each["sha256"])) for each in plain
    )
    if len({each.name for each in files}) != len(files):
        raise ValueError("it lists a file twice")
    return files


def _unpack(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, sha256: str, file: Path) -> None:
    reader = tar.extractfile(member)
    assert reader is not None, "a regular file can be read"
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with open(target, "xb", opener=_for_its_owner) as out:
        while chunk := reader.read(_CHUNK_BYTES):
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != sha256:
        raise _damaged(file, f"{member.name} does not match its hash")


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _damaged(file: Path, why: str) -> Corrupt:
    return Corrupt(f"{file} is no whole backup ({why}): use another copy of it, or an older one")
