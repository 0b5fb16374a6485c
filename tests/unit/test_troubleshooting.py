"""The messages of docs/operations/troubleshooting.md are those that the code has."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operations" / "troubleshooting.md"


def messages() -> list[str]:
    """The first cell of every row, without its backticks."""
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [row for row in rows if row != "message"]


def parts(message: str) -> list[str]:
    """What a message says between the places that differ."""
    return [part.strip() for part in message.split("…") if part.strip(" (")]


@functools.cache
def texts() -> tuple[str, ...]:
    """Every text of the source, with a space for each value put in and without backticks."""
    return tuple(
        text
        for file in (ROOT / "src" / "shoal").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.JoinedStr | ast.Constant) and (text := " ".join(_said(node)).replace("`", ""))
    )


def _said(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _said(value)


def is_said(message: str) -> bool:
    pattern = re.compile(".*".join(re.escape(part) for part in parts(message)), re.DOTALL)
    return any(pattern.search(text) for text in texts())


def test_there_are_twenty_and_the_code_says_each() -> None:
    found = messages()
    assert len(found) == len(set(found)) == 20
    assert [message for message in found if not is_said(message)] == []


def test_a_message_that_nobody_says_is_found() -> None:
    assert is_said("no cluster is operated from …")
    assert not is_said("no cluster is operated by …")
    assert not is_said("… is taken by nobody: …")
