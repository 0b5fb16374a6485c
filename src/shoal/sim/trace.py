"""A simulation as lines of JSON: every role's events and actions, in order. Written, read back and compared.

Arrays are written as their shape and a hash. Two runs are the same if their lines are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TextIO

import numpy as np

from shoal.errors import Corrupt
from shoal.sim.observe import Mark, Step

FORMAT = 1

#: Facts that are not written: the action that asked for a save contains them.
_LONG = ("save", "again")

#: Marks that only checks read: the trace has the action that caused them.
_UNWRITTEN = ("trains", "entropy")


class Sink(Protocol):
    """Takes complete lines: a file, or a comparison."""

    def write(self, line: str, /) -> object: ...


class TraceWriter:
    """An observer that writes what it sees."""

    def __init__(self, file: Sink, header: dict[str, Any]) -> None:
        self._file = file
        self._write({"shoal_trace": FORMAT, **header})

    def step(self, step: Step) -> None:
        self._write(step_line(step))

    def mark(self, mark: Mark) -> None:
        if mark.kind in _UNWRITTEN:
            return
        facts = {name: plain(value) for name, value in mark.facts.items() if name not in _LONG}
        self._write({"at_s": mark.at_s, "node": mark.node, "mark": mark.kind, **facts})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(_dump(line))


def step_line(step: Step) -> dict[str, Any]:
    return {
        "at_s": step.at_s,
        "node": step.node,
        "role": step.role,
        "job": step.job,
        "event": plain(step.event),
        "actions": [plain(action) for action in step.actions],
    }


def plain(value: object) -> Any:
    """Return plain values for JSON. Leaves out fields with their defaults, to keep lines short."""
    if isinstance(value, str | int | float | bool | None) and not isinstance(value, Enum):
        return value
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, np.ndarray):
        digest = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=8).hexdigest()
        return f"{value.dtype}{list(value.shape)} {digest}"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(inner) for inner in value)
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        said = {name: plain(inner) for name, inner in fields.items() if not (isinstance(inner, tuple) and not inner)}
        return {"is": type(value).__name__, **said}
    if type(value).__module__.startswith("shoal."):
        # An object that a role keeps and does not read.
        return {"is": type(value).__name__}
    raise TypeError(f"a trace cannot say {type(value).__name__}")


def _dump(line: dict[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":"), ensure_ascii=False, sort_keys=False) + "\n"


# Reading and comparing ---------------------------------------------------------------------------------


def read_header(file: TextIO) -> dict[str, Any]:
    """Read the first line of a trace, with everything needed to replay it."""
    try:
        header = json.loads(file.readline())
        known = isinstance(header, dict) and header.get("shoal_trace") == FORMAT
    except ValueError:
        known = False
    if not known:
        raise Corrupt("this is not a trace of this release: make one with `shoal simulate TASK --trace FILE`")
    return dict(header)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first line in which two traces differ, counted from 1; None where one ended."""

    line: int
    first: str | None
    second: str | None


class Comparison:
    """Compares the lines of one trace with another. Can also be the file that a trace is written to."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.count = 0
        self.difference: Difference | None = None

    def write(self, line: str) -> None:
        """Compare the next line. Stops comparing after the first that differs."""
        if self.difference is None:
            self.count += 1
            old = next(self._lines, None)
            if old != line:
                self.difference = Difference(self.count, old, line)

    def finish(self) -> None:
        """Note that the new trace has ended."""
        old = next(self._lines, None)
        if self.difference is None and old is not None:
            self.difference = Difference(self.count + 1, old, None)


def difference(first: Iterable[str], second: Iterable[str]) -> Difference | None:
    """Return where two traces differ, or None if they are the same."""
    comparison = Comparison(first)
    for line in second:
        comparison.write(line)
    comparison.finish()
    return comparison.difference
