"""The measured rows as a file: what was run when, on what machine. Knows no experiment."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from papers.eddl.results import machine, rounded, text_of
from papers.eddl.rows import Row

FILE = Path(__file__).resolve().with_name("results.json")


def read(file: Path = FILE) -> dict[str, Any]:
    """Everything; empty if nothing was measured yet."""
    plain: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"experiments": {}}
    return plain


def rows_of(kept: dict[str, Any], name: str) -> list[Row]:
    """Of one experiment; none if it was not run."""
    rows: list[Row] = kept["experiments"].get(name, {}).get("rows", [])
    return rows


def write(name: str, rows: list[Row], seconds: float, file: Path = FILE) -> None:
    """Put the rows of an experiment in the place of older ones."""
    kept = read(file)
    plain = [{key: rounded(value) for key, value in row.items()} for row in rows]
    today = datetime.now(UTC).date().isoformat()
    kept["experiments"][name] = {"date": today, "seconds": round(seconds), "rows": plain}
    kept["machine"] = machine()
    file.write_text(text_of(kept))
