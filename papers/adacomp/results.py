"""The measured rows, replaced run by run, and the runs that are still to do. Knows no table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from papers.adacomp.runs import Run
from papers.harness.results import Folder, rounded, this_machine, today
from papers.harness.rows import Row

KEPT = Folder(Path(__file__).resolve().with_name("results"))


def read(name: str, kept: Folder = KEPT) -> list[Row]:
    """The rows of an experiment; none if nothing was measured."""
    told = kept.read().get(name)
    return told.rows if told else []


def keep(name: str, row: Row, key: dict[str, Any], kept: Folder = KEPT) -> None:
    """Replace the row that has this key."""
    rows = [other for other in read(name, kept) if not _has(other, key)]
    # Curves keep all their digits.
    rows.append({name: rounded(value) if isinstance(value, float) else value for name, value in row.items()})
    body = ",\n".join(json.dumps(row) for row in rows)
    head = json.dumps({"date": today(), "machine": this_machine()})[:-1]
    # One line a row, so that a change shows which.
    kept.folder.mkdir(exist_ok=True)
    (kept.folder / f"{name}.json").write_text(f'{head}, "rows": [\n{body}\n]}}\n')


def missing(name: str, runs: Sequence[Run], kept: Folder = KEPT) -> list[Run]:
    """The runs that have no row yet."""
    rows = read(name, kept)
    return [run for run in runs if not any(_has(row, run.key) for row in rows)]


def _has(row: Row, key: dict[str, Any]) -> bool:
    return all(row.get(name) == value for name, value in key.items())
