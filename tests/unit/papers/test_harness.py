"""The harness of the papers: rows in files, tables between marks, the experiments that a command runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from papers.harness import command, marks, parts
from papers.harness.paper import Paper
from papers.harness.parts import Parts
from papers.harness.results import Folder, Measured, OneFile, rows_of
from papers.harness.rows import Drawing, Experiment, Row, chosen, of_one, one
from papers.harness.tables import NOTHING, count, decimal, measured_on, percent, table, times
from shoal.errors import Misuse

FACTS = {"cores": 2, "processor": "arm64", "system": "Linux 6", "python": "3.11", "torch": "2.11", "numpy": "2.0"}


def test_one_file_keeps_each_experiment_and_a_line_a_row(tmp_path: Path) -> None:
    store = OneFile(tmp_path / "results.json")
    assert store.read() == {}
    store.write("two", [{"text": 'a "quoted" word'}, {"b": 2}], 3.4)
    store.write("one", [{"s": 1 / 3, "none": None}], 2.0)
    store.write("one", [{"s": 2 / 3, "deep": [1 / 3, {"x": 1 / 7}]}], 2.0)
    kept = store.read()
    assert rows_of(kept) == {
        "one": [{"s": 0.66667, "deep": [0.33333, {"x": 0.14286}]}],
        "two": [{"text": 'a "quoted" word'}, {"b": 2}],
    }
    assert kept["two"].seconds == 3
    assert kept["one"].machine["cores"] >= 1
    # The machine, the opening, two experiments of a head and an end with one row and two, the closing.
    assert len(store.file.read_text().splitlines()) == 10


def test_a_folder_keeps_a_file_an_experiment(tmp_path: Path) -> None:
    store = Folder(tmp_path / "new")
    assert store.read() == {}
    store.write("late", [{"a": 1 / 3, "b": [2 / 3]}, {"a": 2}], 61.2)
    assert rows_of(store.read()) == {"late": [{"a": 0.33333, "b": [0.66667]}, {"a": 2}]}
    assert len((tmp_path / "new" / "late.json").read_text().splitlines()) == 5


def test_a_drawing_is_made_where_one_of_its_experiments_was_measured() -> None:
    both = Drawing(("one", "two"), lambda rows: ", ".join(rows))
    assert both.of({"two": [{"a": 1}]}) == "two"
    assert both.of({"one": [], "three": [{"a": 1}]}) is None
    assert of_one("one", len).of({"one": [{"a": 1}, {"a": 2}]}) == 2


def test_rows_are_found_by_their_values() -> None:
    rows: list[Row] = [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2}]
    assert chosen(rows, a=1) == rows[:2]
    assert one(rows, a=1, b=2) == rows[1]
    assert one(rows, a=3) is None


def test_cells() -> None:
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"
    assert (decimal(1234.5), count(1234.5), percent(0.123, 1), times(1.5)) == ("1,234.50", "1,234", "12.3 %", "1.50x")
    assert {decimal(None), count(None), percent(None), times(None)} == {NOTHING}


def test_the_machine_is_told_with_all_dates_and_minutes() -> None:
    kept = {
        name: Measured(rows=[], date=date, machine=FACTS, seconds=90)
        for name, date in (("one", "2026-01-02"), ("two", "2026-01-01"))
    }
    told = "2 cores (arm64), Linux 6, Python 3.11, torch 2.11, numpy 2.0; 2026-01-01 and 2026-01-02; 3 minutes in all."
    assert measured_on(kept) == told


def test_tables_stand_between_their_marks() -> None:
    text = "a\n<!-- table: one -->\nold\n<!-- end -->\n<!-- table: two -->\nkept\n<!-- end -->\n"
    made = marks.filled(text, ("one", "two"), {"one": "new"}.get)
    assert made == text.replace("old", "new")
    with pytest.raises(Misuse, match="a table 'two'; there are: machine, one"):
        marks.filled(text, ("one",), {"one": "new"}.get)


def paper(store: OneFile, *, unmeasured: str | None = None) -> Paper:
    return Paper(
        name="none",
        about="A paper.",
        store=store,
        tables={"one": of_one("one", lambda rows: f"{len(rows)} rows")},
        headline=lambda rows: {"measured": sorted(rows)},
        experiments=(
            Experiment(name="one", figure="Figure 1", run=lambda quick: [{"quick": quick}]),
            Experiment(name="long", figure="Figure 2", run=lambda quick: [], in_quick=False),
        ),
        unmeasured=unmeasured,
    )


def test_a_table_that_was_not_measured_stays_or_says_so(tmp_path: Path) -> None:
    text = "<!-- table: one -->\nold\n<!-- end --> <!-- table: machine -->\nold\n<!-- end -->"
    store = OneFile(tmp_path / "results.json")
    assert paper(store).filled(text, {}) == text
    assert paper(store, unmeasured="none").filled(text, {}) == text.replace("old", "none")
    kept = {"one": Measured(rows=[{}], date="2026-01-01", machine=FACTS, seconds=60)}
    assert "1 rows" in paper(store).filled(text, kept)


def test_a_part_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    runs: list[int] = []

    def make() -> Row:
        runs.append(1)
        if len(runs) == 2:
            raise KeyboardInterrupt
        return {"found": [1.5, None], "run": len(runs)}

    def parts_of() -> Parts:
        return parts.of("none", "long", about=3, root=tmp_path)

    assert parts_of().part({"seed": 1}, make) == {"found": [1.5, None], "run": 1}
    with pytest.raises(KeyboardInterrupt):
        parts_of().part({"seed": 2}, make)
    after = parts_of()
    assert after.part({"seed": 1}, make)["run"] == 1
    assert after.part({"seed": 2}, make)["run"] == 3
    assert after.done == 2
    assert parts.seconds_of("none", "long", root=tmp_path) > 0
    parts.drop("none", "long", root=tmp_path)
    assert parts_of().part({"seed": 1}, make)["run"] == 4


def test_a_command_runs_what_is_named_and_keeps_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = OneFile(tmp_path / "results.json")
    command.run(paper(store), ["--quick"])
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"], told["measured"]) == ({"one": [{"quick": True}]}, ["one"])
    assert store.read() == {}
    command.run(paper(store), [])
    assert json.loads(capsys.readouterr().out)["rows"] == {"one": [{"quick": False}], "long": []}
    # An experiment without rows keeps its older ones.
    assert rows_of(store.read()) == {"one": [{"quick": False}]}
    command.run(paper(store), ["--only", "long"])
    assert json.loads(capsys.readouterr().out)["rows"] == {"long": []}
