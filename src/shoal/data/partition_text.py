"""Reads a partition as it is written on a command line: ``dirichlet(0.1)``. Runs nothing of what it reads."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from shoal.data import partition as parts
from shoal.data.partition import Partition
from shoal.errors import Misuse

#: What may be written, for people.
EXAMPLES = (
    "iid, dirichlet(0.1), dirichlet(0.1, least=5), pathological(2), by(writer), drawn(20, 0.1),"
    " sizes(1.2, dirichlet(0.1))"
)

_KINDS: dict[str, Callable[..., Partition]] = {
    "iid": parts.iid,
    "dirichlet": parts.dirichlet,
    "pathological": parts.pathological,
    "by": parts.by,
    "drawn": parts.drawn,
    "sizes": parts.sizes,
}

_LONGEST = 200


def parse_partition(text: str) -> Partition:
    """Return the partition that a person typed."""
    try:
        if len(text) > _LONGEST:
            raise ValueError
        return _made(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError):
        raise Misuse(f"{text[:_LONGEST]!r} is not a partition; there are: {EXAMPLES}") from None


def _made(node: ast.expr) -> Partition:
    name, given, named = node, list[ast.expr](), list[ast.keyword]()
    if isinstance(node, ast.Call):
        name, given, named = node.func, node.args, node.keywords
    if not isinstance(name, ast.Name) or name.id not in _KINDS:
        raise ValueError
    # A key without a name is **something, which no call takes.
    words = {str(word.arg): _argument(word.value) for word in named}
    return _KINDS[name.id](*map(_argument, given), **words)


def _argument(node: ast.expr) -> Any:
    """Return a number, a text, or a partition. A column may be written without quotes, which shells remove."""
    if isinstance(node, ast.Call):
        return _made(node)
    if isinstance(node, ast.Name):
        return parts.iid() if node.id == "iid" else node.id
    return ast.literal_eval(node)
