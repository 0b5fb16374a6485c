"""Puts tables between the marks of README.md, so that no figure there is typed by hand.

A mark is a comment with the table's name; what stands between it and the next end mark is replaced.
"""

from __future__ import annotations

import re
from pathlib import Path

from papers.adacomp import results, tables
from papers.adacomp.tables import Rows
from shoal.errors import Misuse

FILE = Path(__file__).resolve().with_name("README.md")

_MARKED = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def fill(rows: Rows) -> Path:
    FILE.write_text(filled(FILE.read_text(), rows))
    return FILE


def filled(text: str, rows: Rows) -> str:
    """The same text with every table made anew; where nothing was measured, as it is."""

    def put(found: re.Match[str]) -> str:
        name = found[1]
        if name != "machine" and name not in tables.TABLES:
            raise Misuse(f"README.md asks for a table {name!r}; there are: machine, {', '.join(tables.TABLES)}")
        if not rows:
            return found[0]
        body = tables.machine(results.told_machine(), rows) if name == "machine" else tables.TABLES[name](rows)
        return f"<!-- table: {name} -->\n{body}\n<!-- end -->"

    return _MARKED.sub(put, text)
