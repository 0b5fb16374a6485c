"""The wheel and the source archive, built twice from two folders with the same bytes, and checked."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from release_place import ROOT, Failed, Place

#: A second machine has another user, zone and folder.
_OTHER_UMASK = 0o077
_OTHER_ZONE = {"TZ": "Pacific/Auckland", "LC_ALL": "C", "PYTHONHASHSEED": "7"}


def copy_source(root: Path, target: Path) -> None:
    """Copy the files that git tracks, as they are now: what is ignored or not added is in no release."""
    command = ("git", "ls-files", "-z")
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


def make_tools(place: Place) -> None:
    """Install what a release is built and checked with, by hash."""
    python = place.make_environment("tools")
    lock = ROOT / "requirements" / "release.lock"
    place.run(python, "-m", "pip", "install", "-qq", "--no-deps", "--require-hashes", "-r", lock)


def build_twice(place: Place) -> dict[str, object]:
    """Build both archives in two folders; return whether all bytes are the same, and how large the wheel is."""
    copy_source(ROOT, place.source)
    _build(place, place.source, place.dist)
    other, again = place.scratch / "another" / "deeper" / "copy", place.scratch / "again"
    before = os.umask(_OTHER_UMASK)
    try:
        copy_source(ROOT, other)
        _build(place, other, again, **_OTHER_ZONE)
    finally:
        os.umask(before)
    first, second = digests(place.dist), digests(again)
    if first.keys() != {place.wheel.name, place.sdist.name}:
        raise Failed(f"the build made {sorted(first)}, not a wheel and a source archive of {place.version}")
    if first != second:
        raise Failed(f"two builds of one commit differ: {first} and {second}")
    return {"same_bytes_twice": True, "wheel_mb": round(place.wheel.stat().st_size / 1e6, 2)}


def check_archives(place: Place) -> None:
    """Let twine read the metadata, and check-wheel-contents look for what should not be in a wheel."""
    tools = place.python("tools").parent
    place.run(tools / "twine", "check", "--strict", place.wheel, place.sdist)
    place.run(tools / "check-wheel-contents", "--toplevel", "shoal", place.wheel)


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def _build(place: Place, source: Path, target: Path, **more: str) -> None:
    command = (place.python("tools"), "-m", "hatchling", "build", "-d", target)
    place.run(*command, cwd=source, more=place.build_environment() | more)
