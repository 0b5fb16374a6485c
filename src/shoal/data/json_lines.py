"""Examples from a file of JSON objects, one a line. Standard library; a line is read when it is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shoal.data.lines import lines_of
from shoal.errors import Corrupt


class JsonLines:
    """A Dataset of dicts. A last line without a line break counts once it is a whole object."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lines = lines_of(self._path)
        self._count = len(self._lines) + _is_object(self._lines.tail)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self._count:
            raise IndexError(f"{self._path} holds examples 0 to {self._count - 1}, not {index}")
        number, line = self._lines[index]
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Corrupt(f"{self._path}, line {number}: this is no JSON ({error})") from None
        if not isinstance(row, dict):
            raise Corrupt(f'{self._path}, line {number}: a line is an object such as {{"text": "a word"}}')
        return row


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict) if line else False
    except (ValueError, RecursionError):
        return False


def jsonl(path: str | Path) -> JsonLines:
    """The objects of a .jsonl file, one a line: their keys are the columns. The file may grow between leases."""
    return JsonLines(path)
