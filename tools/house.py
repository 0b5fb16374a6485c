"""The house in figures: its size, its names, its largest classes and files, its import circles. Reads code, runs none.

Each function takes parsed modules and returns the places that a person would mend; ``figures`` counts them.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: The optional features: a newcomer reads the core without the packages of these names.
FEATURES = frozenset({"console", "exporter", "flock", "offload"})

#: Above these, a class or a file is named as one to mend.
CLASS_METHODS_LIMIT = 60
FILE_LINES_LIMIT = 900

#: The figures that must be 0 for ``ci`` to pass. A figure joins this list once it is 0.
FENCES: tuple[str, ...] = (
    *("import_circles", "public_names_twice", "dead_references", "handlers_unlike_their_message"),
    *("files_with_more_markers", "plan_pairs_without_reason"),
)

#: A step of the walk from a trained tensor to a new version: "3. `roles/worker/worker.py::Worker.on_trained` ...".
_STEP = re.compile(r"^\d+\. .*`[^`]+::[^`]+`", re.MULTILINE)
_NAMED_FILE = re.compile(r"`([\w/]+\.py)::")
#: The headings of walks in the first hour's page.
UPDATE_WALK = "From the worker to the leader"
SEALED_WALK = "A sealed sum"


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    #: With dots, from the package's own name on; a package's is that of its ``__init__.py``.
    name: str
    path: str
    lines: int
    tree: ast.Module
    is_package: bool = False


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return every node of a tree. The figures look at each tree about ten times; a walk takes as long as parsing."""
    return tuple(ast.walk(tree))


def read(root: Path) -> dict[str, Module]:
    """Every module of the package in this folder, by name."""
    modules = {}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root.parent)
        is_package = path.name == "__init__.py"
        name = ".".join((inside.parent if is_package else inside.with_suffix("")).parts)
        text = path.read_text(encoding="utf-8")
        modules[name] = Module(
            name=name,
            path=inside.as_posix(),
            lines=len(text.splitlines()),
            tree=ast.parse(text, filename=str(path)),
            is_package=is_package,
        )
    return modules


def of_a_feature(module: Module) -> bool:
    """Whether it lies in a package of a feature."""
    return not FEATURES.isdisjoint(module.path.split("/")[:-1])


def names_twice(modules: Iterable[Module]) -> dict[str, list[str]]:
    """Public class names that several files define at their top level -> the files."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(module.path)
    return {name: sorted(paths) for name, paths in sorted(found.items()) if len(paths) > 1}


def class_methods(modules: Iterable[Module]) -> dict[str, int]:
    """``path::Class`` -> its methods, properties among them; the largest class first."""
    found = {}
    for module in modules:
        for node in nodes(module.tree):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in node.body)
                found[f"{module.path}::{node.name}"] = methods
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def file_lines(modules: Iterable[Module]) -> dict[str, int]:
    """Path -> lines; the longest file first."""
    return dict(sorted(((module.path, module.lines) for module in modules), key=lambda item: (-item[1], item[0])))


def imports(module: Module, known: Mapping[str, Module]) -> set[str]:
    """The known modules that it imports while it runs, at its top or inside a function."""
    found = set()
    for node in _runtime_imports(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        else:
            source = _source(module, node)
            # `from package import x` is the module x where there is one, and otherwise the package's own file.
            found |= {inner if (inner := f"{source}.{alias.name}") in known else source for alias in node.names}
    return (found & known.keys()) - {module.name}


@functools.cache
def _runtime_imports(tree: ast.AST) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the imports of a tree except those that only a type checker sees. Expressions hold none."""
    found: list[ast.Import | ast.ImportFrom] = []
    waiting = list(ast.iter_child_nodes(tree))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting += node.orelse
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            waiting += [other for other in ast.iter_child_nodes(node) if not isinstance(other, ast.expr)]
    return tuple(found)


def _source(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    base = parts[: len(parts) - node.level + module.is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Modules that import each other, directly or through others: strongly connected components of two or more."""
    reached = {name: _reachable(graph, name) for name in graph}
    found: list[list[str]] = []
    seen: set[str] = set()
    for name in sorted(graph):
        if name in seen:
            continue
        circle = sorted(other for other in reached[name] if name in reached.get(other, ()))
        seen.update(circle)
        if len(circle) > 1:
            found.append(circle)
    return found


def _reachable(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    """Every module that an import of this one leads to; itself only where a way leads back."""
    found: set[str] = set()
    left = list(graph[start])
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left.extend(graph.get(name, ()))
    return found


def import_circles(modules: Mapping[str, Module]) -> list[list[str]]:
    return circles({name: imports(module, modules) for name, module in modules.items()})


def handoffs(text: str | None, walk: str) -> int | None:
    """Return the numbered steps of one walk through the code, or None if the page is not written yet."""
    return None if text is None else len(_STEP.findall(_section(text, walk)))


def files_opened(text: str | None, walk: str) -> int | None:
    """Return how many files the functions of one walk are in."""
    return None if text is None else len(set(_NAMED_FILE.findall(_section(text, walk))))


def _section(text: str, walk: str) -> str:
    """Return the part of a page below the heading that begins so."""
    _, _, rest = text.partition(f"\n## {walk}")
    return rest.partition("\n## ")[0]


def figures(modules: Mapping[str, Module], first_hour: str | None) -> dict[str, int | None]:
    every = modules.values()
    return {
        "core_lines": sum(module.lines for module in every if not of_a_feature(module)),
        "src_lines": sum(module.lines for module in every),
        "public_names_twice": len(names_twice(every)),
        "class_methods_max": max(class_methods(every).values(), default=0),
        "file_lines_max": max(file_lines(every).values(), default=0),
        "import_circles": len(import_circles(modules)),
        "handoffs_update": handoffs(first_hour, UPDATE_WALK),
        "handoffs_failover": handoffs(first_hour, "A failover"),
        "handoffs_sealed": handoffs(first_hour, SEALED_WALK),
        "files_of_a_sealed_sum": files_opened(first_hour, SEALED_WALK),
    }


def to_mend(modules: Mapping[str, Module]) -> list[str]:
    """One line for each circle, name, class and file that a person would mend."""
    every = modules.values()
    lines = [f"import circle: {' <-> '.join(circle)}" for circle in import_circles(modules)]
    lines += [f"name twice: {name} in {', '.join(paths)}" for name, paths in names_twice(every).items()]
    for what, found, limit in (
        ("methods", class_methods(every), CLASS_METHODS_LIMIT),
        ("lines", file_lines(every), FILE_LINES_LIMIT),
    ):
        lines += [f"{count} {what}: {place} (at most {limit})" for place, count in found.items() if count > limit]
    return lines


def broken(found: Mapping[str, float | None], fences: Iterable[str] = FENCES) -> list[str]:
    """The fences that are not 0."""
    return [name for name in fences if found[name]]
