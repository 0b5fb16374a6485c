"""Every example has a test that runs it, and a test that was skipped or failed is not counted as a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import example_runs  # noqa: E402

_CASE = '<testsuites><testsuite><testcase name="t">{}</testcase></testsuite></testsuites>'


def test_every_example_is_run_by_a_test_that_is_there() -> None:
    assert example_runs.TESTS.keys() == {each.name for each in (ROOT / "examples").iterdir() if each.is_dir()}
    for test in example_runs.TESTS.values():
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("", ""),
        ('<skipped message="no data"/>', "skipped: no data"),
        ('<failure message="assert 1 == 2"/>', "failure: assert 1 == 2"),
    ],
)
def test_only_a_test_that_passed_is_a_run(told: str, why: str, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(_CASE.format(told))
    assert example_runs.why_not_passed(report) == why


def test_a_report_without_tests_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text("<testsuites><testsuite/></testsuites>")
    assert example_runs.why_not_passed(tmp_path / "report.xml") == "no test was found"


def test_an_example_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert example_runs.main(["nothing", "--json"]) == 2
    assert "there is no example nothing" in capsys.readouterr().err
