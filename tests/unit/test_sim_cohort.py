"""Devices as rows: the same counts as full devices give, whatever befalls them on the way."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Record, Send
from shoal.roles.events import Received
from shoal.roles.node.failure_detector import Patience
from shoal.sim.cohort import RowState, why_not
from shoal.sim.devices import Build, Presence
from shoal.sim.fault_text import parse
from shoal.sim.inflict import Inflicter
from shoal.sim.invariants import Invariants
from shoal.sim.jobs import SimulatedJob, system_job
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.profiles import Fleet, builds, home_line
from shoal.sim.rates import Steady
from shoal.sim.rng import Rng
from shoal.sim.study import Study, simulate
from shoal.sim.trace import TraceWriter
from shoal.sim.world import Settings, World
from shoal.wire.messages import Hello, Update, UpdateRefused, Welcome, Work

LAYOUT = Layout.of([("weight", (10, 100), "parameter")])
PATIENCE = Patience(heartbeat_s=5.0, suspect_after_s=15.0, lost_after_s=30.0, reconnect_s=5.0)


class Count:
    """What the home's roles heard and decided, and which rows became full devices."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()
        self.full: Counter[str] = Counter()
        #: (term, lease) -> the device that has it.
        self.lent: dict[tuple[int, int], str] = {}
        self.merged: list[int] = []

    def step(self, step: Step) -> None:
        if step.role == "worker":
            self.of["worker steps"] += 1
            return
        if isinstance(step.event, Received) and isinstance(step.event.message, Update | Hello):
            self.of[type(step.event.message).__name__] += 1
            if isinstance(step.event.message, Update):
                self.merged.append(step.event.message.lease)
        for action in step.actions:
            if isinstance(action, Send) and isinstance(action.message, Work):
                # A lease number is of a term.
                key = (action.message.term, action.message.lease)
                assert key not in self.lent
                self.lent[key] = action.to
            if isinstance(action, Send) and isinstance(action.message, UpdateRefused | Work):
                self.of[type(action.message).__name__] += 1
            if isinstance(action, Send) and isinstance(action.message, Welcome):
                self.of["sent away"] += action.message.come_s > 0
            if isinstance(action, Record) and action.kind in ("lease.expired", "worker.lost", "lease.failed"):
                self.of[action.kind.partition(".")[2]] += 1

    def mark(self, mark: Mark) -> None:
        if mark.kind == "full":
            self.full[str(mark.facts["reason"])] += 1


def plan(**choices: object) -> Plan:
    known: dict[str, object] = {
        "batch_size": 64,
        "pace": "buffered",
        "buffer": 10,
        "workers_max": 10_000,
        "until": Until(epochs=1),
    }
    return Plan(**{**known, **choices})  # type: ignore[arg-type]


def job(plan: Plan, *, batches: int, gmacs: float = 2e-2) -> SimulatedJob:
    return system_job(
        plan, LAYOUT, examples=64 * batches, job="fleet", gmacs_per_example=gmacs, fetch_bytes=50_000, start_s=1.0
    )


def world(
    fleet: list[Build] | Fleet,
    simulated: SimulatedJob,
    *,
    is_cohort: bool = True,
    faults: str = "",
    check_in_s: float = 0.0,
    seed: int = 1,
    arrive_within_s: float = 10.0,
    watched: tuple[str, ...] = (),
) -> tuple[World, Count]:
    count = Count()
    settings = Settings(
        seed=seed,
        builds=fleet,
        home_line=home_line("even"),
        jobs=[simulated],
        patience=PATIENCE,
        check_in_s=check_in_s,
        arrive_within_s=arrive_within_s,
        is_cohort=is_cohort,
        watched=watched,
    )
    made = World(settings, observers=[count])
    inflicter = Inflicter(made, parse(faults))
    invariants = Invariants({"fleet": (simulated.spec, simulated.model.nbytes)}, is_honest=False)
    made.observers += [inflicter, invariants]
    inflicter.begin()
    made.begin()
    return made, count


def phones(count: int) -> list[Build]:
    """Those that have the memory for a trainer."""
    drawn = builds("wifi-phones", 2 * count, Rng(7))
    return [build for build in drawn if build.memory_mb >= 512][:count]


