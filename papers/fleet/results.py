"""The measured rows, a file an experiment: what was run when, on what machine. Knows no experiment."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from papers.eddl.results import machine, rounded
from papers.eddl.rows import Row

FOLDER = Path(__file__).resolve().with_name("results")


def read() -> dict[str, Any]:
    """Everything that was measured, by experiment."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def write(name: str, rows: list[Row], seconds: float) -> Path:
    """In the place of older rows of the same experiment."""
    path = FOLDER / f"{name}.json"
    path.write_text(text_of(rows, seconds))
    return path


def text_of(rows: list[Row], seconds: float) -> str:
    """JSON with one line a row, so that a change shows which."""
    head = {"date": datetime.now(UTC).date().isoformat(), "seconds": round(seconds), "machine": machine()}
    lines = ",\n".join(f"  {json.dumps(plain(row))}" for row in rows)
    return f'{json.dumps(head)[:-1]},\n "rows": [\n{lines}\n]}}\n'


def plain(value: Any) -> Any:
    """Floats to a few digits, wherever they are."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [plain(part) for part in value]
    return rounded(value)
