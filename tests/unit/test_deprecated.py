"""What is deprecated works and warns, is listed for people, and is gone when its last release is over."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from shoal.cli.commands.train import overrides
from shoal.deprecated import DEPRECATED, DeprecatedWarning
from shoal.plan import Plan
from shoal.trainer.bundle import pack
from shoal.trainer.find import find_task
from shoal.version import __version__

pytestmark = pytest.mark.timeout(120)

ROOT = Path(__file__).parents[2]
TASK = """
import numpy as np
from torch import nn
import shoal


class Clouds(shoal.Task):
    plan = shoal.Plan(nesterov=True)

    def model(self):
        return nn.Linear(2, 2)

    def examples(self, split):
        return np.zeros((4, 2), np.float32), np.zeros(4, np.int64)
"""


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def test_every_entry_warns_for_a_release_and_is_gone_after_it() -> None:
    for entry in DEPRECATED:
        since, ends = numbers(entry.since), numbers(entry.ends)
        assert since[:2] < ends[:2], f"{entry.name} ends in the release that deprecates it"
        assert numbers(__version__) < ends, f"{entry.name} ended with {entry.ends}: take it away, and refuse it"


def test_the_page_lists_every_entry() -> None:
    page = (ROOT / "docs" / "deprecations.md").read_text(encoding="utf-8").partition("## Now deprecated")[2]
    rows = {line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| what")}
    assert rows == {f"| {e.kind} `{e.name}` | `{e.instead}` | {e.since} | {e.ends} |" for e in DEPRECATED}


def test_every_deprecated_key_is_still_a_key() -> None:
    keys = {field.name for field in dataclasses.fields(Plan)}
    assert {entry.name for entry in DEPRECATED if entry.kind == "plan key"} <= keys


def test_a_deprecated_key_works_and_warns_where_it_was_written() -> None:
    with pytest.warns(DeprecatedWarning, match=r"'nesterov' is deprecated and ends with Shoal 0\.2\.0") as found:
        plan = Plan(nesterov=True)
    assert plan == Plan(outer="nesterov")
    assert found[0].filename == __file__
    with pytest.warns(DeprecatedWarning):
        overrides(workers="", until={}, numbers={}, pairs=["nesterov=true"])


def test_what_to_write_instead_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = Plan(outer="nesterov")
        # A settled plan has both; it is changed, stored and sent without a word.
        assert dataclasses.replace(plan, batch_size=8).nesterov


def test_a_deprecated_key_in_a_task_is_a_note_of_its_preparation(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    path, entry = find_task(str(tmp_path / "task.py"))
    (tmp_path / "bundle.zip").write_bytes(pack(path, entry))
    command = [sys.executable, "-P", "-m", "shoal.trainer.prepare_child", "--entry", entry]
    command += ["--bundle", str(tmp_path / "bundle.zip"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert "prepared" in told[-1], done.stderr
    notes = [each["told"] for each in told if each.get("step") == "note"]
    assert any("write outer = 'nesterov'" in note for note in notes)
