"""Makes a task from an unpacked bundle. Runs the user's code, so only trainer processes call it; no torch here."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from shoal.errors import Misuse
from shoal.task import Task
from shoal.trainer.guard import importing

if TYPE_CHECKING:
    from shoal.learning.algorithm import Algorithm

_T = TypeVar("_T")

_ENTRY = re.compile(r"([\w-]+):([A-Za-z_]\w*)")
_SCRIPT = re.compile(r"script:([\w-]+\.py)")


def parse_entry(entry: str) -> tuple[str, str]:
    """Split ``module:Class``. A module is one file name without ``.py``: no dots, no slashes, no way out."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise Misuse(f"{entry!r} does not name a task; write module:Class, such as task:Digits")
    return match[1], match[2]


def is_script(entry: str) -> bool:
    """Whether an entry names a script, whose own loop trains, and not a task: ``script:train.py``."""
    return _SCRIPT.fullmatch(entry) is not None


def file_of(entry: str) -> str:
    """Return the file of a bundle that an entry names."""
    match = _SCRIPT.fullmatch(entry)
    return match[1] if match else f"{parse_entry(entry)[0]}.py"


def make_task(bundle_dir: Path, entry: str, arguments: dict[str, Any]) -> Task:
    """Import the entry's module from the bundle and build its task with the recorded arguments."""
    found = _class_of(bundle_dir, entry, Task)
    if found is None:
        file, _, name = entry.partition(":")
        raise Misuse(f"{file}.py defines no task {name}: it must be a class derived from shoal.Task")
    return found(**arguments)


def make_algorithm(bundle_dir: Path, entry: str) -> Algorithm:
    """Import the entry's module from the bundle and build its algorithm, which takes no arguments."""
    from shoal.learning.algorithm import Algorithm

    found = _class_of(bundle_dir, entry, Algorithm)
    if found is None:
        file, _, name = entry.partition(":")
        raise Misuse(f"{file}.py defines no algorithm {name}: it must be a class derived from shoal.Algorithm")
    try:
        return found()
    except TypeError as error:
        raise Misuse(f"{entry} cannot be built without arguments ({error}): give each a default value") from None


def _class_of(bundle_dir: Path, entry: str, kind: type[_T]) -> type[_T] | None:
    """Return the class that an entry names, or None if its module has no such class of this kind."""
    stem, class_name = parse_entry(entry)
    file = bundle_dir / f"{stem}.py"
    if not file.is_file():
        raise Misuse(f"the bundle holds no {file.name}")
    found = getattr(_import_file(file, stem), class_name, None)
    return found if isinstance(found, type) and issubclass(found, kind) else None


def _import_file(file: Path, stem: str) -> ModuleType:
    # A script may be called queue.py or test.py. It must not replace the module that other code imports by that name.
    taken = stem in sys.modules or stem in sys.stdlib_module_names
    spec = importlib.util.spec_from_file_location(f"shoal_task_{stem}" if taken else stem, file)
    if spec is None or spec.loader is None:
        raise Misuse(f"{file.name} is not a Python file")
    # At the front, as when Python runs the script itself, so that it can import its neighbours by plain names.
    sys.path.insert(0, str(file.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with importing():
        spec.loader.exec_module(module)
    return module
