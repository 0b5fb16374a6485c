"""Puts tables between the marks of README.md, so that no figure there is typed by hand.

A mark is a comment with the table's name; what stands between it and the next end mark is replaced.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from papers.dcl import results, tables
from papers.eddl.tables import machine
from shoal.errors import Misuse

FILE = Path(__file__).resolve().with_name("README.md")

_MARKED = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def fill(kept: dict[str, Any]) -> Path:
    FILE.write_text(filled(FILE.read_text(), kept))
    return FILE


def filled(text: str, kept: dict[str, Any]) -> str:
    """The same text with every table made anew. A table of what was not measured stays as it is."""

    def put(found: re.Match[str]) -> str:
        name = found[1]
        if name != "machine" and name not in tables.TABLES:
            raise Misuse(f"README.md asks for a table {name!r}; there are: machine, {', '.join(tables.TABLES)}")
        if not kept["experiments"]:
            return found[0]
        if name == "machine":
            body = machine(kept["machine"], kept["experiments"])
        else:
            rows = results.rows_of(kept, tables.TABLES[name][0])
            if not rows:
                return found[0]
            body = tables.TABLES[name][1](rows)
        return f"<!-- table: {name} -->\n{body}\n<!-- end -->"

    return _MARKED.sub(put, text)
