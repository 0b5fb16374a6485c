"""Long runs that were killed, as files beside the results: each continues from its last look. Knows no experiment.

A file holds the model of every worker, some 200 MB for 200 of them, and goes when its run is done.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().with_name("unfinished")


def file_of(key: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Return the file of the run that has this key."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"{key['method']}-{key['seed']}-{digest}.npz"


def read(file: Path) -> dict[str, np.ndarray] | None:
    """Return a run's state, or None if it has none."""
    if not file.exists():
        return None
    with np.load(file, allow_pickle=False) as saved:
        return dict(saved)


def write(file: Path, state: dict[str, np.ndarray]) -> None:
    """Replace the run's state. A kill in the middle leaves the one before."""
    file.parent.mkdir(exist_ok=True)
    fresh = file.with_suffix(".new")
    with fresh.open("wb") as out:
        np.savez(out, **state)  # type: ignore[arg-type]
    os.replace(fresh, file)
