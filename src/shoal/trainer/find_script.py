"""Find the script a person means, whose own loop trains. Reads source; never runs it; no torch."""

from __future__ import annotations

import ast
from pathlib import Path

from shoal.errors import Misuse
from shoal.trainer.find import find_task, parse_source
from shoal.trainer.importer import is_script

#: What gives a script's loop its leases, as scripts name it.
_LENDERS = {"shoal.worker", "shoal.lightning", "shoal.huggingface"}


def find_script(text: str) -> tuple[Path, str]:
    """Read ``train.py``. Return the folder to pack and the entry in it."""
    path = Path(text)
    if not path.is_file() or path.suffix != ".py":
        raise Misuse(f"{path} is not a Python file: `shoal run` takes a script such as train.py")
    parse_source(path)
    entry = f"script:{path.name}"
    if not is_script(entry):
        raise Misuse(f"{path.name}: a script's name is made of letters, digits, - and _")
    return path.absolute().parent, entry


def find_task_or_script(text: str) -> tuple[Path, str]:
    """Find a task, or a script: a file that names ``shoal.worker`` or one of the callbacks."""
    path = Path(text)
    if path.is_file() and path.suffix == ".py" and _names(parse_source(path)) & _LENDERS:
        return find_script(text)
    return find_task(text)


def _names(tree: ast.Module) -> set[str]:
    """Return the full names of the attributes that a file uses and of the modules that it imports."""
    names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names
