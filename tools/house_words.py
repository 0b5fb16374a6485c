"""The house's words in figures: dead references, handlers unlike their message, long functions, plain words.

Like ``house``: each function takes parsed modules or files and returns the places that a person would mend.
"""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import plain_words
from house import Module, nodes

#: A word of code that a comment or a docstring names between backticks: ``Leader._on_update``, ``roles.leader``.
_NAMED = re.compile(r"``?([A-Za-z_][\w.]*[\w])(?:\(\))?``?")
#: A file of this repository that a document names: `src/shoal/plan.py`, `roles/worker/worker.py::Worker`.
_FILE = re.compile(r"`((?:[\w.-]+/)+[\w-]+\.py)(?:::[\w.]+)?`")
#: A word that is not of the code, but of what the code runs on.
_WORDS = re.compile(r"[A-Za-z_]\w*")

#: Above this, a function is named as one to mend.
FUNCTION_LINES_LIMIT = 80

#: Of other programs and systems.
_OUTSIDE = frozenset(
    {
        "ps",
        "grep",
        "AWS_REGION",
        "SCM_RIGHTS",
        "CppNNUpdater.getDampen",
        "wandb.init",
        "HealthCheckResponse",
        "context.auth_context",
        "index.html",
        "y.boxes",
    }
)

#: Attributes and names in `leader.py` whose tests are those of one feature.
_FEATURES = frozenset({"_sealing", "_online"})
_KINDS = frozenset({"kind", "is_closed", "is_sealed"})


def dead_references(modules: Mapping[str, Module], root: Path) -> list[str]:
    """Return ``path: name`` for each name between backticks that no code has, and for each file that a document names
    and nobody has."""
    known, places = _known(modules, root), _places(modules)
    found = []
    for module in modules.values():
        text = (root / "src" / module.path).read_text(encoding="utf-8")
        own = {
            node.id if isinstance(node, ast.Name) else node.arg
            for node in nodes(module.tree)
            if isinstance(node, ast.Name | ast.arg)
        }
        for piece in _prose(module.tree, text):
            for match in _NAMED.finditer(piece):
                name, parts = match[1], match[1].split(".")
                is_placed = len(parts) == 1 or name != name.lower() or parts[0] in places | own
                is_bench = parts[0] == "benchmarks" and (root / f"benchmarks/{parts[-1]}.py").exists()
                if not is_bench and name not in _OUTSIDE and not (is_placed and set(parts) <= known):
                    found.append(f"{module.path}: {name}")
    return [*found, *_dead_files(root)]


