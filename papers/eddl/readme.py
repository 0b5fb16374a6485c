"""Puts tables between the marks of README.md, so that no figure there is typed by hand.

A mark is a comment with the table's name; what stands between it and the next end mark is replaced.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from papers.eddl import results, tables
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
        if not kept["experiments"]:
            return found[0]
        if name == "machine":
            body = tables.machine(kept["machine"], kept["experiments"])
        elif name in tables.TABLES:
            experiment, draw = tables.TABLES[name]
            rows = results.rows_of(kept, experiment)
            if not rows:
                return found[0]
            body = draw(rows)
        else:
            raise Misuse(f"README.md asks for a table {name!r}; there are: machine, {', '.join(tables.TABLES)}")
        return f"<!-- table: {name} -->\n{body}\n<!-- end -->"

    return _MARKED.sub(put, text)
