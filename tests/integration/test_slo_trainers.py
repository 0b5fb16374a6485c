"""A real trainer under a quota that changes: it is held to it, and gone afterwards."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from benchmarks.slo_agents import held
from benchmarks.slo_fleet import draw_fleet
from benchmarks.slo_trainers import Trainers, why_not
from testbed import quota

#: A benchmark's own tools.
pytestmark = pytest.mark.nightly


@pytest.mark.needs_data
def test_a_trainer_gets_the_processor_time_of_its_quota_and_is_gone_afterwards(real_data: Path, tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    members = draw_fleet(1, 1, requests=1)
    with Trainers(members, [], tmp_path, budget_s=10.0) as ground:
        trainer = ground._trainers["device-1"]
        process = psutil.Process(trainer._process.pid)
        assert trainer.train(8_000, cores=0.9, limit_s=10.0) > 0
        # Processor time by the time it took, not one run by another: a busy machine slows the quick one as well.
        before_s = sum(process.cpu_times()[:2])
        slow_s = trainer.train(8_000, cores=0.1, limit_s=90.0)
        used_s = sum(process.cpu_times()[:2]) - before_s
        assert 0 < used_s < 0.2 * slow_s
        assert ground.spend("device-1", 0, 1_000) > 0
        assert 0 < ground.loss < 2.3, "it learns"
        # One that would take far too long is cut, and counts in proportion.
        assert trainer.train(10_000_000, cores=0.5, limit_s=0.3) > 5.0
        assert quota.quotas_of(os.getpid())
    assert not quota.quotas_of(os.getpid())


@pytest.mark.needs_data
def test_real_agents_ask_every_profiler_and_are_held_to_their_quotas(real_data: Path, tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    asked = held(tmp_path, seed=1, devices=2, teachers=1, requests=2, slo_s=0.2, within=0.84, limit_s=180.0)
    done = asyncio.run(asyncio.wait_for(asked, 330))
    for name in ("ours", "iprof", "maui"):
        asked_for = sorted((task.device, task.request) for task in done.tasks[name])
        assert asked_for == [("device-1", 0), ("device-1", 1), ("device-2", 0), ("device-2", 1)]
    assert done.taught >= 2
    assert all(task.spent > 0 for each in done.tasks.values() for task in each)
    assert not quota.quotas_of(os.getpid())
