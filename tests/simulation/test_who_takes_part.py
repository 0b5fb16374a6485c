"""Who trains for a version, what its update counts for, and which lengths are merged: by whole simulated jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Save, Train
from shoal.sim.jobs import EXAMPLES_HELD, LearningResult, SimulatedJob, SystemOnly, TrainingResult, system_job
from shoal.sim.observe import Mark, Step
from shoal.sim.outcome import Outcome
from shoal.sim.study import Study, simulate
from shoal.wire.messages import JobSpec

pytestmark = pytest.mark.timeout(180)

LAYOUT = Layout.of([("weight", (40,), "parameter")])
DEVICES, COHORT = 20, 4


def _job(**changes: Any) -> SimulatedJob:
    plan = {
        "data": "local",
        "workers_min": DEVICES,
        "cohort": COHORT,
        "epoch_leases": 40,
        "until": Until(epochs=4),
        "momentum": 0.0,
        **changes,
    }
    return system_job(Plan(**plan), LAYOUT, examples=0)


def _run(job: SimulatedJob, *, devices: int = DEVICES) -> Outcome:
    return simulate(Study(job=job, devices=devices, profile="pi4-lan", seed=2))


def _leases(outcome: Outcome) -> list[int]:
    return sorted(device.batches for device in outcome.devices)


def test_devices_that_wait_are_taken_in_turn_and_by_chance_where_the_plan_draws() -> None:
    # 160 leases over 20 devices: 8 each in turn; by chance with a standard deviation of 2.5.
    in_turn, drawn = _run(_job()), _run(_job(sampling="uniform"))
    assert _leases(in_turn)[0] >= 7
    assert _leases(in_turn)[-1] <= 9
    assert _leases(drawn)[-1] - _leases(drawn)[0] >= 5
    assert sum(_leases(drawn)) == sum(_leases(in_turn)) == 160


def test_the_devices_that_took_part_are_counted() -> None:
    outcome = _run(_job(sampling="uniform", until=Until(epochs=1), epoch_leases=8))
    assert outcome.took_part == sum(count > 0 for count in _leases(outcome))
    assert COHORT < outcome.took_part <= 8


class _Uneven(SystemOnly):
    """Device n has n times ten examples, and its update is n in every value."""

    def learn(self, spec: JobSpec, model: np.ndarray, node: str, lease: Train) -> LearningResult:
        number = int(node.removeprefix("w"))
        delta = np.full(LAYOUT.size, number, dtype=np.float32)
        return LearningResult(
            TrainingResult(10 * number, 10.0 * number, delta), EXAMPLES_HELD, fresh=0, fresh_metrics=()
        )


def _moved(**changes: Any) -> float:
    """Return how far each value of the model moved in one version of three devices."""
    plan = {"cohort": 3, "workers_min": 3, "epoch_leases": 3, "until": Until(epochs=1), "accept_unusual": True}
    job = replace(_job(**{**plan, **changes}), training=_Uneven(LAYOUT.size))
    seen: list[np.ndarray] = []

    class Models:
        def step(self, step: Step) -> None:
            seen.extend(action.tensors["weight"] for action in step.actions if isinstance(action, Save))

        def mark(self, mark: Mark) -> None: ...

    outcome = simulate(Study(job=job, devices=3, profile="pi4-lan", seed=2), observers=[Models()])
    assert outcome.rounds == 1
    assert outcome.refused == 0
    return float(seen[-1][0])


@pytest.mark.parametrize("topology", ["star", "tree", "shard"])
def test_a_mean_is_by_examples_or_by_device(topology: str) -> None:
    # Updates 1, 2 and 3 of 10, 20 and 30 examples.
    assert _moved(topology=topology) == pytest.approx((1 + 4 + 9) / 6, rel=1e-6)
    assert _moved(topology=topology, weights="device") == pytest.approx(2.0, rel=1e-6)


class _Long(SystemOnly):
    """Each device's third update is ten thousand times as long as the others."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._times = 0

    def learn(self, spec: JobSpec, model: np.ndarray, node: str, lease: Train) -> LearningResult:
        self._times += 1
        length = 1e4 if self._times % (3 * DEVICES) == 0 else 1.0
        delta = np.full(LAYOUT.size, length, dtype=np.float32)
        return LearningResult(TrainingResult(10, 1.0, delta), EXAMPLES_HELD, fresh=0, fresh_metrics=())


def test_an_update_many_times_as_long_is_refused_unless_the_plan_accepts_any_length() -> None:
    careful = _run(replace(_job(), training=_Long(LAYOUT.size)))
    open_ = _run(replace(_job(accept_unusual=True), training=_Long(LAYOUT.size)))
    assert careful.refused > 0
    assert open_.refused == 0
    assert open_.state == "finished"


@pytest.mark.full
def test_three_passes_take_three_times_as_long() -> None:
    def busy_s(**changes: Any) -> float:
        job = replace(_job(**changes), gmacs_per_example=1.0)
        return sum(device.busy_s for device in _run(job).devices)

    once, thrice = busy_s(), busy_s(local_epochs=3)
    assert thrice / once == pytest.approx(3.0, rel=0.1)
