"""Rows of a cohort with examples of their own: what full devices give, in time, bytes and the model."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from shoal import data
from shoal.cli.render.picture import _devices_text, draw
from shoal.errors import Misuse
from shoal.plan import Plan, Until
from shoal.roles.events import Received
from shoal.roles.node.failure_detector import Patience
from shoal.sim.cohort import why_not
from shoal.sim.devices import Build, Presence
from shoal.sim.fault_text import parse
from shoal.sim.inflict import Inflicter
from shoal.sim.invariants import Invariants
from shoal.sim.jobs import SimulatedJob
from shoal.sim.local_devices import LocalTraining, divide
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.profiles import Fleet, home_line
from shoal.sim.rates import Steady
from shoal.sim.real import close, simulated_job
from shoal.sim.rng import Rng
from shoal.sim.study import Study, simulate
from shoal.sim.world import Settings, World
from shoal.trainer.package import ReadyTask, make_ready
from shoal.wire.messages import Update

pytestmark = pytest.mark.timeout(600)

HELD = 12
PARTITION = data.drawn(HELD, 0.5)
PATIENCE = Patience(heartbeat_s=5.0, suspect_after_s=15.0, lost_after_s=30.0, reconnect_s=5.0)

SOURCE = """
import numpy as np
from torch import nn
from shoal.task import Task

class Sample(Task):
    def __init__(self, own=False):
        self.own = own

    def model(self):
        return nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 4))

    def examples(self, split):
        count = 500 if split == "train" else 200
        chance = np.random.default_rng(0 if split == "train" else 1)
        y = chance.integers(0, 4, count)
        return (np.eye(4, 6)[y] * 2 + chance.normal(0, 1.0, (count, 6))).astype(np.float32), y

    def placement(self, name, tensor):
        return "own" if self.own and name.startswith("2.") else None
