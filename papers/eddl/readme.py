"""The tables of README.md, from the rows that were measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from papers import marks
from papers.eddl import results, tables

FILE = Path(__file__).resolve().with_name("README.md")


def fill(kept: dict[str, Any]) -> Path:
    FILE.write_text(filled(FILE.read_text(), kept))
    return FILE


def filled(text: str, kept: dict[str, Any]) -> str:
    """The same text with every table made anew. A table of what was not measured stays as it is."""

    def table(name: str) -> str | None:
        if not kept["experiments"]:
            return None
        if name == marks.MACHINE:
            return tables.machine(kept["machine"], kept["experiments"])
        experiment, draw = tables.TABLES[name]
        rows = results.rows_of(kept, experiment)
        return draw(rows) if rows else None

    return marks.filled(text, tables.TABLES, table)
