"""A case of the first day holds only if it says so: an error of the case itself is not a success."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import first_day
from benchmarks.first_day import all_cases, judged, result_of, run_all
from benchmarks.first_day_kit import Case, NotHeld, expect_words, run


def wrong(folder: Path) -> str:
    raise NotHeld("it printed a traceback")


def broken(folder: Path) -> str:
    raise OSError("no such program")


CASES = (
    Case(name="well", run=lambda folder: f"a folder of its own: {not any(folder.iterdir())}"),
    Case(name="wrong", run=wrong),
    Case(name="broken", run=broken, slow=True),
)


def test_only_what_was_seen_to_be_right_is_held() -> None:
    outcomes = run_all(CASES)
    assert [held for held, _ in outcomes.values()] == [True, False, False]
    result = result_of(outcomes, left_out=2)
    assert (result["cases"], result["held"], result["left_out"]) == (3, 1, 2)
    assert result["details"]["well"] == "held: a folder of its own: True"
    assert result["details"]["wrong"] == "broken: it printed a traceback"
    assert "OSError: no such program" in result["details"]["broken"]


def test_a_case_that_does_not_end_is_not_held(tmp_path: Path) -> None:
    def sleeps(folder: Path) -> str:
        return run(program=[sys.executable, "-c", "import time; time.sleep(60)"], cwd=folder, within_s=0.5).text

    held, told = judged(Case(name="late", run=sleeps))
    assert not held
    assert "did not end within 0.5 s" in told


def test_quick_says_how_many_it_leaves_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(first_day, "all_cases", lambda: list(CASES[:1] + CASES[2:]))
    monkeypatch.setattr(sys, "argv", ["first_day", "--quick", "--json"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert first_day.main() == 0
    said = capsys.readouterr()
    assert '"left_out": 1' in said.out.splitlines()[-1]
    assert "leaves out 1 of 2" in said.err


def test_words_are_found_over_the_ends_of_lines() -> None:
    expect_words("run `shoal\n  status` there", "`shoal status`")
    with pytest.raises(NotHeld, match="doctor"):
        expect_words("run `shoal status` there", "`shoal doctor`")


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in all_cases()]
    assert len(set(names)) == len(names)