def there(number: int) -> Presence:
    return Presence(spans=((False, 1 + number // 20), (True, 40), (False, 100_000)))


def counts_of(is_cohort: bool, devices: int) -> tuple[Counter[str], World]:
    ends_s = devices / 20 + 40
    simulated = job(plan(until=Until(seconds=ends_s), workers_max=devices // 3), batches=50 * devices, gmacs=5e-2)
    fleet = Fleet("wifi-phones", devices, Rng(3), presence=there)
    made, count = world(fleet, simulated, is_cohort=is_cohort, check_in_s=20.0)
    assert made.run(limit_s=10_000.0)
    count.of["up"], count.of["down"] = made.home_bytes
    count.of["versions"] = len({row.version for row in made.disk.history["fleet"]})
    return count.of, made


@pytest.mark.timeout(300)
def test_rows_give_the_counts_of_full_devices_within_2_percent() -> None:
    """They come, work, are sent away, come again, go in the middle of a lease."""
    full, _ = counts_of(False, 300)
    rows, made = counts_of(True, 300)
    assert made.cohort is not None
    assert made.cohort.made_full < 50
    assert min(full["sent away"], full["lost"]) > 50
    for name in ("Hello", "sent away", "Work", "Update", "lost", "up", "down", "versions"):
        # Who finds a place and who leaves in the middle of a lease is chance: that is a few devices more or less.
        assert rows[name] == pytest.approx(full[name], rel=0.02, abs=5), name
    assert rows["worker steps"] < full["worker steps"] / 5


@pytest.mark.timeout(300)
def test_rows_that_work_under_hubs_become_full_devices_and_the_counts_stay() -> None:
    wide = AccessLink(up=Steady(1e8), down=Steady(1e8), latency_s=0.002)
    hub = Build(kind="hub", seconds_per_gmac=0.0, seconds_per_batch=1.0, memory_mb=4096, line=wide, is_hub=True)
    devices, told = 200, {}
    for is_cohort in (False, True):
        fleet = Fleet("wifi-phones", devices, Rng(3), presence=there, beside=[hub] * 4)
        tree = plan(topology="tree", aggregators=4, until=Until(seconds=devices / 20 + 40), workers_max=devices // 3)
        simulated, watched = job(tree, batches=50 * devices, gmacs=5e-2), tuple(f"w{devices + n}" for n in range(1, 5))
        made, count = world(fleet, simulated, is_cohort=is_cohort, check_in_s=20.0, watched=watched)
        assert made.run(limit_s=10_000.0)
        count.of["up"], count.of["down"] = made.home_bytes
        told[is_cohort] = count.of
        if made.cohort is not None:
            # The hubs, and those that were told their way to one.
            assert count.full["it is watched"] == 4
            assert count.full["it hears Route"] > 30
            assert made.cohort.made_full < devices
            assert sum(made.cohort.bytes_down) == made.cohort.home_link.sent_bytes
            assert sum(made.cohort.bytes_up) == made.cohort.home_link.received_bytes
    assert min(told[False]["sent away"], told[False]["Update"]) > 50
    for name in ("Hello", "sent away", "Work", "Update", "lost", "up", "down"):
        # Of 150 leases some more or less are chance: a device leaves before or after it is lent one.
        assert told[True][name] == pytest.approx(told[False][name], rel=0.03, abs=10), name


def test_one_row_trains_exactly_as_its_full_device_does() -> None:
    """Without jitter on the links and with nobody beside it, even the moments are the same."""
    line = AccessLink(up=Steady(1e6), down=Steady(2e6), latency_s=0.01)
    build = Build(
        kind="even", seconds_per_gmac=1.0, seconds_per_batch=0.1, jitter=0.3, memory_mb=4096, line=line, train_watts=5.0
    )
    ends: list[float] = []
    for is_cohort in (True, False):
        made, count = world([build], job(plan(buffer=1), batches=20), is_cohort=is_cohort)
        assert made.run(limit_s=1000.0)
        assert count.of["Update"] == 20
        assert not count.full
        ends.append(made.kernel.now_s)
    assert ends[0] == pytest.approx(ends[1], abs=0.1)


def test_rows_without_work_sleep_in_the_arrays_and_come_again() -> None:
    made, count = world(phones(40), job(plan(workers_max=4), batches=400), check_in_s=15.0)
    assert not made.run(limit_s=40.0)
    assert made.cohort is not None
    states = Counter(made.cohort.states.tolist())
    assert states[RowState.AWAKE] == made.cohort.awake <= 6
    assert states[RowState.ASLEEP] >= 34
    # 36 come first, and at least once more; the manager knows them as dormant meanwhile.
    assert count.of["sent away"] >= 2 * 36 - 6
    assert not count.full


FAULTS = {
    "crash": "crash(w1..w8, at=14, restart_s=5)",
    "cut": "cut(w1..w8, at=14)",
    "slow": "slow(w1..w8, 3x, at=14, for_s=10)",
    "stop": "stop(w1..w8, at=14, for_s=40)",
    "leave": "leave(w1..w8, at=14, back_s=5)",
    "link": "slow_link(w1..w8, 5x, at=14, for_s=20)",
    "partition": "partition(w1..w8, at=14, for_s=50)",
    "fail": "fail(w1..w8, at=14)",
    "hang": "hang(w1..w8, at=14)",
    "home": "crash(home, at=14, restart_s=3)",
    "home restarts": "restart(home, at=14)",
    "home is cut off": "partition(home, at=14, for_s=50)",
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_struck_row_is_a_full_device_and_no_lease_is_lost_or_counted_twice(name: str) -> None:
    """The invariants watch: exactly once in a finished epoch, nothing merged that was not lent."""
    made, count = world(phones(24), job(plan(), batches=150, gmacs=5e-2), faults=FAULTS[name])
    assert made.run(limit_s=5000.0), made.disk.jobs["fleet"]
    assert made.disk.jobs["fleet"].state.value == "finished"
    assert len(made.disk.history["fleet"]) == 150
    assert sum(count.full.values()) >= 8, count.full
    assert len(count.merged) - count.of["UpdateRefused"] >= 150


def test_a_full_device_is_a_row_again_when_nothing_is_left_of_its_fault() -> None:
    presence = Presence(spans=((True, 30), (False, 10)))
    fleet = [build for build in Fleet("wifi-phones", 30, Rng(7), presence=lambda _: presence) if build.memory_mb >= 512]
    made, _ = world(fleet, job(plan(), batches=600), faults="cut(w1..w5, at=14)\nslow(w6..w7, 2x, at=14)")
    made.run(limit_s=60.0)
    assert made.cohort is not None
    states = made.cohort.states
    assert made.cohort.made_rows >= 5
    assert (states[:5] != RowState.FULL).all()
    # Those that are slow for good stay.
    assert (states[5:7] == RowState.FULL).all()


def test_an_observed_device_is_a_full_one_throughout() -> None:
    made, count = world(phones(10), job(plan(), batches=60), watched=("w3", "w7"))
    assert made.run(limit_s=1000.0)
    assert set(made.machines) == {"home", "w3", "w7"}
    assert count.full == {"it is watched": 2}
    assert count.of["worker steps"] > 10


def test_bytes_of_the_rows_are_the_bytes_of_the_link() -> None:
    presence = Presence(spans=((True, 60), (False, 100_000)))
    made, _ = world(list(Fleet("laptops", 12, Rng(2), presence=lambda _: presence)), job(plan(), batches=10_000))
    made.run(limit_s=70.0)
    cohort = made.cohort
    assert cohort is not None
    assert cohort.awake == cohort.made_full == 0
    assert int(np.sum(cohort.bytes_up)) == cohort.home_link.received_bytes == made.home_bytes[0] > 100_000
    assert int(np.sum(cohort.bytes_down)) == cohort.home_link.sent_bytes


def test_equal_seeds_give_equal_traces() -> None:
    def lines(seed: int) -> list[str]:
        written: list[str] = []

        class File:
            def write(self, line: str) -> None:
                written.append(line)

        made, _ = world(phones(12), job(plan(), batches=80), faults=FAULTS["cut"], seed=seed)
        made.observers.append(TraceWriter(File(), {"seed": seed}))
        made.run(limit_s=1000.0)
        return written

    first = lines(5)
    assert len(first) > 200
    assert first == lines(5) != lines(6)


@pytest.mark.parametrize(
    "choice", [{"topology": "tree"}, {"codec": "top1%+ef+4bit"}, {"data": "local", "work": "sized", "budget_s": 1.0}]
)
def test_a_plan_for_which_devices_keep_something_is_of_full_devices(choice: dict[str, object]) -> None:
    simulated = job(plan(pace="sync", buffer=8, **choice), batches=8)
    assert why_not(simulated) is not None
    with pytest.raises(Misuse, match="as a cohort"):
        world(phones(4), simulated)


def test_a_study_of_a_large_fleet_is_of_rows_and_of_some_full_devices() -> None:
    simulated = job(plan(workers_max=200), batches=600)
    outcome = simulate(Study(job=simulated, devices=400, profile="pi4-lan", cohort_from=300))
    assert outcome.state == "finished"
    assert outcome.rows > 100
    assert {device.node for device in outcome.devices} >= {lane.node for lane in outcome.lanes}
    assert outcome.bytes_up > outcome.rows_bytes_up > 0
    whole = simulate(Study(job=simulated, devices=400, profile="pi4-lan"))
    assert whole.rows == 0
    assert whole.rounds == pytest.approx(outcome.rounds, rel=0.02)
