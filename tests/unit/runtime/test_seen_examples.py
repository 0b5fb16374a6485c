"""How many examples a device was done with: known after a restart, of this folder alone, and never in the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shoal.runtime.seen_examples import JOBS_KEPT, SEEN_FILE, SeenExamples
from shoal.task import Task
from shoal.trainer.local_examples import LocalExamples


def test_it_is_known_after_a_restart(tmp_path: Path) -> None:
    seen = SeenExamples(tmp_path / "node", of="/data")
    assert seen.count("a") == 0
    seen.note("a", 7)
    seen.note("b", 9)
    seen.note("a", 8)
    again = SeenExamples(tmp_path / "node", of="/data")
    assert (again.count("a"), again.count("b"), again.count("c")) == (8, 9, 0)
    assert SeenExamples(tmp_path / "node", of="/elsewhere").count("a") == 0, "other examples were seen"


def test_it_is_written_when_it_changes(tmp_path: Path) -> None:
    seen = SeenExamples(tmp_path, of="")
    seen.note("a", 7)
    (tmp_path / SEEN_FILE).unlink()
    seen.note("a", 7)
    assert not (tmp_path / SEEN_FILE).exists(), "a lease without new examples costs no write"
    seen.note("a", 6)
    assert SeenExamples(tmp_path, of="").count("a") == 6


def test_jobs_are_not_remembered_without_end(tmp_path: Path) -> None:
    seen = SeenExamples(tmp_path, of="")
    for number in range(JOBS_KEPT + 5):
        seen.note(f"job-{number}", 1)
    assert (seen.count("job-4"), seen.count("job-5")) == (0, 1)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"of": "", "counts": 3}', '{"of": "", "counts": {"a": -1, "b": "x", "../c": 4}}']
)
def test_a_damaged_file_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / SEEN_FILE).write_text(text)
    seen = SeenExamples(tmp_path, of="")
    assert [seen.count(job) for job in ("a", "b", "../c")] == [0, 0, 0]
    seen.note("a", 3)
    assert SeenExamples(tmp_path, of="").count("a") == 3


def test_one_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "node").write_text("in the way")
    seen = SeenExamples(tmp_path / "node", of="")
    seen.note("a", 3)
    assert seen.count("a") == 3


class Growing(Task):
    held = 5

    def examples(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((self.held, 2), np.float32), np.zeros(self.held, np.int64)


def test_a_trainer_that_is_told_begins_where_the_last_one_was() -> None:
    task = Growing()
    local = LocalExamples(task, seen=3)
    local.look()
    assert local.fresh().tolist() == [3, 4]
    assert local.fresh().tolist() == []
    fewer = LocalExamples(task, seen=9)
    fewer.look()
    assert fewer.fresh().tolist() == [], "some were dropped since: all that is left was seen"
