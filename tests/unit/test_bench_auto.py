"""The grid on which auto is measured, and what is made of its cells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.auto import Case, Cell, Course, Heavier, builds, course, grid, quick_grid, summary
from shoal.sim.wire_size import Weighed
from shoal.wire.messages import Update

CASE = Case(workers=4, rate_mbit=100.0, model_mb=2.9)
COURSE = Course(
    round_s=1.0,
    shape="star",
    pace="sync",
    settle_rounds=0,
    settle_s=0.0,
    changes=0,
    is_settled=True,
    expired=0,
    predicted_s={},
)


def test_no_cell_is_there_twice() -> None:
    for cases in (grid(), quick_grid()):
        assert len(set(cases)) == len(cases)
    assert {case.workers for case in grid()} == {2, 4, 8, 16, 32}


def test_stragglers_are_slow_or_narrow() -> None:
    slow = builds(replace(CASE, workers=8, stragglers="quarter slow"))
    assert [build.seconds_per_batch for build in slow] == [1.0] * 6 + [4.0] * 2
    *others, narrow = builds(replace(CASE, stragglers="narrow uplink", medium="air"))
    assert narrow.line.up.finish_s(1.0, 0.0) == pytest.approx(10 * others[0].line.up.finish_s(1.0, 0.0))
    assert narrow.line.medium == "air"


def test_a_tensor_stands_for_a_heavier_one() -> None:
    update = Update(job="j", term=1, lease=1, version=0, examples=1, tensors={"delta": np.zeros(10, np.float32)})
    assert Heavier(3).pack(update)[1] == Weighed().pack(update)[1] + 2 * 40


def test_a_cell_compares_with_the_best_shape_that_held() -> None:
    fixed = {
        "star": replace(COURSE, round_s=4.0),
        "tree": replace(COURSE, round_s=2.0, shape="tree"),
        # It never held: this is the time of the star that it stayed.
        "shard": replace(COURSE, round_s=1.0),
    }
    cell = Cell(case=CASE, fixed=fixed, auto=replace(COURSE, round_s=3.0, predicted_s={"star": 5.0, "shard": 1.0}))
    assert cell.best == "tree"
    assert cell.ratio == 1.5
    assert cell.errors == {"star": pytest.approx(-0.2)}
    told = summary([cell, replace(cell, auto=replace(cell.auto, round_s=2.0))])
    assert (told["worst_ratio"], told["mean_ratio"], told["over_target"], told["never_held"]) == (1.5, 1.25, 1, 2)


def test_auto_is_as_fast_as_the_best() -> None:
    fixed = {shape: course(CASE, shape) for shape in CASE.shapes}
    cell = Cell(case=CASE, fixed=fixed, auto=course(CASE, "auto"))
    assert cell.best == cell.auto.shape == "shard"
    assert cell.ratio == pytest.approx(1.0, abs=0.01)
    assert set(cell.errors) == {"star", "tree", "shard"}
    assert max(map(abs, cell.errors.values())) < 0.05
