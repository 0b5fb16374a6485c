"""What `shoal train` prepared on an operator's machine and no job names any more. Knows files, asks nobody.

Below the folder lies one entry a preparation, with its lists and first model, and ``shards`` with what the lists name.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Set
from pathlib import Path

from shoal.errors import ShoalError
from shoal.trainer.prepared_job import PreparedJob

#: A preparation that is younger may be on its way to a job.
FRESH_S = 3600.0

_SHARDS = "shards"


def surplus(folder: Path, first_models: Set[str]) -> list[Path]:
    """Entries whose first model no job has, and shards that no other entry names."""
    if not folder.is_dir():
        return []
    going, needed = [], set()
    for entry in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != _SHARDS):
        prepared = _prepared(entry)
        if (prepared is None or prepared.model_sha256 not in first_models) and _is_old(entry):
            going.append(entry)
            continue
        if prepared is not None:
            needed |= {shard.sha256 for each in (prepared.train, prepared.test) for shard in each.shards}
            needed |= set(prepared.base)
    shards = folder / _SHARDS
    for path in sorted(shards.iterdir()) if shards.is_dir() else ():
        if path.name not in needed and _is_old(path):
            going.append(path)
    return going


def remove(paths: list[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _prepared(entry: Path) -> PreparedJob | None:
    try:
        return PreparedJob.from_plain(json.loads((entry / "prepared.json").read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, ShoalError):
        return None


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > FRESH_S
    except OSError:
        return False
