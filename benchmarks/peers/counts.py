"""What a user writes and types, counted from the files and commands that the benchmark itself runs. Knows no peer."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

#: How a comment begins in files that are not Python.
_COMMENT = "#"
WRITTEN = (".py", ".toml", ".yml", ".yaml")


def lines_of(path: Path) -> int:
    """Lines that say something: not blank, not a comment, not a docstring."""
    text = path.read_text(encoding="utf-8")
    skipped = docstring_lines(text) if path.suffix == ".py" else set()
    return sum(
        bool(line.strip()) and not line.strip().startswith(_COMMENT) and number not in skipped
        for number, line in enumerate(text.splitlines(), start=1)
    )


def docstring_lines(source: str) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            found.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return found


def user_files(folder: Path) -> list[Path]:
    """All that a user writes lies in one folder."""
    return sorted(path for path in folder.rglob("*") if path.suffix in WRITTEN)


def lines_user_writes(folder: Path) -> int:
    return sum(lines_of(path) for path in user_files(folder))


class Typed:
    """Remembers every command that a user types, on whichever machine."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def note(self, words: Sequence[str]) -> None:
        self.commands.append(" ".join(words))

    @property
    def steps(self) -> int:
        return len(self.commands)
