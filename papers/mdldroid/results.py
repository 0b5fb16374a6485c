"""The measured rows, a file an experiment: what was run when, on what machine. Knows no experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from papers.eddl.rows import Row
from papers.fleet.results import text_of

FOLDER = Path(__file__).resolve().with_name("results")


def read() -> dict[str, Any]:
    """Everything that was measured, by experiment."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def write(name: str, rows: list[Row], seconds: float) -> Path:
    """In the place of older rows of the same experiment."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(text_of(rows, seconds))
    return path
