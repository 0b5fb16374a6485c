"""The reference of docs/reference.md: every key of a plan and every method of a task, from the code itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HEAD = """\
# Reference: plan keys and task methods

Written by `python tools/tasks.py reference` from `src/shoal/plan.py` and `src/shoal/task.py`; a test holds it to them.
[docs/tasks.md](tasks.md) and [docs/plan.md](plan.md) teach the same things in order.
"""


def written(root: Path) -> str:
    """The page of a tree."""
    source = root / "src" / "shoal"
    return "\n".join([HEAD, _plan(source / "plan.py"), _task(source / "task.py")])


def _plan(file: Path) -> str:
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    plan = _class(ast.parse(text), "Plan")
    rows = ["## Plan keys", "", "| key | type | default | meaning |", "|---|---|---|---|"]
    told = ""
    for node in plan.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        # A comment speaks of every key below it, up to an empty line.
        told = _comment_above(lines, node.lineno) or (told if lines[node.lineno - 2].strip() else "")
        default = ast.unparse(node.value) if node.value is not None else "required"
        default = "left out: it follows from other keys" if default == "_UNSAID" else default
        default = re.sub(r"dataclasses\.field\(default_factory=lambda: (.*)\)$", r"\1", default)
        rows.append(f"| `{node.target.id}` | {ast.unparse(node.annotation)} | `{default}` | {_cell(told)} |")
    return "\n".join([*rows, ""])


def _comment_above(lines: list[str], number: int) -> str:
    found: list[str] = []
    for line in reversed(lines[: number - 1]):
        if not line.strip().startswith("#:"):
            break
        found.append(line.strip().removeprefix("#:").strip())
    return " ".join(reversed(found))


def _task(file: Path) -> str:
    task = _class(ast.parse(file.read_text(encoding="utf-8")), "Task")
    parts = ["## Task methods", ""]
    for node in task.body:
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        if any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list):
            continue
        returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
        lines = (ast.get_docstring(node) or "").splitlines()
        parts += [f"### `{node.name}({ast.unparse(node.args)}){returns}`", "", *lines, ""]
    return "\n".join(parts)


def _class(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
