"""The tables of README.md, from the rows that were measured."""

from __future__ import annotations

from pathlib import Path

from papers import marks
from papers.adacomp import results, tables
from papers.adacomp.tables import Rows

FILE = Path(__file__).resolve().with_name("README.md")


def fill(rows: Rows) -> Path:
    FILE.write_text(filled(FILE.read_text(), rows))
    return FILE


def filled(text: str, rows: Rows) -> str:
    """The same text with every table made anew; where nothing was measured, as it is."""

    def table(name: str) -> str | None:
        if not rows:
            return None
        return tables.machine(results.told_machine(), rows) if name == marks.MACHINE else tables.TABLES[name](rows)

    return marks.filled(text, tables.TABLES, table)
