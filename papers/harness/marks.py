"""Tables between the marks of a README, so that no figure there is typed by hand.

A mark is a comment with the table's name; the text between it and the next end mark is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from shoal.errors import Misuse

_MARKED = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)

#: The table of the machine, which every paper has.
MACHINE = "machine"


def filled(text: str, names: Iterable[str], table: Callable[[str], str | None]) -> str:
    """The same text with every table made again; a table that is None stays as it is."""
    there = (MACHINE, *names)

    def put(found: re.Match[str]) -> str:
        name = found[1]
        if name not in there:
            raise Misuse(f"README.md asks for a table {name!r}; there are: {', '.join(there)}")
        body = table(name)
        return found[0] if body is None else f"<!-- table: {name} -->\n{body}\n<!-- end -->"

    return _MARKED.sub(put, text)
