"""The ledger of the papers: docs/papers.md is what it and the kept rows give, and nothing measured is typed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from papers.harness import ledger, ledger_page
from papers.harness.ledger import Figure, Ledger, Mechanism, cell, filled, one_seed_rows, seeds_of
from papers.harness.rows import Row
from shoal.errors import Misuse

ROOT = Path(__file__).resolve().parent.parent.parent.parent
PAGE = ROOT / "docs" / "papers.md"

MEASURED = Figure(
    name="Figure 1", what="a share", state="reproduced", here="{shares | a | here}", command="python -m x"
)
EMPTY = Ledger(
    title="A paper", link="https://example.org", numbered={}, drawings={}, mechanisms=(), figures=(MEASURED,)
)  # fmt: skip
TABLES = {"shares": "| kind | size | here |\n| --- | --- | --- |\n| a | 1 | 0.5 |\n| b | 1 | 0.6 |\n| b | 2 | 0.7 |"}


@pytest.mark.gate
def test_the_page_is_what_the_ledger_and_the_results_give() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert ledger_page.written(text) == text, "python tools/tasks.py papers"


def test_every_figure_is_in_one_state_and_the_task_counts_them() -> None:
    command = (sys.executable, "tools/tasks.py", "papers", "--json")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    figures = [figure for each in ledger.read().values() for figure in each.figures]
    assert told["figures"] == len(figures) == told["reproduced"] + told["changed"] + told["absent"]
    built = sum(told[f"mechanisms_{state}"] for state in ("deployed", "changed", "reproduced", "absent"))
    assert told["mechanisms"] == built
    assert told["absent"] == len([figure for figure in figures if not figure.here and not figure.command])


def test_every_command_names_experiments_that_there_are_and_every_mechanism_files() -> None:
    known = ledger_page.papers()
    for name, each in ledger.read().items():
        experiments = {*known[name].store.read(), *(one.name for one in known[name].experiments)}
        for figure in each.figures:
            asked = re.search(rf"papers\.{name} --only (.*)", figure.command)
            assert asked is None or set(asked[1].split()) <= experiments, figure.command
        for mechanism in each.mechanisms:
            assert all((ROOT / path).is_file() for path in mechanism.where), mechanism.where


def test_a_cell_is_named_by_its_table_row_and_column() -> None:
    assert cell(TABLES, "shares | a | here") == "0.5"
    assert cell(TABLES, "shares | * | 2 | here") == "0.7"
    assert filled("{shares | b | 1 | here} of {shares | b | 2 | here}", TABLES) == "0.6 of 0.7"
    for address, wrong in (
        ("none | a | here", "no table"),
        ("shares | b | here", "2 rows"),
        ("shares | a | x", "0 col"),
    ):
        with pytest.raises(Misuse, match=wrong):
            cell(TABLES, address)


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"here": "0.5"}, "without a cell"),
        ({"here": "{shares | a | here} and 0.5"}, "a typed digit"),
        ({"state": "found"}, "is not one of"),
        ({"state": "changed"}, "without a reason"),
        ({"command": ""}, "without a command"),
        ({"state": "absent", "reason": "no phone"}, "names a result"),
    ],
)
def test_an_entry_that_does_not_hold_is_refused(changed: dict[str, str], wrong: str) -> None:
    with pytest.raises(Misuse, match=wrong):
        replace(MEASURED, **changed)  # type: ignore[arg-type]


def test_a_mechanism_names_its_files_or_why_there_are_none() -> None:
    Mechanism(what="a leader", section="§1", state="deployed", where=("a.py",))
    with pytest.raises(Misuse, match="must name its files"):
        Mechanism(what="a leader", section="§1", state="deployed")
    with pytest.raises(Misuse, match="without a reason"):
        Mechanism(what="a leader", section="§1", state="changed", where=("a.py",))


def test_no_numbered_figure_is_left_out() -> None:
    assert replace(EMPTY, numbered={"Figure ": 1})
    with pytest.raises(Misuse, match="no entry for Figure 2"):
        replace(EMPTY, numbered={"Figure ": 2}, drawings={"Figure 20": "a drawing"})


def test_rows_of_one_seed_have_a_reason_and_reasons_have_rows() -> None:
    twice: list[Row] = [{"kind": "a", "seed": seed, "best": seed} for seed in (0, 1)]
    once: Row = {"kind": "b", "seed": 0, "best": 1}
    assert [seeds_of(row, [*twice, once]) for row in (*twice, once)] == [2, 2, 1]
    assert seeds_of({"finals": [0.1, 0.2, 0.3]}, []) == 3
    assert seeds_of({"runs": 5}, []) == 5
    explained = replace(EMPTY, one_seed={"late": "a check"})
    assert one_seed_rows(explained, {"late": [*twice, once], "sure": twice}) == {"late": [once]}
    with pytest.raises(Misuse, match="without a reason in late"):
        one_seed_rows(EMPTY, {"late": [once]})
    with pytest.raises(Misuse, match="no such row, in late"):
        one_seed_rows(explained, {"late": twice})
    assert one_seed_rows(replace(EMPTY, unseeded={"late": "worked out"}), {"late": [once]}) == {}
