"""Turns a task that was typed into a notebook or at a prompt into a module that other devices import. No torch here.

The class is live, and so is every name it uses. The values of the names come from the namespace; only the source of
functions and classes that were typed in comes from the text of their cells. So the module holds what the names mean
now: imports, constants, functions and classes. Any other kind of value is refused.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import math
import re
import symtable
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from types import CodeType, FunctionType, ModuleType
from typing import Any

from shoal.errors import Misuse

#: The longest constant, as code. A larger one is data, and belongs in ``examples``.
CONSTANT_MAX_CHARS = 100_000
_DEPTH_MAX = 20

_FILE_ADVICE = "put the class in a file such as task.py and import it from there"


def written_module(cls: type[Any], folder: Path) -> Path:
    """Write the module that defines this class and all it uses; beside it, links to the modules it may import."""
    text = module_text(cls)
    file = folder / f"{re.sub(r'(?<=[a-z0-9])(?=[A-Z])', '_', cls.__name__).lower()}.py"
    file.write_text(text, encoding="utf-8")
    _link_neighbours(Path.cwd(), folder)
    return file


def module_text(cls: type[Any]) -> str:
    """Return the source of a module in which this class means what it means here."""
    gathered = _Gathered(vars(sys.modules[cls.__module__]))
    gathered.add(cls.__name__, cls, user="")
    return gathered.text()


def _link_neighbours(here: Path, folder: Path) -> None:
    """Link the files of the working directory, which a cell imports by plain name, so that the bundle finds them."""
    try:
        found = sorted(here.iterdir())
    except OSError:
        return
    for path in found:
        is_module = path.suffix == ".py" or (path / "__init__.py").is_file()
        if is_module and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path.resolve())


# What the names mean ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Definition:
    """A function or a class of the module, and the names that it uses: at once, or only when it is called."""

    text: str
    eager: list[str] = field(default_factory=list)
    lazy: list[str] = field(default_factory=list)


class _Gathered:
    """The names that a class uses, transitively, each with its text in the module."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self._namespace = namespace
        self._imports: dict[str, str] = {}
        self._constants: dict[str, str] = {}
        self._definitions: dict[str, _Definition] = {}
        self._future_annotations = False

    def add(self, name: str, value: object, *, user: str) -> None:
        """Add a name and all that it needs. ``user`` is the definition that uses it, for error messages."""
        if name in self._imports or name in self._constants or name in self._definitions:
            return
        if line := _import_of(name, value, self._namespace):
            self._imports[name] = line
        elif isinstance(value, type) or _is_function(value):
            self._define(name, value, user)
        else:
            self._constants[name] = f"{name} = {_literal(value, name, user)}"

    def _define(self, name: str, value: Any, user: str) -> None:
        text = _source_of(name, value, self._namespace, user)
        for code in _codes_of(value):
            self._future_annotations |= bool(code.co_flags & __future__.annotations.compiler_flag)
        eager, lazy = _free_names(text)
        found = self._definitions[name] = _Definition(text)
        for names, kept in ((eager, found.eager), (lazy, found.lazy)):
            for used in sorted(names - {name}):
                if used in self._namespace:
                    kept.append(used)
                    self.add(used, self._namespace[used], user=name)
                # Else it is a builtin, or a name that is not known here either: the first batch, tried here, will tell.

    def text(self) -> str:
        future = ["from __future__ import annotations"] if self._future_annotations else []
        parts = [*future, *sorted(self._imports.values()), *self._submodules(), *sorted(self._constants.values())]
        return "\n".join(parts) + "".join(f"\n\n\n{self._definitions[name].text}" for name in self._order()) + "\n"

    def _submodules(self) -> list[str]:
        """Return imports for modules that are used as attributes of their package (``xml.etree.ElementTree``)."""
        found: set[str] = set()
        for definition in self._definitions.values():
            for node in ast.walk(ast.parse(definition.text)):
                chain = ast.unparse(node).split(".") if isinstance(node, ast.Attribute) else []
                package = self._namespace.get(chain[0]) if chain and chain[0] in self._imports else None
                if isinstance(package, ModuleType):
                    inside = ".".join((package.__name__, *chain[1:]))
                    if inside in sys.modules:
                        found.add(f'__import__("{inside}")')
        return sorted(found)

    def _order(self) -> list[str]:
        """Order the definitions so that each comes after those it is made with: a base, a decorator, a default, and
        what they call."""
        order: list[str] = []
        entered: set[str] = set()

        def put(name: str) -> None:
            if name in entered or name not in self._definitions:
                return
            entered.add(name)
            for needed in self._definitions[name].eager:
                put(needed)
                for called in self._called_by(needed):
                    put(called)
            order.append(name)

        for name in self._definitions:
            put(name)
        return order

    def _called_by(self, name: str) -> list[str]:
        found: list[str] = []
        waiting = [name]
        while waiting:
            one = self._definitions.get(waiting.pop())
            for used in (*one.eager, *one.lazy) if one else ():
                if used not in found:
                    found.append(used)
                    waiting.append(used)
        return found


