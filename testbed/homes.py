"""Directories for clusters that nobody gave one: gone with the cluster, or found by ``clean``. Knows no network."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "shoal-testbed-"
_UMOUNT_WITHIN_S = 10.0
_NAME = re.compile(rf"{_PREFIX}(\d+)-\w+")


@contextlib.contextmanager
def temporary_home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as home:
        yield Path(home)


def homes_of(pid: int) -> list[str]:
    """Directories that a process made and that are still there."""
    return [str(path) for path, owner in _ours() if owner == pid]


def makers() -> list[int]:
    """The processes, alive or not, that own directories."""
    return sorted({owner for _, owner in _ours()})


def remove_of(pid: int) -> None:
    for home in homes_of(pid):
        # The small disk of a soak that was killed.
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in [mount for mount in mounts if Path(mount).is_relative_to(home)]:
            subprocess.run(["/usr/bin/umount", "--lazy", mount], capture_output=True, timeout=_UMOUNT_WITHIN_S)
        shutil.rmtree(home, ignore_errors=True)


def _ours() -> list[tuple[Path, int]]:
    found = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        match = _NAME.fullmatch(path.name)
        # Anyone may give a directory there such a name: only those of this user are ours.
        with contextlib.suppress(OSError):
            if match and not path.is_symlink() and path.is_dir() and path.stat().st_uid == os.geteuid():
                found.append((path, int(match[1])))
    return found