def _places(modules: Mapping[str, Module]) -> set[str]:
    """Return the names of modules and packages, ours and those that the code imports; and of ``self``."""
    places = {"self"} | {part for name in modules for part in name.split(".")}
    for module in modules.values():
        for node in nodes(module.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                places |= {part for alias in node.names for part in (alias.asname or alias.name).split(".")}
                places |= set((getattr(node, "module", None) or "").split("."))
    return places


def _known(modules: Mapping[str, Module], root: Path) -> set[str]:
    """Return every word of the code, of its strings, and of what is not Python: options, messages, commands."""
    known: set[str] = set()
    for module in modules.values():
        known.update(module.name.split("."))
        docstrings = {id(node) for node in _docstrings(module.tree)}
        for node in nodes(module.tree):
            match node:
                case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.keyword(arg=str(word)):
                    known.add(word)
                case ast.FunctionDef(name=word) | ast.AsyncFunctionDef(name=word) | ast.ClassDef(name=word):
                    known.add(word)
                case ast.alias(name=word):
                    known.update(word.split("."))
                case ast.Constant(value=str(word)) if id(node) not in docstrings:
                    known.update(_WORDS.findall(word))
    for folder, endings in (("tab/src", (".ts",)), ("src/shoal", (".proto", ".js", ".sql")), ("tests", (".py",))):
        for path in (root / folder).rglob("*"):
            if path.suffix in endings and "node_modules" not in path.parts:
                known.update(_WORDS.findall(path.read_text(encoding="utf-8")))
    return known


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in nodes(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def _prose(tree: ast.Module, text: str) -> Iterator[str]:
    """Return docstrings and comments."""
    for node in _docstrings(tree):
        if isinstance(node.value, str):
            yield node.value
    # Reading tokens would take ten times as long; a `#` inside a string is rare, and does no harm.
    yield from (line.partition("#")[2] for line in text.splitlines() if "#" in line and "`" in line)


def _dead_files(root: Path) -> Iterator[str]:
    # A decision or a change tells of its day.
    pages = [root / "README.md", root / "ARCHITECTURE.md", root / "CONTRIBUTING.md", root / "SECURITY.md"]
    pages += [path for path in (root / "docs").rglob("*.md") if "decisions" not in path.parts]
    for page in pages:
        for name in _FILE.findall(page.read_text(encoding="utf-8")):
            if not any((root / place / name).exists() for place in ("", "src", "src/shoal")):
                yield f"{page.relative_to(root).as_posix()}: {name}"


def handlers_unlike_their_message(modules: Mapping[str, Module]) -> list[str]:
    """Return the handlers of roles that are not named after the message that they take."""
    found = plain_words.unlike_handlers({module.path: module.tree for module in modules.values()})
    return [f"{path}: {node.name}({message})" for path, node, message in found]


def function_lines(modules: Iterable[Module]) -> dict[str, int]:
    """Return ``path::function`` -> its lines; the longest first."""
    found = {
        f"{module.path}::{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules
        for node in nodes(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def feature_tests(module: Module) -> list[int]:
    """Return the lines of a module that branch on how updates are gathered or where data are."""
    lines = []
    for node in nodes(module.tree):
        tests: list[ast.expr] = []
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            tests = [node.test]
        elif isinstance(node, ast.BoolOp):
            tests = list(node.values)
        elif isinstance(node, ast.comprehension):
            tests = node.ifs
        elif isinstance(node, ast.match_case) and node.guard is not None:
            tests = [node.guard]
        lines += [test.lineno for test in tests if any(_is_of_a_feature(part) for part in ast.walk(test))]
    return sorted(set(lines))


def _is_of_a_feature(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _FEATURES | _KINDS


@dataclass(frozen=True, slots=True)
class Wording:
    """How plainly a file is written."""

    words: int
    markers: int
    weight: float


@functools.cache
def wording(path: Path) -> Wording:
    pieces = list(plain_words.python_pieces(path) if path.suffix == ".py" else plain_words.markdown_pieces(path))
    found = [each for piece in pieces for each in plain_words.findings(piece)]
    words = sum(len(re.findall(r"[A-Za-z][\w'’-]*", piece.text)) for piece in pieces)
    return Wording(words, len(found), sum(each.weight for each in found))


def plain_words_score(paths: Iterable[Path]) -> float:
    """Return the weighted markers per 1,000 words of these files and folders."""
    files = plain_words.collect([str(path) for path in paths])
    handlers = plain_words.handler_findings([path for path in files if path.suffix == ".py"])
    weight = sum(wording(path).weight for path in files) + sum(found.weight for found in handlers)
    return round(1000 * weight / max(1, sum(wording(path).words for path in files)), 1)


def markers(paths: Iterable[Path], root: Path) -> dict[str, int]:
    """Return how many markers of unidiomatic wording each file has, by its path in the repository."""
    files = plain_words.collect([str(path) for path in paths])
    return {path.relative_to(root).as_posix(): count for path in files if (count := wording(path).markers)}


def texts(root: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders and files of the source, and of the documents."""
    return [root / "src" / "shoal"], [root / "README.md", root / "ARCHITECTURE.md", root / "docs"]


def allowed_markers(root: Path) -> dict[str, int]:
    """Return how many markers each file may have; one that is not in the list may have none."""
    found: dict[str, int] = json.loads((root / "tools" / "plain_words.json").read_text(encoding="utf-8"))
    return found


def grown(found: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """Return one line per file that has more markers than it may have."""
    return [
        f"{path}: {count} markers, {allowed.get(path, 0)} before"
        for path, count in found.items()
        if count > allowed.get(path, 0)
    ]


def lowered(found: Mapping[str, int], allowed: Mapping[str, int]) -> dict[str, int]:
    """Return what each file may have from now on: never more than before."""
    return {path: may for path, count in found.items() if (may := min(count, allowed.get(path, 0)))}


def more_markers(root: Path) -> list[str]:
    """Return the files that have more markers than ``tools/plain_words.json`` allows them."""
    source, documents = texts(root)
    return grown(markers([*source, *documents], root), allowed_markers(root))


def figures(modules: Mapping[str, Module], root: Path) -> dict[str, float]:
    leader = modules["shoal.roles.leader.leader"]
    source, documents = texts(root)
    return {
        "feature_tests_in_leader": len(feature_tests(leader)),
        "leader_lines": leader.lines,
        "dead_references": len(dead_references(modules, root)),
        "handlers_unlike_their_message": len(handlers_unlike_their_message(modules)),
        "plain_words_src": plain_words_score(source),
        "plain_words_docs": plain_words_score(documents),
        "files_with_more_markers": len(more_markers(root)),
        "function_lines_max": max(function_lines(modules.values()).values(), default=0),
    }


def to_mend(modules: Mapping[str, Module], root: Path) -> list[str]:
    """Return one line per dead reference, handler, file with more markers, and long function."""
    lines = [f"dead reference: {each}" for each in dead_references(modules, root)]
    lines += [f"handler unlike its message: {each}" for each in handlers_unlike_their_message(modules)]
    lines += more_markers(root)
    long = ((place, count) for place, count in function_lines(modules.values()).items() if count > FUNCTION_LINES_LIMIT)
    return [*lines, *(f"{count} lines: {place} (at most {FUNCTION_LINES_LIMIT})" for place, count in long)]
