"""Puts tables between the marks of README.md, so that no figure there is typed by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from papers.fleet.tables import machine
from papers.mdldroid import tables
from shoal.errors import Misuse

FILE = Path(__file__).resolve().with_name("README.md")

_MARKED = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def fill(kept: dict[str, Any]) -> Path:
    FILE.write_text(filled(FILE.read_text(), kept))
    return FILE


def filled(text: str, kept: dict[str, Any]) -> str:
    """The same text with every table made anew. A table of what was not measured says so."""
    rows = {name: told["rows"] for name, told in kept.items()}

    def put(found: re.Match[str]) -> str:
        name = found[1]
        if name == "machine":
            body = machine(kept)
        elif name in tables.TABLES:
            needed, draw = tables.TABLES[name]
            body = draw(rows) if any(one in rows for one in needed) else "*Not measured.*"
        else:
            raise Misuse(f"README.md asks for a table {name!r}; there are: machine, {', '.join(tables.TABLES)}")
        return f"<!-- table: {name} -->\n{body}\n<!-- end -->"

    return _MARKED.sub(put, text)