"""
PLAN = Plan(
    data="local",
    batch_size=4,
    lease_batches=3,
    local_epochs=2,
    learning_rate=0.1,
    momentum=0.0,
    pace="sync",
    cohort=20,
    sampling="uniform",
    epoch_leases=20,
    workers_min=20,
    workers_max=60,
    evaluate_every_epochs=5,
    until=Until(epochs=8),
)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, ReadyTask]:
    """The task without and with a part of the model for each device."""
    folder = tmp_path_factory.mktemp("task")
    (folder / "task.py").write_text(SOURCE)
    return {
        own: asyncio.run(
            make_ready(folder / "task.py", "task:Sample", out=folder / "out", kwargs={"own": own}, divided=True)
        )
        for own in (False, True)
    }


@dataclass
class Seen:
    """What the leader received, and which rows became full devices."""

    #: Device -> how many of its examples were new, over all of its updates.
    fresh: Counter[str] = field(default_factory=Counter)
    updates: int = 0
    full: Counter[str] = field(default_factory=Counter)

    def step(self, step: Step) -> None:
        if step.role == "leader" and isinstance(step.event, Received) and isinstance(step.event.message, Update):
            self.updates += 1
            self.fresh[step.event.sender] += step.event.message.fresh

    def mark(self, mark: Mark) -> None:
        if mark.kind == "full":
            self.full[str(mark.facts["reason"])] += 1


@dataclass(frozen=True)
class Played:
    world: World
    seen: Seen
    model: np.ndarray
    accuracy: float

    @property
    def bytes(self) -> int:
        return sum(self.world.home_bytes)


def there(number: int) -> Presence:
    """Each comes for half a minute, again and again."""
    return Presence(spans=((True, 30), (False, 30)), offset_s=number % 60)


def job(ready: ReadyTask, plan: Plan, *, devices: int, seed: int = 0) -> SimulatedJob:
    divided = divide(ready, PARTITION, devices=devices, seed=seed)
    return replace(simulated_job(ready, plan, train=True, divided=divided), gmacs_per_example=2e-2, start_s=1.0)


def played(
    ready: ReadyTask,
    fleet: list[Build] | Fleet,
    *,
    is_cohort: bool,
    plan: Plan = PLAN,
    faults: str = "",
    seed: int = 1,
    arrive_within_s: float = 10.0,
) -> Played:
    simulated, seen = job(ready, plan, devices=len(fleet), seed=seed), Seen()
    try:
        settings = Settings(
            seed=seed,
            builds=fleet,
            home_line=home_line("even"),
            jobs=[simulated],
            patience=PATIENCE,
            arrive_within_s=arrive_within_s,
            is_cohort=is_cohort,
        )
        world = World(settings, observers=[seen])
        inflicter = Inflicter(world, parse(faults))
        invariants = Invariants({"job": (simulated.spec, simulated.model.nbytes)}, is_honest=False)
        world.observers += [inflicter, invariants]
        inflicter.begin()
        world.begin()
        assert world.run(limit_s=20_000.0), world.disk.jobs["job"]
        newest = world.disk.newest("job")
        assert newest is not None
        views = world.home.manager.job_views("job") if world.home is not None else ()
        progress = views[0].progress if views else None
        # A job that failed may have none.
        accuracy = (progress.accuracy if progress is not None else None) or 0.0
        return Played(
            world, seen, np.concatenate([newest.tensors[name].ravel() for name in sorted(newest.tensors)]), accuracy
        )
    finally:
        close(simulated)


@pytest.fixture(scope="module")
def both(ready: dict[bool, ReadyTask]) -> dict[tuple[bool, int], Played]:
    """A fleet that comes and goes, as full devices and as rows, under several seeds."""
    return {
        (is_cohort, seed): played(
            ready[False],
            Fleet("wifi-phones", 150, Rng(seed), presence=there),
            is_cohort=is_cohort,
            seed=seed,
            arrive_within_s=30.0,
        )
        for is_cohort in (False, True)
        for seed in (1, 2, 3)
    }


def test_rows_take_the_time_and_the_bytes_of_full_devices(both: dict[tuple[bool, int], Played]) -> None:
    rows, full = ([each for (kind, _), each in both.items() if kind is is_cohort] for is_cohort in (True, False))
    seconds = [sum(each.world.kernel.now_s for each in kind) for kind in (rows, full)]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.02)
    assert sum(each.bytes for each in rows) == pytest.approx(sum(each.bytes for each in full), rel=0.02)
    for (is_cohort, _), each in both.items():
        assert each.seen.updates >= 8 * 20
        assert each.world.cohort is None or is_cohort
        # Most leases are trained by rows.
        assert sum(each.seen.full.values()) < 40, each.seen.full


def test_rows_learn_what_full_devices_learn(both: dict[tuple[bool, int], Played]) -> None:
    found = {
        kind: [each.accuracy for (is_cohort, _), each in both.items() if is_cohort is kind] for kind in (False, True)
    }
    spread = max(max(shares) - min(shares) for shares in found.values())
    assert min(found[True]) > 0.5
    assert abs(np.mean(found[True]) - np.mean(found[False])) <= max(spread, 0.02), found


def test_each_example_is_new_once_however_often_its_device_comes(both: dict[tuple[bool, int], Played]) -> None:
    for each in both.values():
        assert set(each.seen.fresh.values()) <= {0, HELD}
        assert len(each.seen.fresh) > 60
        assert each.seen.updates > len(each.seen.fresh)


def even(count: int) -> list[Build]:
    line = AccessLink(up=Steady(1e6), down=Steady(2e6), latency_s=0.01)
    return [
        Build(kind="even", seconds_per_gmac=1.0, seconds_per_batch=0.1, jitter=0.3, memory_mb=4096, line=line)
        for _ in range(count)
    ]


def test_one_row_makes_the_very_model_of_its_full_device(ready: dict[bool, ReadyTask]) -> None:
    """Without jitter on the links and with nobody beside it, even the moments are the same."""
    plan = replace(PLAN, cohort=1, epoch_leases=1, workers_min=1, workers_max=1, until=Until(epochs=6))
    full, row = (played(ready[False], even(1), is_cohort=is_cohort, plan=plan) for is_cohort in (False, True))
    assert not row.seen.full
    assert row.model.tobytes() == full.model.tobytes()
    assert row.seen.fresh == full.seen.fresh == Counter({"w1": HELD})
    assert row.world.kernel.now_s == pytest.approx(full.world.kernel.now_s, abs=0.1)


FAULTS = {
    "crash": "crash(w1..w8, at=14, restart_s=5)",
    "cut": "cut(w1..w8, at=14)",
    "slow": "slow(w1..w8, 3x, at=14, for_s=10)",
    "fail": "fail(w1..w8, at=14)",
    "home": "crash(home, at=14, restart_s=3)",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_struck_row_goes_on_with_its_examples_as_a_full_device(name: str, ready: dict[bool, ReadyTask]) -> None:
    plan = replace(PLAN, workers_min=20, workers_max=24, until=Until(epochs=12))
    found = played(ready[False], even(24), is_cohort=True, plan=plan, faults=FAULTS[name])
    assert found.world.disk.jobs["job"].state.value == "finished"
    assert sum(found.seen.full.values()) >= 8, found.seen.full
    # An update that was sent again, or that was lost with the leader, counts its new examples again.
    assert set(found.seen.fresh.values()) <= {0, HELD, 2 * HELD}
    assert sum(count > HELD for count in found.seen.fresh.values()) <= 20


def test_training_that_diverges_fails_the_job_and_not_the_simulation(ready: dict[bool, ReadyTask]) -> None:
    plan = replace(PLAN, learning_rate=1e6, accept_unusual=True)
    found = played(ready[False], even(24), is_cohort=True, plan=plan)
    assert found.world.disk.jobs["job"].state.value == "failed"
    assert "not finite" in (found.world.disk.jobs["job"].reason or "")
    assert found.seen.full["its lease failed"] > 0


def test_devices_that_keep_more_are_full_ones_with_the_reason(ready: dict[bool, ReadyTask]) -> None:
    own = job(ready[True], PLAN, devices=4)
    kept = job(ready[False], replace(PLAN, inner="adam", inner_state="kept", momentum=0.0), devices=4)
    plain = job(ready[False], PLAN, devices=4)
    try:
        assert why_not(plain) is None
        assert "part of the model of their own" in str(why_not(own))
        assert "state of their optimisers" in str(why_not(kept))
        with pytest.raises(Misuse, match="as a cohort"):
            World(Settings(seed=1, builds=even(4), home_line=home_line("even"), jobs=[own], is_cohort=True))
        assert not Study(job=own, devices=4, profile="even", cohort_from=1).is_cohort
    finally:
        for each in (own, kept, plain):
            close(each)


def test_a_large_study_trains_rows_and_its_picture_counts_all_devices(
    ready: dict[bool, ReadyTask], tmp_path: Path
) -> None:
    simulated = job(ready[False], replace(PLAN, until=Until(epochs=3)), devices=300)
    try:
        outcome = simulate(Study(job=simulated, devices=300, profile="even", cohort_from=200))
        assert outcome.state == "finished"
        assert outcome.rows > 200
        assert outcome.took_part > 20
        local = simulated.local
        assert isinstance(local, LocalTraining)
        # Only devices that are there have a trainer.
        assert len(local._sides) < 100
        for each in outcome.census:
            assert each.working + each.waiting + each.asleep + each.away == 300
        assert max(each.working for each in outcome.census) > 0
        assert max(each.waiting for each in outcome.census) > 20
        assert outcome.census[-1].at_s == pytest.approx(outcome.seconds, abs=1.0)
        assert outcome.to_plain()["census"][0]["away"] > 0
        assert _devices_text(outcome).startswith("300 devices by what they are at")
        draw([("plan", outcome)], tmp_path / "fleet.png")
        assert (tmp_path / "fleet.png").stat().st_size > 10_000
    finally:
        close(simulated)


def test_many_devices_are_one_array(ready: dict[bool, ReadyTask]) -> None:
    divided = divide(ready[False], PARTITION, devices=20_000)
    assert len(divided.rows) == 20_000
    assert divided.rows[19_999].base is divided.rows[0].base
    assert divided.to_plain()["examples"] == 20_000 * HELD
