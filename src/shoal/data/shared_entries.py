"""The approved entries of a shared set, as `shoal train --shared SET` gives them to a task. Standard library only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shoal.errors import Misuse

#: Set for the process that prepares the job: a folder with the approved files.
SHARED_VARIABLE = "SHOAL_SHARED"


class SharedEntries:
    """A Dataset of dicts. An entry that several files hold is there once."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._lines = distinct(files)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self._lines):
            raise IndexError(f"the shared set holds entries 0 to {len(self._lines) - 1}, not {index}")
        entry: dict[str, Any] = json.loads(self._lines[index])
        return entry


def distinct(files: Iterable[Path]) -> list[bytes]:
    """Return the entries of files as lines, each once, in the order of the files."""
    return list(dict.fromkeys(line for file in files for line in file.read_bytes().splitlines()))


def shared() -> SharedEntries:
    """The approved entries of the set that ``shoal train --shared SET`` named. For ``Task.examples``."""
    folder = os.environ.get(SHARED_VARIABLE, "")
    if not folder:
        raise Misuse("this task trains on a shared set: start it with `shoal train TASK --shared SET`")
    return SharedEntries(sorted(Path(folder).iterdir()))
