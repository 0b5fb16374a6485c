"""docs/reference.md lists every key of a plan and every method of a task."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from shoal.plan import Plan
from shoal.task import Task

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import reference  # noqa: E402


def test_the_reference_is_what_the_code_says() -> None:
    page = (ROOT / "docs" / "reference.md").read_text()
    assert page == reference.written(ROOT), "run `python tools/tasks.py reference`"


def test_every_key_and_every_method_is_there_with_a_meaning() -> None:
    page = reference.written(ROOT)
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert set(rows) == {field.name for field in dataclasses.fields(Plan)}
    public = [name for name in vars(Task) if not name.startswith("_") and name not in ("plan", "arguments")]
    hooks = [name for name in public if callable(getattr(Task, name))]
    for name in hooks:
        assert f"### `{name}(" in page
    empty = [key for key, row in rows.items() if row.endswith("|  |")]
    assert not empty, "a key without a comment above it"
