"""A private view of the file system for one process: its own /dev/shm, and access to Python in a closed folder. Linux.

A trainer that stops being root must still read Python, which often lies in root's closed home. Opening that home to
everyone would open what lies beside Python too. So in the trainer's own view an empty folder covers the home, and what
the trainer needs is bound into it at its usual path. Nobody else sees any of this, and it ends with the process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from shoal.trainer.kernel import CLONE_NEWNS, MS_BIND, MS_NODEV, MS_NOSUID, MS_REC, MS_SLAVE, call

_SHARED_MEMORY = "/dev/shm"  # noqa: S108


def own_view() -> str:
    """Hide what this process mounts from all but itself and its children. Return why that failed, or ""."""
    # Slave, not private: what the device's owner unmounts must not stay in use because of us.
    return call("unshare", CLONE_NEWNS) or call("mount", "none", "/", None, MS_REC | MS_SLAVE, None)


def own_shared_memory(size_bytes: int) -> str:
    """Mount an empty /dev/shm that ends with the process. Return why that failed, or ""."""
    size = f"size={size_bytes}" if size_bytes else "size=50%"
    return call("mount", "tmpfs", _SHARED_MEMORY, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,{size}")


def open_way(paths: Iterable[str]) -> str:
    """Show these files and folders, without their neighbours, to every user of this view. Return why not, or "".

    The modes of the files and folders do not change.
    """
    needed = sorted({os.path.realpath(path) for path in paths if os.path.exists(path)})
    covers = {path: cover for path in needed if (cover := _outermost_closed(path)) not in ("", "/")}
    inner = {path for path in covers if any(other != path and Path(path).is_relative_to(other) for other in covers)}
    umask = os.umask(0o022)
    held: dict[str, int] = {}
    try:
        # Held open: the empty folder will lie over them.
        held = {path: os.open(path, os.O_PATH) for path in covers if path not in inner}
        for cover in sorted(set(covers.values())):
            if why := call("mount", "tmpfs", cover, "tmpfs", MS_NOSUID | MS_NODEV, "mode=711,size=1m"):
                return why
        for path, descriptor in held.items():
            _make_like(path, is_folder=stat.S_ISDIR(os.fstat(descriptor).st_mode))
            if why := call("mount", f"/proc/self/fd/{descriptor}", path, None, MS_BIND | MS_REC, None):
                return why
    except OSError as error:
        return str(error)
    finally:
        os.umask(umask)
        for descriptor in held.values():
            os.close(descriptor)
    return ""


def _outermost_closed(path: str) -> str:
    """Return the first folder on the way to a path that only its owner may enter, or "" if all are open."""
    for folder in reversed(Path(path).parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            return str(folder)
    return ""


def _make_like(path: str, *, is_folder: bool) -> None:
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
