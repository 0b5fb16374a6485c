"""Finds the line of the task's own code in the stacks that faulthandler writes. Text in, text out; no torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from shoal.errors import Misuse
from shoal.trainer.find import parse_source

_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.+)')
_THREAD = re.compile(r"(?P<current>Current t|T)hread 0x")


def place_in(dump: Iterable[str], bundle_dir: str) -> str:
    """Return the innermost frame in the task's code, or else the innermost of the thread that was running."""
    running: tuple[str, int, str] | None = None
    in_current = True
    for line in dump:
        if thread := _THREAD.match(line):
            in_current = thread["current"] != "T"
        if not (frame := _FRAME.fullmatch(line.rstrip())):
            continue
        file, number, function = frame["file"], int(frame["line"]), frame["function"]
        if Path(file).is_relative_to(bundle_dir):
            return f"{_qualified(Path(file), number, function)} ({Path(file).relative_to(bundle_dir)}:{number})"
        if in_current and running is None:
            running = (file, number, function)
    if running is None:
        return ""
    file, number, function = running
    return f"{function} ({'/'.join(Path(file).parts[-3:])}:{number})"


def _qualified(file: Path, line: int, function: str) -> str:
    """Return the qualified name of a function: ``Digits.loss`` for ``loss``, which is all that faulthandler writes."""
    try:
        scope: ast.AST = parse_source(file)
    except (OSError, Misuse):
        return function
    names: list[str] = []
    while True:
        inner = [node for node in ast.iter_child_nodes(scope) if _is_scope(node, line)]
        if not inner:
            return ".".join(names) if names and names[-1] == function else function
        scope = inner[0]
        names.append(getattr(scope, "name", ""))


def _is_scope(node: ast.AST, line: int) -> bool:
    if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return node.lineno <= line <= (node.end_lineno or node.lineno)
