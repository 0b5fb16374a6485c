"""Finds the task a person means: in a directory, a file, or a live object. Reads source, never runs it; no torch."""

from __future__ import annotations

import ast
import inspect
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.errors import Misuse
from shoal.task import Task
from shoal.trainer.importer import parse_entry
from shoal.trainer.notebook_source import typed_in, written_module
from shoal.wire.limits import BUNDLE_FILE_MAX_BYTES

_OWN_LOOP = (
    ". Or keep the training loop that the script has: let it go through `shoal.worker`, which takes four lines"
    " (docs/loops.md), and start it with `shoal run {path}`"
)


def find_task(text: str) -> tuple[Path, str]:
    """Read ``examples/mnist``, ``file.py`` or either with ``:Class``. Return the path to pack and the entry in it."""
    path, class_name = _split(text)
    if path.is_dir():
        usual = path / "task.py"
        files = [usual] if usual.is_file() else sorted(path.glob("*.py"))
        if not files:
            raise Misuse(f"{path} holds no Python file; put a task in {usual}")
    elif path.is_file() and path.suffix == ".py":
        files = [path]
    else:
        raise Misuse(f"{path} is neither a directory nor a Python file")
    if class_name:
        # Its base may come from another file, which the source does not show. The import will fail if it is not a task.
        choices = [(file, class_name) for file in files if class_name in _class_names(parse_source(file))]
    else:
        choices = _tasks_of(files)
    match choices:
        case [(file, name)]:
            return path, _entry(file, name)
        case []:
            what = f"task {class_name}" if class_name else "task"
            own_loop = "" if class_name or path.is_dir() else _OWN_LOOP.format(path=path)
            wanted = f"write class {class_name or 'MyTask'}(shoal.Task){own_loop}{_perhaps(files)}"
            raise Misuse(f"{path} defines no {what}: {wanted}")
    named = " or ".join(f"{path}:{name}" for _, name in choices[:5])
    raise Misuse(f"{path} defines {len(choices)} tasks; name one: {named}")


def source_of(task: Task, scratch: Path | None = None) -> tuple[Path, str]:
    """Return the file that defines a live task, and the entry in it, so that other devices can build the same.

    A task of a notebook's cell is written to a file in ``scratch`` first, with the names that it uses.
    """
    cls = type(task)
    if "<locals>" in cls.__qualname__ or "." in cls.__qualname__:
        raise Misuse(f"{cls.__qualname__} is defined inside something else; move it to the top level of its file")
    module = sys.modules.get(cls.__module__)
    name = getattr(module, "__file__", None)
    try:
        name = name or inspect.getfile(cls)
    except (OSError, TypeError):
        name = None
    file = Path(name or "")
    is_file = file.is_file() and file.suffix == ".py"
    if cls.__module__ == "__main__" and (not is_file or typed_in(cls)):
        path = written_module(cls, scratch or Path(tempfile.mkdtemp(prefix="shoal-task-")))
        return path, _entry(path, cls.__name__)
    if not is_file:
        raise Misuse(
            f"{cls.__name__} is not defined in a file, so other devices cannot import it: "
            "put the class in a file such as task.py and import it from there"
        )
    path = file.resolve()
    return path, _entry(path, cls.__name__)


def tasks_in(file: Path) -> list[str]:
    """Return the task classes that a file defines at top level, without those that are only a base for another in it. A
    base may be imported from a file beside it."""
    return [name for _, name in _tasks_of([file])]


def _tasks_of(files: Sequence[Path]) -> list[tuple[Path, str]]:
    """Return the task classes of these files, each with its file, without those that are only a base for another."""
    read: dict[Path, _TasksRead] = {}
    own = {file.resolve(): file for file in files}
    for file in own:
        _read_tasks(file, read)
    bases = {base for found in read.values() for base in found.bases}
    return [(own[file], name) for file in own for name in read[file].names if (file, name) not in bases]


class _TasksRead:
    """The task classes of one file, in its order, and the classes that they are made of, each with its file."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.bases: set[tuple[Path, str]] = set()


def _read_tasks(file: Path, read: dict[Path, _TasksRead]) -> _TasksRead:
    """Read the task classes of a file, and those of the files beside it that it imports. Each file is read once."""
    if file in read:
        return read[file]
    found = read[file] = _TasksRead()
    tree = parse_source(file)
    #: What the file calls a task -> the class it is; None for shoal.Task itself.
    known: dict[str, tuple[Path, str] | None] = dict.fromkeys(_names_of_task(tree))
    for called, beside, name in _imports_beside(tree, file.parent):
        if name in _read_tasks(beside, read).names:
            known[called] = (beside, name)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            parents = {ast.unparse(base) for base in node.bases} & known.keys()
            if parents:
                known[node.name] = (file, node.name)
                found.names.append(node.name)
                found.bases |= {base for parent in parents if (base := known[parent]) is not None}
    return found


def _imports_beside(tree: ast.Module, directory: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield what a file imports from files beside it: its name here, the file, and its name there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level <= 1 and node.module:
            if (file := _file_beside(directory, node.module)) is not None:
                yield from ((alias.asname or alias.name, file, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if (file := _file_beside(directory, alias.name)) is not None:
                    for name in _class_names(parse_source(file)):
                        yield f"{alias.asname or alias.name}.{name}", file, name


def _file_beside(directory: Path, module: str) -> Path | None:
    """Return the file of a module in this directory, or None if the module is installed elsewhere."""
    file = directory.joinpath(*module.split(".")).with_suffix(".py")
    return file.resolve() if file.is_file() else None


def _perhaps(files: Sequence[Path]) -> str:
    """Return a hint that names a class whose base is imported from elsewhere, or nothing."""
    for file in files:
        for node in parse_source(file).body:
            if isinstance(node, ast.ClassDef) and node.bases:
                base = ast.unparse(node.bases[0])
                return f". If {node.name} is one, by its base {base}, name it: {file}:{node.name}"
    return ""


def parse_source(file: Path) -> ast.Module:
    if file.stat().st_size > BUNDLE_FILE_MAX_BYTES:
        raise Misuse(f"{file} is more than {BUNDLE_FILE_MAX_BYTES:,} bytes: too large for code")
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except (SyntaxError, ValueError) as error:
        raise Misuse(f"{file} is not Python that this version reads: {error}") from None


def _class_names(tree: ast.Module) -> list[str]:
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def _names_of_task(tree: ast.Module) -> set[str]:
    """Return the names that this file has for shoal.Task: ``shoal.Task``, ``Task``, or an alias of either."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in ("shoal", "shoal.task"):
                    names.add(f"{alias.asname or alias.name}.Task")
        elif isinstance(node, ast.ImportFrom) and node.module in ("shoal", "shoal.task") and not node.level:
            for alias in node.names:
                if alias.name == "Task":
                    names.add(alias.asname or alias.name)
                elif alias.name == "task":
                    names.add(f"{alias.asname or alias.name}.Task")
    return names


def _split(text: str) -> tuple[Path, str]:
    head, separator, tail = text.rpartition(":")
    if separator and tail.isidentifier() and not Path(text).exists():
        return Path(head), tail
    return Path(text), ""


def _entry(file: Path, class_name: str) -> str:
    entry = f"{file.stem}:{class_name}"
    parse_entry(entry)
    return entry
