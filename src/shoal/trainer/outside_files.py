"""Files that code opens and that devices will not have: not in the bundle, nor in an installed package. No torch.

Sees only files that Python opens. ``from_pretrained`` reads its configuration this way, before its tensors.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Folders whose files every device has itself, or that do not belong to the task.
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib", "/lib64")
_NAMED_MAX = 3

#: The list of opened files while one is kept, else None: an audit hook cannot be removed.
_noted: list[dict[str, None] | None] = [None]
_is_hooked: list[bool] = []


def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    noted = _noted[0]
    if noted is None or event not in ("open", "os.open") or not arguments:
        return
    path, flags = arguments[0], arguments[2] if len(arguments) > 2 else 0
    writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if isinstance(path, str | bytes) and not writes:
        noted[os.fsdecode(path)] = None


@contextmanager
def opened_outside(bundle_dir: Path) -> Iterator[list[str]]:
    """List the files read within this block that a device would not have. The list is filled when the block ends."""
    if not _is_hooked:
        sys.addaudithook(_on_audit)
        _is_hooked.append(True)
    found: list[str] = []
    noted: dict[str, None] = {}
    _noted[0] = noted
    try:
        yield found
    finally:
        _noted[0] = None
        found += [path for path in noted if _is_outside(path, bundle_dir)]


def _is_outside(path: str, bundle_dir: Path) -> bool:
    whole = os.path.realpath(path)
    packages = (*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values())
    prefixes = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))
    known = (*_SYSTEM, str(bundle_dir), *packages, *prefixes)
    return os.path.isfile(whole) and not any(_is_below(whole, os.path.realpath(folder)) for folder in known)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def told_of(paths: list[str], task: str) -> str:
    """Return what a person should do about files that devices do not have."""
    names = ", ".join(paths[:_NAMED_MAX]) + (f" and {len(paths) - _NAMED_MAX} more" if len(paths) > _NAMED_MAX else "")
    return (
        f"warning: {task}.model() opens {names}, which devices do not have unless you copied it there. Pass a trained "
        "model by start=, or put the file beside the task"
    )
