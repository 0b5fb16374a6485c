"""Every cell of SECURITY.md's table names a test that holds it, and these tests exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
SECTION = TEXT[TEXT.index("## Who learns what of an update") : TEXT.index("### What sealed does not stop")]

WHO = [
    *("stranger", "member", "several members", "leader", "leader with members"),
    *("manager", "manager with leader", "helper", "operator"),
]
TRUST = ["`identity`", "`robust`", "`sealed`", "`private`", "`sealed + private`"]

NAMED = dict(re.findall(r"^- ([A-Z]\d): `([^`]+)`", SECTION, re.M))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|\n").split("|")]


def test_the_table_has_a_row_for_everybody_and_a_column_for_each_kind_of_trust() -> None:
    head, _, *rows = [line for line in SECTION.splitlines() if line.startswith("|")]
    assert cells(head) == ["who", *TRUST]
    assert [cells(row)[0] for row in rows] == WHO


def test_every_cell_names_a_test() -> None:
    _, _, *rows = [line for line in SECTION.splitlines() if line.startswith("|")]
    used = set()
    for row in rows:
        who, *held = cells(row)
        assert len(held) == len(TRUST), who
        for cell in held:
            names = re.findall(r"\[([A-Z]\d)\]", cell)
            assert names, f"{who}: {cell}"
            used.update(names)
    assert used == set(NAMED)


def test_the_tests_that_it_names_exist() -> None:
    for name, where in NAMED.items():
        path, _, function = where.partition("::")
        assert (ROOT / path).is_file(), (name, path)
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not function or re.search(rf"^(async )?def {function}\(", text, re.M), (name, where)