def _import_of(name: str, value: object, namespace: Mapping[str, Any]) -> str:
    """Return the line that imports a value under this name, or "" if it does not come from a module."""
    if isinstance(value, ModuleType):
        parent, _, last = value.__name__.rpartition(".")
        if name == value.__name__:
            return f"import {name}"
        # `import torch.nn as nn` fails for a module that is only an attribute of its package, such as os.path.
        is_inside = parent and getattr(sys.modules.get(parent), last, None) is value
        return f"from {parent} import {last} as {name}" if is_inside else f"import {value.__name__} as {name}"
    if line := _typed_import(name, value, namespace):
        return line
    home = getattr(value, "__module__", None)
    known = sys.modules.get(home) if isinstance(home, str) else None
    if known is None or vars(known) is namespace:
        return ""
    # A class or a function by its own name, anything else by the name that it has here.
    for inside in (getattr(value, "__qualname__", ""), name):
        if inside.isidentifier() and getattr(known, inside, None) is value:
            return f"from {home} import {inside} as {name}"
    return ""


def _typed_import(name: str, value: object, namespace: Mapping[str, Any]) -> str:
    """Return the import line of the cell, if it still gives this value: ``torch.relu``, for one, does not have the name
    of its module."""
    for cell in _cells(namespace):
        if name not in cell or "import" not in cell:
            continue
        for node in _top_level(_parsed(cell)):
            if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
                continue
            for alias in node.names:
                is_it = getattr(sys.modules.get(node.module), alias.name, _typed_import) is value
                if (alias.asname or alias.name) == name and is_it:
                    return f"from {node.module} import {alias.name} as {name}"
    return ""


def _literal(value: object, name: str, user: str) -> str:
    try:
        text = _written(value, 0)
    except (TypeError, RecursionError):
        raise Misuse(
            f"{user} uses {name}, a {type(value).__name__}, which cannot be sent as code: make it inside {user}, or "
            "in a function; names from outside may be imports, functions, classes, numbers, texts, and lists, "
            "tuples, sets and dicts of these"
        ) from None
    if len(text) > CONSTANT_MAX_CHARS:
        raise Misuse(
            f"{user} uses {name}, which is {len(text):,} characters as code, more than {CONSTANT_MAX_CHARS:,}: "
            "read it from a file in examples(), or compute it"
        )
    return text


def _written(value: object, depth: int) -> str:
    """Return a constant as code that gives the same value. Only for exact types: a subclass may mean something else."""
    if depth > _DEPTH_MAX:
        raise RecursionError
    kind = type(value)
    if value is None or value is Ellipsis or kind in (bool, int, str, bytes):
        return repr(value)
    if isinstance(value, float) and kind is float:
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if isinstance(value, PurePath):
        return f'__import__("pathlib").Path({str(value)!r})'
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return f'__import__("torch").{str(value).removeprefix("torch.")}'
    if isinstance(value, dict) and kind is dict:
        items = (f"{_written(key, depth + 1)}: {_written(each, depth + 1)}" for key, each in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, list | tuple | set | frozenset) and kind in (list, tuple, set, frozenset):
        inner = [_written(each, depth + 1) for each in value]
        if kind in (set, frozenset):
            # Sorted, so that the same task gives the same bundle.
            return f"{kind.__name__}([{', '.join(sorted(inner))}])"
        return f"[{', '.join(inner)}]" if kind is list else f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
    raise TypeError


def _free_names(text: str) -> tuple[set[str], set[str]]:
    """Return the global names that a definition uses: first those it needs at once, then those its functions need."""
    eager: set[str] = set()
    lazy: set[str] = set()

    def look(table: symtable.SymbolTable, *, is_called: bool) -> None:
        for symbol in table.get_symbols():
            is_outside = symbol.is_global() or (table.get_type() == "module" and not symbol.is_assigned())
            if is_outside and (symbol.is_referenced() or symbol.is_assigned()):
                (lazy if is_called else eager).add(symbol.get_name())
        for inner in table.get_children():
            is_comprehension = inner.get_name() in ("listcomp", "setcomp", "dictcomp", "genexpr")
            is_function = inner.get_type() == "function" and not is_comprehension
            look(inner, is_called=is_called or is_function)

    look(symtable.symtable(text, "<cell>", "exec"), is_called=False)
    return eager, lazy - eager


# The source of a definition --------------------------------------------------------------------------------


