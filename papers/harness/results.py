"""Measured rows in files: an experiment's rows, its date and its machine. Knows no experiment."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from papers.harness.rows import Row, Rows

#: Digits that are kept: more are noise, and make every run a change of the whole file.
_DIGITS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """An experiment that was run."""

    rows: list[Row]
    date: str
    machine: dict[str, Any]
    #: None where each row says its own.
    seconds: float | None = None


#: By experiment.
Kept: TypeAlias = dict[str, Measured]


class Store(Protocol):
    def read(self) -> Kept:
        """Every experiment that was measured."""

    def write(self, name: str, rows: list[Row], seconds: float) -> None:
        """Replace the older rows of the same experiment."""


@dataclass(frozen=True, slots=True)
class OneFile:
    """All experiments in one file, with the machine of the last one."""

    file: Path

    def read(self) -> Kept:
        if not self.file.exists():
            return {}
        plain = json.loads(self.file.read_text())
        return {name: Measured(machine=plain["machine"], **told) for name, told in plain["experiments"].items()}

    def write(self, name: str, rows: list[Row], seconds: float) -> None:
        kept = self.read() | {name: measured(rows, seconds)}
        parts = []
        for each, told in sorted(kept.items()):
            head = json.dumps({"date": told.date, "seconds": told.seconds})[:-1]
            parts.append(f'  {json.dumps(each)}: {head}, "rows": [\n{_lines(told.rows, indent=4)}\n  ]}}')
        experiments = ",\n".join(parts)
        self.file.write_text(
            f'{{"machine": {json.dumps(kept[name].machine)},\n "experiments": {{\n{experiments}\n}}}}\n'
        )


@dataclass(frozen=True, slots=True)
class Folder:
    """A file for each experiment, with its own machine."""

    folder: Path

    def read(self) -> Kept:
        return {path.stem: Measured(**json.loads(path.read_text())) for path in sorted(self.folder.glob("*.json"))}

    def write(self, name: str, rows: list[Row], seconds: float) -> None:
        told = measured(rows, seconds)
        head = json.dumps({"date": told.date, "seconds": told.seconds, "machine": told.machine})[:-1]
        self.folder.mkdir(exist_ok=True)
        (self.folder / f"{name}.json").write_text(f'{head},\n "rows": [\n{_lines(told.rows, indent=2)}\n]}}\n')


def rows_of(kept: Kept) -> Rows:
    return {name: told.rows for name, told in kept.items()}


def measured(rows: list[Row], seconds: float) -> Measured:
    """Rows measured today on this machine."""
    return Measured(rows=[rounded(row) for row in rows], date=today(), machine=this_machine(), seconds=round(seconds))


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def this_machine() -> dict[str, Any]:
    """The facts on which measured figures depend."""
    return {
        "cores": os.cpu_count() or 1,
        "processor": platform.machine(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "torch": version("torch").partition("+")[0],
        "numpy": version("numpy"),
    }


def rounded(value: Any) -> Any:
    """The same value with a few digits of each float, however deep it lies."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _lines(rows: list[Row], *, indent: int) -> str:
    """One line a row, so that a change shows which row changed."""
    return ",\n".join(" " * indent + json.dumps(row) for row in rows)
