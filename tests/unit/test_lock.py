"""The lock of a development environment: whole, by hash, and without a word of where anything came from."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"([a-z0-9-]+)==([0-9][A-Za-z0-9.]*) --hash=sha256:[0-9a-f]{64}")


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements" / "dev.lock").read_text().splitlines()
    found = [LINE.fullmatch(line) for line in lines if not line.startswith("#")]
    assert all(found), "every line is a version and a hash"
    return {part[1]: part[2] for part in found if part is not None}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def test_every_dependency_is_locked_at_its_floor_or_above_and_torch_is_not() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = locked()
    for wanted in (*project["dependencies"], *project["optional-dependencies"]["dev"]):
        name, _, floor = wanted.partition(">=")
        # An extra brings packages of its own, which are locked too.
        name = name.partition("[")[0]
        assert numbers(pins[name.lower()]) >= numbers(floor), f"{wanted}: run `python tools/tasks.py lock`"
    assert "torch" not in pins
    assert "shoal" not in pins
    # What torch asks for is: installing it brings nothing that is not locked.
    assert {"filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions"} <= set(pins)


def test_what_is_tried_with_the_floors_is_there() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    import tasks

    assert [path for path in tasks.FLOOR_TESTS if not (ROOT / path.partition("::")[0]).exists()] == []
