"""A real trainer under a quota that changes: slower with less, and gone afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.slo_fleet import draw_fleet
from benchmarks.slo_trainers import Trainers, why_not
from testbed import quota


@pytest.mark.needs_data
def test_a_tenth_of_a_core_takes_many_times_as_long_as_all_of_it(real_data: Path, tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    members = draw_fleet(1, 1, requests=1)
    with Trainers(members, [], tmp_path, budget_s=10.0) as ground:
        trainer = ground._trainers["device-1"]
        quick_s = trainer.train(8_000, cores=0.9, limit_s=10.0)
        slow_s = trainer.train(8_000, cores=0.1, limit_s=30.0)
        assert slow_s > 3 * quick_s
        assert ground.spend("device-1", 0, 1_000) > 0
        assert 0 < ground.loss < 2.3, "it learns"
        # One that would take far too long is cut, and counts in proportion.
        assert trainer.train(10_000_000, cores=0.5, limit_s=0.3) > 5.0
        assert quota.quotas_of(os.getpid())
    assert not quota.quotas_of(os.getpid())
