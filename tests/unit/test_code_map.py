"""docs/code-map.md has a row for every file, and the first hour leads to functions that exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import code_map  # noqa: E402
import house  # noqa: E402


def test_the_code_map_has_a_row_for_every_file_as_the_file_says() -> None:
    page, rows = (ROOT / "docs" / "code-map.md").read_text(), code_map.written(ROOT)
    assert page == code_map.replaced(page, rows), "run `python tools/tasks.py map`"
    files = [path for path in (ROOT / "src").rglob("*.py") if path.name != "__init__.py"]
    missing = [str(path.relative_to(ROOT)) for path in files if f"(../{path.relative_to(ROOT).as_posix()})" not in rows]
    assert not missing, "a folder that code_map.ROOMS does not name, or a file without a docstring"


def test_the_first_hour_leads_to_functions_that_exist() -> None:
    page = (ROOT / "docs" / "contributing" / "first-hour.md").read_text()
    assert page == code_map.relined(page, ROOT), "run `python tools/tasks.py map`"
    assert page.count("::") >= 40
    assert (house.files_opened(page, house.SEALED_WALK) or 99) <= 12


def test_a_function_that_is_gone_is_named() -> None:
    with pytest.raises(KeyError, match=r"has no Worker\._on_nothing"):
        code_map.relined("[`roles/worker/worker.py::Worker._on_nothing`](x#L1)", ROOT)


def test_links_between_pages_lead_somewhere() -> None:
    pages = [
        path
        for path in ROOT.rglob("*.md")
        if not any(part.startswith(".") or part == "node_modules" for part in path.parts[len(ROOT.parts) :])
    ]
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if not target.startswith(("http", "mailto")) and not (page.parent / target).exists()
    ]
    assert not dead
