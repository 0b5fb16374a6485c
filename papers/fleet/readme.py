"""The tables of README.md, from the rows that were measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from papers import marks
from papers.fleet import tables

FILE = Path(__file__).resolve().with_name("README.md")


def fill(kept: dict[str, Any]) -> Path:
    FILE.write_text(filled(FILE.read_text(), kept))
    return FILE


def filled(text: str, kept: dict[str, Any]) -> str:
    """The same text with every table made anew. A table of what was not measured says so."""
    rows = {name: told["rows"] for name, told in kept.items()}

    def table(name: str) -> str:
        if name == marks.MACHINE:
            return tables.machine(kept)
        needed, draw = tables.TABLES[name]
        return draw(rows) if any(one in rows for one in needed) else "*Not measured.*"

    return marks.filled(text, tables.TABLES, table)
