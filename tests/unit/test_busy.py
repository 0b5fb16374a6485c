"""Tests beside busy loops: a test is run until it fails or has passed often enough, and no loop is left behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import busy  # noqa: E402

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("few_plugins")]

_SECOND_FAILS = """
from pathlib import Path

def test_second_fails():
    seen = Path(__file__).with_name("seen")
    assert not seen.exists()
    seen.touch()

def test_sound():
    pass
"""


def _children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_a_test_stops_at_its_first_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_made.py").write_text(_SECOND_FAILS)
    before = _children()
    names = [f"{tmp_path}/test_made.py::{name}" for name in ("test_second_fails", "test_sound")]
    code = busy.main(["--times", "3", "--loops", "1", "--json", *names])
    said = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert code == 1
    assert [(each["passed"], each["of"]) for each in said["tests"]] == [(1, 3), (3, 3)]
    assert said["held"] is False
    assert _children() == before


def test_the_longest_tests_of_the_gate_that_start_clusters_are_chosen() -> None:
    tiers = [("gate", "integration/a"), ("full", "integration/b"), ("gate", "unit/c")]
    tiers += [("gate", f"integration/d{number}") for number in range(4)]
    slowest = [{"tier": tier, "test": f"tests/{name}"} for tier, name in tiers]
    chosen = busy.longest_of_the_gate(slowest)
    assert chosen == [f"tests/integration/{name}" for name in ("a", "d0", "d1", "d2")]
