"""The directory of data files on this machine, and downloads of public ones."""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from shoal.errors import Corrupt, Misuse, Unreachable
from shoal.store.readable import write_readable

_READ_BYTES = 1 << 16
_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFile:
    """A public file: its name, what it must hash to, how long it is."""

    name: str
    sha256: str
    bytes: int


def data_dir() -> Path:
    """``$SHOAL_DATA`` if it is set, else a cache of this user's."""
    if named := os.environ.get("SHOAL_DATA"):
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "shoal"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal"


def fetched(folder: str, remote: RemoteFile, mirrors: Sequence[str]) -> bytes:
    """The checked contents of a file: from disk if it is there, else from the first mirror that has it, and kept."""
    path = data_dir() / folder / remote.name
    if path.exists():
        data = path.read_bytes()
        if not _is_sound(data, remote):
            raise Corrupt(f"{path} is damaged (its SHA-256 is not {remote.sha256}): delete it, and it is fetched again")
        return data
    data = _download(remote, mirrors, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_readable(path, lambda file: file.write(data))
    except OSError as error:
        raise Misuse(f"{path} cannot be written ({error}): set SHOAL_DATA to a directory that can") from None
    return data


def _download(remote: RemoteFile, mirrors: Sequence[str], path: Path) -> bytes:
    failures: list[str] = []
    for mirror in mirrors:
        url = f"{mirror}/{remote.name}"
        if not url.startswith("https://"):
            raise Misuse(f"{url} is not https")
        try:
            with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
                data = _read_at_most(response, remote.bytes + 1)
        except OSError as error:
            failures.append(f"{url}: {error}")
            continue
        if _is_sound(data, remote):
            return data
        failures.append(f"{url}: gave another file than the one we know")
    raise Unreachable(
        f"{remote.name} could not be fetched ({'; '.join(failures)}): copy it by hand to {path}"
        f" (another folder than {data_dir()} is named by SHOAL_DATA)"
    )


def _read_at_most(response: BinaryIO, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    left_bytes = limit_bytes
    while left_bytes and (part := response.read(min(left_bytes, _READ_BYTES))):
        parts.append(part)
        left_bytes -= len(part)
    return b"".join(parts)


def _is_sound(data: bytes, remote: RemoteFile) -> bool:
    return len(data) == remote.bytes and hashlib.sha256(data).hexdigest() == remote.sha256
