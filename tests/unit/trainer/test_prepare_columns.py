"""A task with columns is tried where it is prepared, though only devices have examples of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.errors import Misuse
from shoal.trainer.prepare_child import prepare
from shoal.trainer.prepared_job import PreparedJob

TASK = """
import numpy as np
from torch import nn
import shoal

class Sample(shoal.Task):
    columns = {"x": shoal.column("uint8", (2, 2)), "y": shoal.column("int64", classes=("a", "b"))}

    def model(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))

    def batch(self, x, y):
        return x.float().WRONG, y

    def examples(self, split):
        assert split == "test"
        return HELD_OUT
"""


def prepared(folder: Path, *, held_out: str = "None", reader: str = "div(255)") -> tuple[PreparedJob, list[Any]]:
    """The task, prepared, and what was reported meanwhile."""
    (folder / "task.py").write_text(TASK.replace("HELD_OUT", held_out).replace("WRONG", reader))
    told: list[Any] = []
    out = folder / "out"
    return prepare(folder, "task:Sample", {}, seed=0, out=out, key="job", report=told.append, data="local"), told


def test_a_batch_of_made_up_rows_is_tried(tmp_path: Path) -> None:
    job, told = prepared(tmp_path)
    assert {"step": "trial"} in told
    assert (job.train.examples, job.test.examples) == (0, 0)
    assert job.gmacs_per_example > 0
    with pytest.raises(AttributeError, match="div2"):
        prepared(tmp_path, reader="div2(255)")


@pytest.mark.parametrize(
    ("held_out", "reason"),
    [
        ("(np.zeros((3, 2, 2), np.float32), np.zeros(3, np.int64))", r"has x as float32 \[2, 2\]"),
        (
            "(np.zeros((3, 4), np.uint8), np.zeros(3, np.int64))",
            r"has x as uint8 \[4\], and columns says uint8 \[2, 2\]",
        ),
        ("dict(x=np.zeros((3, 2, 2), np.uint8))", "has y as no array, and columns says int64"),
        (
            "dict(x=np.zeros((3, 2, 2), np.uint8), y=np.zeros(3, np.int64), z=np.zeros(3, np.int64))",
            "has z as .*no such column",
        ),
    ],
)
def test_held_out_examples_of_another_form_are_refused(tmp_path: Path, held_out: str, reason: str) -> None:
    with pytest.raises(Misuse, match=rf"examples\('test'\) {reason}"):
        prepared(tmp_path, held_out=held_out)


def test_held_out_examples_of_the_same_form_are_taken(tmp_path: Path) -> None:
    job, _ = prepared(tmp_path, held_out="(np.zeros((3, 2, 2), np.uint8), np.zeros(3, np.int64))")
    assert job.test.examples == 3