def typed_in(cls: type[Any]) -> bool:
    """Whether a class of the main module was typed in, although that module has a file (``%run``, ``python -i``)."""
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    origins = {code.co_filename for code in _codes_of(cls)}
    return (
        bool(file)
        and bool(origins)
        and not any(Path(each).suffix == ".py" and Path(each).is_file() for each in origins)
    )


def _is_function(value: Any) -> bool:
    """Whether this is a function, or one that a decorator wrapped, such as functools.cache."""
    return callable(value) and isinstance(inspect.unwrap(value), FunctionType)


def _codes_of(value: Any) -> Iterator[CodeType]:
    """Yield the compiled functions of a definition that were written in the same cell or file."""
    if not isinstance(value, type):
        yield inspect.unwrap(value).__code__
        return
    for each in vars(value).values():
        function = each.fget if isinstance(each, property) else getattr(each, "__func__", each)
        if isinstance(function, FunctionType) and function.__qualname__.startswith(f"{value.__qualname__}."):
            code = inspect.unwrap(function).__code__
            if code.co_filename != "<string>":
                yield code


def _source_of(name: str, value: Any, namespace: Mapping[str, Any], user: str) -> str:
    qualname = value.__qualname__
    if "." in qualname.replace("<lambda>", ""):
        uses = f"{user} uses it as {name}; " if user else ""
        raise Misuse(f"{qualname} is defined inside something else; {uses}move it to the top level of a cell")
    for lines, first_line in _places_of(value, namespace):
        if text := _statement(lines, name, value, first_line):
            if isinstance(value, type):
                _check_unchanged(value, text)
            return text
    raise Misuse(_no_source(value.__name__, user))


def _no_source(name: str, user: str) -> str:
    what = f"{name} is not defined in a file" + (f" ({user} uses it)" if user else "")
    if hasattr(sys, "ps1") and sys.version_info < (3, 13):
        return (
            f"{what}, and Python keeps no text of what is typed at its prompt before 3.13: "
            f"use IPython or a notebook, or {_FILE_ADVICE}"
        )
    return f"{what}, so other devices cannot import it: {_FILE_ADVICE}"


def _places_of(value: Any, namespace: Mapping[str, Any]) -> Iterator[tuple[list[str], int]]:
    """Yield texts in which a value may be defined, the most likely first, each with the number of a line inside the
    definition, or 0 if it is not known."""
    for code in _codes_of(value):
        if lines := linecache.getlines(code.co_filename):
            yield lines, code.co_firstlineno
            return
    # Without functions of its own (a class of constants, a dataclass): the newest cell that defines the name.
    for cell in _cells(namespace):
        yield cell.splitlines(keepends=True), 0


def _cells(namespace: Mapping[str, Any]) -> list[str]:
    """Return the cells that were typed into IPython, the newest first."""
    typed = namespace.get("In")
    return [cell for cell in reversed(typed) if isinstance(cell, str)] if isinstance(typed, list) else []


def _parsed(cell: str) -> list[ast.stmt]:
    try:
        return ast.parse(cell).body
    except (SyntaxError, ValueError):
        return []


def _statement(lines: list[str], name: str, value: Any, inside: int) -> str:
    """Return the statement of a cell that defines a name, or "" if there is none."""
    found = ""
    for node in _top_level(_parsed("".join(lines))):
        end = node.end_lineno or node.lineno
        if inside and not _first_line(node) <= inside <= end:
            continue
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == value.__name__:
            text = "".join(lines[_first_line(node) - 1 : end]).rstrip()
            found = text if node.col_offset == 0 else ast.unparse(node)
            if name != node.name:
                found += f"\n\n\n{name} = {node.name}"
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda) and name in _targets(node):
            found = f"{name} = {ast.unparse(node.value)}"
    return found


def _targets(node: ast.Assign) -> list[str]:
    return [target.id for target in node.targets if isinstance(target, ast.Name)]


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a cell, including those under an ``if``, a ``try`` or a ``with``."""
    for node in body:
        yield node
        for part in ("body", "orelse", "finalbody", "handlers"):
            inner = getattr(node, part, [])
            if isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
                yield from _top_level(inner)


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def _check_unchanged(cls: type[Any], text: str) -> None:
    """Refuse a class that got a method later: the method is not in its text, so other devices would lack it."""
    table = symtable.symtable(text, "<cell>", "exec")
    body = next(inner for inner in table.get_children() if inner.get_name() == cls.__name__)
    written = set(body.get_identifiers())
    later = [
        each
        for each, method in vars(cls).items()
        if not each.startswith("__")
        and each not in written
        and (isinstance(method, FunctionType | staticmethod | classmethod | property))
    ]
    if later:
        raise Misuse(f"{cls.__name__}.{later[0]} was set after the class was defined: define it in the class")
