"""The measured rows as files, one for each experiment, and which runs are still to do. Knows no table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from papers.adacomp.runs import Run
from papers.eddl.results import machine, rounded
from papers.eddl.rows import Row

FOLDER = Path(__file__).resolve().with_name("results")


def read(name: str, folder: Path = FOLDER) -> list[Row]:
    """The rows of an experiment; none if nothing was measured."""
    file = folder / f"{name}.json"
    rows: list[Row] = json.loads(file.read_text())["rows"] if file.exists() else []
    return rows


def read_all(folder: Path = FOLDER) -> dict[str, list[Row]]:
    return {file.stem: read(file.stem, folder) for file in sorted(folder.glob("*.json"))}


def told_machine(folder: Path = FOLDER) -> dict[str, Any]:
    """Of the file written last."""
    files = sorted(folder.glob("*.json"), key=lambda file: str(json.loads(file.read_text())["date"]))
    found: dict[str, Any] = json.loads(files[-1].read_text()) if files else {}
    return {"machine": found.get("machine"), "date": found.get("date")}


def keep(name: str, row: Row, key: dict[str, Any], folder: Path = FOLDER) -> None:
    """Put a row in the place of the one with its key."""
    folder.mkdir(exist_ok=True)
    rows = [other for other in read(name, folder) if not _has(other, key)]
    rows.append({name: rounded(value) for name, value in row.items()})
    body = ",\n".join(json.dumps(row) for row in rows)
    head = json.dumps({"date": datetime.now(UTC).date().isoformat(), "machine": machine()})[:-1]
    # One line a row, so that a change shows which.
    (folder / f"{name}.json").write_text(f'{head}, "rows": [\n{body}\n]}}\n')


def missing(name: str, runs: Sequence[Run], folder: Path = FOLDER) -> list[Run]:
    """Those that have no row yet."""
    rows = read(name, folder)
    return [run for run in runs if not any(_has(row, run.key) for row in rows)]


def _has(row: Row, key: dict[str, Any]) -> bool:
    return all(row.get(name) == value for name, value in key.items())
