"""The pure parts of ``benchmarks.status``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from benchmarks.status import Taken, ended_job, fill, own_ms, process_cpu_s
from shoal.states import JobState
from shoal.store.registry import Registry

pytestmark = pytest.mark.timeout(60)


def test_a_registry_is_filled_with_copies_of_an_ended_job(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with Registry(path) as registry:
        registry.add_job(job="a", name="a", spec_json='{"x": 1}', now_s=1.0)
        registry.set_job_state("a", JobState.STOPPED, now_s=2.0, reason="enough")
        registry.add_job(job="open", name="open", spec_json="{}", now_s=1.0)
    fill(path, "a", 12, now_s=1e9)
    with Registry(path) as registry:
        assert registry.count_ended() == {JobState.STOPPED: 12}
        copy = registry.job("night-00011")
        assert copy is not None
        assert (json.loads(copy.spec_json)["x"], copy.reason, copy.ended_s) == (1, "enough", 1e9 - 13 * 3600)
        assert len(registry.open_jobs()) == 1


def test_copies_differ_in_what_a_status_sorts_by() -> None:
    first, second = ended_job(0, {"x": 1}, 1e9), ended_job(1, {"x": 1}, 1e9)
    assert first["job"] != second["job"]
    assert json.loads(str(second["spec_json"])) == {"x": 1, "job": second["job"], "name": second["name"]}
    assert float(str(first["ended_s"])) > float(str(second["ended_s"]))


def test_what_a_process_uses_anyway_does_not_count() -> None:
    acts = [Taken(cpu_s=0.030, wall_s=1.0), Taken(cpu_s=0.050, wall_s=2.0), Taken(cpu_s=0.001, wall_s=1.0)]
    assert own_ms(acts, 0.010) == pytest.approx(20.0)
    assert acts[2].own_ms(0.010) == 0.0


def test_the_processor_time_of_a_process_grows_as_it_works() -> None:
    before_s, began_s = process_cpu_s(os.getpid()), time.process_time()
    while time.process_time() < began_s + 0.02:
        pass
    assert 0.02 <= process_cpu_s(os.getpid()) - before_s < 30.0
