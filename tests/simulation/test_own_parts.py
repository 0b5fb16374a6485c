"""A simulated device's own part of the model has each of its merged updates once, whatever comes twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Train
from shoal.sim.fault_text import parse
from shoal.sim.jobs import LearningResult, SystemOnly, TrainingResult, system_job
from shoal.sim.study import Study, simulate
from shoal.sim.world import World

pytestmark = pytest.mark.timeout(120)

LAYOUT = Layout.of([("weight", (40,), "parameter")])
DEVICES = 6


class _Counting(SystemOnly):
    """Every lease adds one to its device's own part."""

    devices, first_own = DEVICES, np.zeros(1, np.float32)

    def held(self, node: str) -> int:
        return 100

    def begin(self, node: str, *, seen: int) -> None: ...

    def end(self, node: str) -> None: ...

    def learn_own(self, model: np.ndarray, node: str, lease: Train, own: np.ndarray | None) -> LearningResult:
        assert own is not None
        trained = TrainingResult(10, 1.0, np.full(LAYOUT.size, 1e-3, np.float32))
        return LearningResult(trained, self.held(node), own=own + 1)


@pytest.mark.parametrize("faults", ["", "duplicate(all, 100%, at=0)"])
def test_an_own_part_has_each_merged_update_once(faults: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(data="local", workers_min=DEVICES, epoch_leases=5 * DEVICES, until=Until(epochs=2), momentum=0.0)
    training = _Counting(LAYOUT.size)
    # Devices differ, so that the fast ones wait for the others when a copy of their update comes.
    job = replace(system_job(plan, LAYOUT, examples=0), training=training, local=training, gmacs_per_example=0.5)
    worlds: list[World] = []
    begin = World.begin
    monkeypatch.setattr(World, "begin", lambda world: (worlds.append(world), begin(world))[1])
    outcome = simulate(Study(job=job, devices=DEVICES, profile="pi4-lan", seed=1, faults=parse(faults)))
    assert outcome.state == "finished"
    assert bool(outcome.refused) == bool(faults)
    merged = Counter(row.node for row in worlds[0].disk.history[job.spec.job])
    own = {node: float(machine.own[job.spec.job][0]) for node, machine in worlds[0].machines.items() if machine.own}
    assert own == merged
