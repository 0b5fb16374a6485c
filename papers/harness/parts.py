"""Parts of a long experiment that are done, as files, so that a killed run continues.

A part is one run: a rule, a rate and a seed, for example. What it gave is kept as JSON under the run's own key
until the experiment's rows are written.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.results import say

#: Next to the papers' folders, in no commit.
FOLDER = Path(__file__).resolve().parent.parent


@dataclass(slots=True)
class Parts:
    """The parts of one experiment. ``of_about``: how many there are at most, for whoever waits."""

    folder: Path
    of_about: int
    done: int = 0

    def part(self, key: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what this part gave, or run it and keep the result."""
        file = self.folder / f"{digest(key)}.json"
        kept = file.exists()
        if not kept:
            self.folder.mkdir(parents=True, exist_ok=True)
            fresh, began_s = file.with_suffix(".new"), time.monotonic()
            gave = make()
            fresh.write_text(json.dumps({"key": key, "seconds": time.monotonic() - began_s, "gave": gave}))
            os.replace(fresh, file)
        self.done += 1
        told = ", ".join(f"{name} {value}" for name, value in key.items())
        say(f"   part {self.done} of at most {self.of_about}{' (kept)' if kept else ''}: {told}")
        found: dict[str, Any] = json.loads(file.read_text())["gave"]
        return found


def of(paper: str, experiment: str, *, about: int, root: Path = FOLDER) -> Parts:
    return Parts(folder_of(paper, experiment, root=root), about)


def seconds_of(paper: str, experiment: str, *, root: Path = FOLDER) -> float:
    """Return how long the parts took that are kept, before a kill too."""
    files = folder_of(paper, experiment, root=root).glob("*.json")
    return float(sum(json.loads(file.read_text())["seconds"] for file in files))


def drop(paper: str, experiment: str, *, root: Path = FOLDER) -> None:
    """Remove the parts of an experiment whose rows are written."""
    shutil.rmtree(folder_of(paper, experiment, root=root), ignore_errors=True)


def folder_of(paper: str, experiment: str, *, root: Path) -> Path:
    return root / paper / "unfinished" / experiment


def digest(key: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
