"""The tally of a simulation: its numbers are those that can be worked out by hand, and its lanes have no gaps."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dst.case import case
from dst.fuzz import CheckedRun
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Action, End, Evaluate, Keep, Record, Save, Send, Train
from shoal.roles.events import Event, Started, TimerFired, Trained
from shoal.sim.devices import Build
from shoal.sim.fault_text import parse
from shoal.sim.inflict import Inflicter
from shoal.sim.invariants import Violation
from shoal.sim.jobs import (
    EvaluationResult,
    SimulatedJob,
    SystemOnly,
    Training,
    TrainingResult,
    examples_to_judge,
    judged,
)
from shoal.sim.metrics import REASONS_MAX, Metrics, coarser, drawn, general_reason
from shoal.sim.network import AccessLink
from shoal.sim.observe import Mark, Step
from shoal.sim.outcome import (
    LANES_MAX,
    PLAIN_DEVICES_MAX,
    RATES_MAX,
    SPANS_MAX,
    DeviceActivity,
    DeviceTimeline,
    Outcome,
    ReasonCount,
)
from shoal.sim.rates import Steady
from shoal.sim.world import HOME, Settings, World
from shoal.wire.messages import Dataset, EvaluationView, JobSpec, Progress, Wait

SIZE = 5000
LEASE_S = 0.5
BATCHES, EPOCHS = 8, 2
SUBMIT_S = 1.0
#: 1000 held-out examples are 10 batches, forward only.
EXAM_S = 10 * LEASE_S / 3

LINE = AccessLink(up=Steady(1e6), down=Steady(1e6), latency_s=0.001)
BOARD = Build(
    kind="board",
    seconds_per_gmac=0.0,
    seconds_per_batch=LEASE_S,
    jitter=0.0,
    memory_mb=1024,
    battery_wh=0.0,
    train_watts=5.0,
    idle_watts=1.0,
    heat=None,
    line=LINE,
)


class Rising:
    """Every version is 1 % better than the one before."""

    def train(self, spec: JobSpec, model: np.ndarray, lease: Train) -> TrainingResult:
        return TrainingResult(100 * len(lease.batches), 1.0, np.full(SIZE, 0.01, dtype=np.float32))

    def evaluate(self, spec: JobSpec, model: np.ndarray, lease: Evaluate) -> EvaluationResult:
        examples = examples_to_judge(spec, lease)
        return judged(examples, float(examples), round(examples * float(model[0])))


class Watch:
    """When the worker of each device first started, what the leader recorded, and when the job ended."""

    def __init__(self) -> None:
        self.started_s: dict[str, float] = {}
        self.evaluated_s: list[float] = []
        self.over_s = 0.0

    def step(self, step: Step) -> None:
        if step.role == "worker" and isinstance(step.event, Started):
            self.started_s.setdefault(step.node, step.at_s)
        for action in step.actions:
            if isinstance(action, Record) and step.role == "leader" and action.kind == "job.evaluated":
                self.evaluated_s.append(step.at_s)
            if isinstance(action, Keep) and action.state == "finished":
                self.over_s = step.at_s

    def mark(self, mark: Mark) -> None:
        pass


def world_of(
    devices: int,
    *observers: Metrics | Watch,
    training: Training | None = None,
    test_examples: int = 0,
    epochs: int = EPOCHS,
    goal: float | None = None,
) -> World:
    plan = Plan(
        batch_size=100,
        lease_batches=1,
        momentum=0.0,
        workers_min=1,
        workers_max=max(2, devices),
        checkpoint_every_s=1.0,
        until=Until(epochs=epochs, accuracy=goal),
    )
    sha = "0" * 64
    spec = JobSpec(
        job="job",
        name="job",
        entry="task:Sample",
        bundle=sha,
        initial=sha,
        train=Dataset(manifest=sha, examples=100 * BATCHES),
        test=Dataset(manifest=sha, examples=test_examples),
        plan=plan,
    )
    model = np.zeros(SIZE, dtype=np.float32)
    model.flags.writeable = False
    job = SimulatedJob(
        spec=spec,
        layout=Layout.of([("weight", (SIZE,), "parameter")]),
        model=model,
        training=training or SystemOnly(SIZE),
        gmacs_per_example=0.0,
        start_s=0.5,
        submit_s=SUBMIT_S,
    )
    settings = Settings(
        seed=1,
        builds=[BOARD] * devices,
        home_line=AccessLink(up=Steady(1e7), down=Steady(1e7), latency_s=0.001),
        jobs=[job],
        arrive_within_s=0.0,
    )
    return World(settings, observers=observers)


def run(world: World, faults: str = "") -> None:
    inflicter = Inflicter(world, parse(faults))
    world.observers.append(inflicter)
    inflicter.begin()
    world.begin()
    assert world.run(limit_s=600.0, events_max=200_000)


def held_s(lane: DeviceTimeline, state: DeviceActivity) -> float:
    return sum(span.to_s - span.from_s for span in lane.spans if span.state is state)


def check_lanes(outcome: Outcome) -> None:
    for lane in outcome.lanes:
        assert lane.spans[0].from_s == 0.0
        assert lane.spans[-1].to_s == outcome.seconds
        for before, after in itertools.pairwise(lane.spans):
            assert before.to_s == after.from_s
            assert before.state is not after.state
        assert all(span.from_s < span.to_s for span in lane.spans)


# By hand -----------------------------------------------------------------------------------------------


def test_two_even_devices_share_the_work() -> None:
    metrics, watch = Metrics(2), Watch()
    world = world_of(2, metrics, watch)
    run(world)
    outcome = metrics.outcome(world, "job")

    assert (outcome.state, outcome.reason) == ("finished", f"{EPOCHS} of {EPOCHS} epochs")
    assert outcome.seconds == watch.over_s - SUBMIT_S
    # Each version takes one batch of each device.
    assert (outcome.rounds, outcome.epochs) == (BATCHES * EPOCHS / 2, EPOCHS)
    leases = BATCHES * EPOCHS // 2
    for device in outcome.devices:
        assert (device.kind, device.batches, device.failures, device.is_hot) == ("board", leases, 0, False)
        assert device.here_s == pytest.approx(watch.over_s - watch.started_s[device.node])
        assert device.busy_s == pytest.approx(leases * LEASE_S)
        # On since second 0, at 1 W and 4 W more while it trains.
        assert device.energy_wh == pytest.approx((world.kernel.now_s + 4 * leases * LEASE_S) / 3600)
    here_s = sum(watch.over_s - started_s for started_s in watch.started_s.values())
    assert outcome.idle_share == pytest.approx(1 - 2 * leases * LEASE_S / here_s)
    assert outcome.energy_wh == pytest.approx(2 * outcome.devices[0].energy_wh)
    assert (outcome.refused, outcome.leases_expired, outcome.crashes, outcome.notes) == (0, 0, 0, ())
    assert (outcome.accuracy, outcome.is_system_only, outcome.goal) == (None, True, None)
    assert outcome.events == world.kernel.handled


def test_each_wait_is_counted_once() -> None:
    metrics = Metrics(2)
    world = world_of(2, metrics)
    run(world)
    outcome = metrics.outcome(world, "job")
    for device, lane in zip(outcome.devices, outcome.lanes, strict=True):
        waited_s = device.waited_s
        assert sum(waited_s.values()) == pytest.approx(device.here_s - device.busy_s)
        assert waited_s["start"] == pytest.approx(held_s(lane, DeviceActivity.PREPARING))
        assert waited_s["update"] == pytest.approx(held_s(lane, DeviceActivity.SENDING))
        assert waited_s["model"] == pytest.approx(held_s(lane, DeviceActivity.RECEIVING))
        assert waited_s["lease"] >= 0
        longest = max(waited_s, key=waited_s.__getitem__)
        assert outcome.waited[longest].devices >= 1
    for name, wait in outcome.waited.items():
        assert wait.seconds == pytest.approx(sum(device.waited_s[name] for device in outcome.devices))
    assert sum(wait.devices for wait in outcome.waited.values()) == 2
    devices = [wait.devices for wait in outcome.waited.values()]
    assert devices == sorted(devices, reverse=True)
    plain = json.loads(json.dumps(outcome.to_plain()))
    assert [each["for"] for each in plain["waited"]] == list(outcome.waited)


@pytest.mark.parametrize(
    ("reason", "general"),
    [
        ("version 12 waits for w3, w14 and 20 more", "version N waits for others"),
        ("version 13 waits for w7", "version N waits for others"),
        ("1 of 2 required devices connected", "N of N required devices connected"),
        (
            "an update of norm 94.6 before it is known what is usual",
            "an update of norm N before it is known what is usual",
        ),
        ("no update in 1,204.5 s", "no update in N s"),
        ("a norm of 1.2e-05", "a norm of N"),
        ("window w", "window w"),
    ],
)
def test_reasons_of_one_kind_are_one(reason: str, general: str) -> None:
    assert general_reason(reason) == general


def test_trouble_is_counted_by_reason() -> None:
    metrics = Metrics(2)
    update = TimerFired(name="any")

    def leads(at_s: float, *actions: Action) -> None:
        metrics.step(Step(at_s, HOME, "leader", "job", update, list(actions)))

    for at, norm in enumerate((3.5, 17, 4)):
        leads(at, Record(kind="update.rejected", reason=f"w{at + 1}: an update of norm {norm}", job="job"))
    leads(4, Record(kind="lease.expired", reason="lease 4 of w2: no update in 4.5 s", job="job"))
    leads(5, Send(to="w1", message=Wait(job="job", reason="version 3 waits for w2")))
    for each in range(2 * REASONS_MAX):
        leads(6, Record(kind="lease.failed", reason=f"w1: because of {chr(97 + each % 26) * (1 + each)}", job="job"))
    counted = metrics._course("job").reasons_seen()
    assert ReasonCount("update.rejected", "an update of norm N", 3) in counted
    assert ReasonCount("lease.expired", "no update in N s", 1) in counted
    assert ReasonCount("wait", "version N waits for others", 1) in counted
    assert counted[0] == ReasonCount("lease.failed", "other reasons", 2 * REASONS_MAX - (REASONS_MAX - 3))
    assert len(counted) == REASONS_MAX + 1


def test_models_and_updates_take_their_time_on_the_wire() -> None:
    metrics = Metrics(1)
    world = world_of(1, metrics)
    run(world)
    (lane,) = metrics.outcome(world, "job").lanes
    # One version a batch: the model comes down and the update goes up, 20 kB each at 1 MB/s, and hardly any more.
    least_s = BATCHES * EPOCHS * 4 * SIZE / 1e6
    assert least_s < held_s(lane, DeviceActivity.SENDING) < 1.5 * least_s
    assert least_s < held_s(lane, DeviceActivity.RECEIVING) < 1.5 * least_s
    (device,) = metrics.outcome(world, "job").devices
    assert device.wire_s == pytest.approx(held_s(lane, DeviceActivity.SENDING) + held_s(lane, DeviceActivity.RECEIVING))
    assert device.busy_s == pytest.approx(held_s(lane, DeviceActivity.TRAINING))
    assert 0.5 <= held_s(lane, DeviceActivity.PREPARING) < 0.6


def test_bytes_are_those_of_the_network() -> None:
    metrics = Metrics(3)
    world = world_of(3, metrics)
    run(world)
    outcome = metrics.outcome(world, "job")
    names = [device.node for device in outcome.devices]
    assert names == ["w1", "w2", "w3"]
    assert [device.bytes_up for device in outcome.devices] == [world.network.sent_bytes(name) for name in names]
    # Whatever devices send, home receives, and the other way round.
    assert outcome.bytes_up == world.network.received_bytes(HOME) > BATCHES * EPOCHS * 4 * SIZE
    assert outcome.bytes_down == world.network.sent_bytes(HOME)


def test_evaluations_and_the_time_to_an_accuracy() -> None:
    metrics, watch = Metrics(2), Watch()
    world = world_of(2, metrics, watch, training=Rising(), test_examples=2000, epochs=3)
    run(world)
    outcome = metrics.outcome(world, "job")
    # Four versions an epoch.
    assert [(point.version, point.epoch) for point in outcome.evaluations] == [(4, 1), (8, 2), (12, 3)]
    assert [point.accuracy for point in outcome.evaluations] == pytest.approx([0.04, 0.08, 0.12])
    assert [point.at_s for point in outcome.evaluations] == [at_s - SUBMIT_S for at_s in watch.evaluated_s]
    assert outcome.accuracy == outcome.evaluations[-1].accuracy
    assert outcome.time_to(0.01) == outcome.evaluations[0].at_s
    assert outcome.time_to(0.05) == outcome.time_to(0.08) == outcome.evaluations[1].at_s
    assert outcome.time_to(0.13) is None
    assert [held_s(lane, DeviceActivity.EVALUATING) for lane in outcome.lanes] == pytest.approx([3 * EXAM_S] * 2)
    assert not outcome.is_system_only


def test_a_goal_is_told() -> None:
    metrics = Metrics(2)
    world = world_of(2, metrics, training=Rising(), test_examples=1000, epochs=9, goal=0.08)
    run(world)
    outcome = metrics.outcome(world, "job")
    assert (outcome.goal, outcome.epochs) == (0.08, 2)
    assert outcome.time_to(0.08) == outcome.evaluations[-1].at_s < outcome.seconds


def test_who_crashes_is_away_and_who_leaves_did_not_crash() -> None:
    metrics = Metrics(3)
    world = world_of(3, metrics, epochs=8)
    run(world, "crash(w1, at=4, restart_s=7)\nleave(w2, at=6, back_s=5)\nrestart(home, at=8)")
    outcome = metrics.outcome(world, "job")
    assert outcome.crashes == 2
    # The leader that began anew forgot none of its versions.
    assert outcome.epochs == 8
    one, two, three = outcome.lanes
    away = [(span.from_s, span.to_s) for span in one.spans if span.state is DeviceActivity.AWAY]
    assert away == [(4 - SUBMIT_S, 11 - SUBMIT_S)]
    # It says goodbye first, which takes a moment.
    assert 4.9 < held_s(two, DeviceActivity.AWAY) <= 5.0
    assert held_s(three, DeviceActivity.AWAY) == 0.0
    notes = [(note.at_s, note.node, note.text) for note in outcome.notes]
    assert notes == [
        (4 - SUBMIT_S, "w1", "crash(w1, at=4, restart_s=7)"),
        (6 - SUBMIT_S, "w2", "leave(w2, at=6, back_s=5)"),
        (8 - SUBMIT_S, HOME, "restart(home, at=8)"),
    ]
    check_lanes(outcome)
    # While away it draws nothing of ours, and the lease it was at is charged up to when the power went.
    here_s = world.kernel.now_s - 7
    first = outcome.devices[0]
    assert first.energy_wh == pytest.approx((here_s + 4 * first.busy_s) / 3600)
    assert first.here_s < here_s


def test_trainers_that_fail_are_counted() -> None:
    metrics = Metrics(2)
    world = world_of(2, metrics)
    run(world, "fail(w2, at=4)")
    outcome = metrics.outcome(world, "job")
    assert [device.failures for device in outcome.devices] == [0, 1]
    # The trainer starts anew.
    assert held_s(outcome.lanes[1], DeviceActivity.PREPARING) > 2 * 0.5


def test_a_job_can_be_asked_about_before_it_began_and_on_its_way() -> None:
    metrics = Metrics(2)
    world = world_of(2, metrics)
    before = metrics.outcome(world, "job")
    assert (before.state, before.seconds, before.rounds, before.rates) == ("queued", 0.0, 0, ())
    assert [lane.spans for lane in before.lanes] == [(), ()]
    world.begin()
    assert not world.run(limit_s=4.0)
    halfway = metrics.outcome(world, "job")
    assert halfway.state == "running"
    assert halfway.seconds == world.kernel.now_s - SUBMIT_S
    check_lanes(halfway)
    assert metrics.outcome(world, "job") == halfway
    assert world.run(limit_s=600.0)
    assert metrics.outcome(world, "job").rounds > halfway.rounds > 0


# Step by step ------------------------------------------------------------------------------------------

DUE = TimerFired(name="due")


def worker_step(at_s: float, event: Event, *actions: Action) -> Step:
    return Step(at_s, "w1", "worker", "job", event, list(actions))


def train(lease: int) -> Train:
    return Train(lease=lease, epoch=0, batches=(0,))


def trained(lease: int) -> Trained:
    return Trained(lease=lease, examples=1, loss_sum=1.0, seconds=1.0)


def leader_step(at_s: float, version: int, *actions: Action) -> Step:
    told = Progress(job="job", term=1, state="training", version=version)
    return Step(at_s, HOME, "leader", "job", DUE, [Send(to=HOME, message=told), *actions])


def test_a_trainer_that_was_given_another_lease_goes_on_with_it() -> None:
    metrics, world = Metrics(1), world_of(1)
    metrics.step(worker_step(SUBMIT_S, Started()))
    metrics.step(worker_step(SUBMIT_S + 1, DUE, train(1)))
    metrics.step(worker_step(SUBMIT_S + 2, DUE, train(2)))
    metrics.step(worker_step(SUBMIT_S + 4, trained(1)))
    metrics.step(worker_step(SUBMIT_S + 7, trained(2)))
    world.kernel.now_s = SUBMIT_S + 10
    (device,) = metrics.outcome(world, "job").devices
    assert (device.here_s, device.busy_s) == (10.0, 6.0)


def test_who_is_dismissed_is_not_here_any_more() -> None:
    metrics, world = Metrics(1), world_of(1)
    metrics.step(worker_step(SUBMIT_S, Started()))
    metrics.step(worker_step(SUBMIT_S + 3, DUE, End(reason="its place was taken")))
    world.kernel.now_s = SUBMIT_S + 10
    assert metrics.outcome(world, "job").devices[0].here_s == 3.0


def test_evaluations_of_versions_that_a_crash_lost_are_not_told() -> None:
    metrics, world = Metrics(1), world_of(1)
    for at_s, version in ((10.0, 4), (20.0, 8), (40.0, 7)):
        if version == 7:
            # The leader is back at version 5: fewer devices are left, and the epoch ends with another version.
            metrics.mark(Mark(30.0, HOME, "led", {"job": "job", "term": 2, "version": 5}))
        view = EvaluationView(version=version, epoch=1, accuracy=0.01 * version, loss=1.0, examples=1, seconds=at_s)
        metrics.step(leader_step(at_s, version, Record(kind="job.evaluated", reason="", job="job")))
        # It is saved a little later.
        metrics.step(leader_step(at_s + 1, version, Save(version=version, tensors={}, state={}, evaluations=(view,))))
    outcome = metrics.outcome(world, "job")
    assert [(point.version, point.at_s) for point in outcome.evaluations] == [(4, 9.0), (7, 39.0)]
    assert outcome.time_to(0.08) is None
    assert [version for _, version in outcome.rates] == [4, 8, 7]


# Bounds ------------------------------------------------------------------------------------------------


def test_the_series_of_versions_is_thinned() -> None:
    metrics = Metrics(1)
    world = world_of(1)
    for version in range(1, 5001):
        metrics.step(leader_step(SUBMIT_S + 0.1 * version, version))
    outcome = metrics.outcome(world, "job")
    assert RATES_MAX / 4 < len(outcome.rates) <= RATES_MAX
    assert outcome.rates[-1] == (pytest.approx(500.0), 5000)
    assert all(at_s == pytest.approx(0.1 * version) for at_s, version in outcome.rates)
    gaps = [after - before for (_, before), (_, after) in itertools.pairwise(outcome.rates)]
    assert len(set(gaps[:-1])) == 1


def test_a_lane_of_many_spans_is_told_more_coarsely_and_no_less_truly() -> None:
    metrics = Metrics(1)
    world = world_of(1)
    metrics.mark(Mark(0.0, "w1", "started"))
    metrics.step(worker_step(SUBMIT_S, Started()))
    for lease in range(1, 10_001):
        metrics.step(worker_step(SUBMIT_S + lease - 0.75, DUE, train(lease)))
        metrics.step(worker_step(SUBMIT_S + lease, trained(lease)))
    world.kernel.now_s = SUBMIT_S + 10_000.0
    outcome = metrics.outcome(world, "job")
    (lane,), (device,) = outcome.lanes, outcome.devices
    assert SPANS_MAX / 8 < len(lane.spans) <= SPANS_MAX + 1
    assert 10_000 / SPANS_MAX < lane.grain_s < 10 * 10_000 / SPANS_MAX
    assert lane.grains_from_s == -SUBMIT_S
    # To the very end each grain tells each of two states once; rounding may add a start that lies on its border.
    starts = Counter((span.from_s - lane.grains_from_s) // lane.grain_s for span in lane.spans)
    assert max(starts.values()) <= 3
    check_lanes(outcome)
    assert held_s(lane, DeviceActivity.TRAINING) == pytest.approx(7500.0)
    assert held_s(lane, DeviceActivity.WAITING) == pytest.approx(2500.0)
    assert (device.here_s, device.busy_s) == pytest.approx((10_000.0, 7500.0))


@given(
    st.lists(st.tuples(st.sampled_from(DeviceActivity), st.floats(0.001, 100.0)), min_size=1, max_size=80),
    st.floats(0.01, 500.0),
)
def test_coarser_spans_hold_every_state_as_long(held: list[tuple[DeviceActivity, float]], grain_s: float) -> None:
    spans: list[tuple[DeviceActivity, float, float]] = []
    for state, seconds in held:
        from_s = spans[-1][2] if spans else 0.0
        spans.append((state, from_s, from_s + seconds))
    fewer = coarser(spans, grain_s)
    end_s = spans[-1][2]
    assert len(fewer) <= len(DeviceActivity) * (end_s / grain_s + 1)
    assert (fewer[0][1], fewer[-1][2]) == (0.0, spans[-1][2])
    assert all(before[2] == after[1] for before, after in itertools.pairwise(fewer))

    def sums(told: Sequence[tuple[DeviceActivity, float, float]], until_s: float) -> dict[DeviceActivity, float]:
        cut = [(state, from_s, min(to_s, until_s)) for state, from_s, to_s in told if from_s < until_s]
        return {state: sum(to_s - from_s for held, from_s, to_s in cut if held is state) for state in DeviceActivity}

    # At the end of every grain, not only of all.
    for grains in range(1, 20):
        assert sums(fewer, grains * grain_s) == pytest.approx(sums(spans, grains * grain_s), abs=1e-6)
    assert sums(fewer, end_s) == pytest.approx(sums(spans, end_s), abs=1e-6)


@pytest.mark.parametrize("devices", [1, 7, LANES_MAX, LANES_MAX + 1, 100, 100_000])
def test_lanes_are_chosen_evenly(devices: int) -> None:
    numbers = [int(node[1:]) for node in drawn(devices)]
    assert len(numbers) == min(devices, LANES_MAX)
    assert numbers[0] == 1
    assert numbers[-1] <= devices
    gaps = {after - before for before, after in itertools.pairwise(numbers)}
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_many_devices_are_summed_up_by_kind_in_plain_words() -> None:
    devices = PLAIN_DEVICES_MAX + 5
    metrics = Metrics(devices)
    world = world_of(devices, metrics, epochs=1)
    run(world)
    outcome = metrics.outcome(world, "job")
    assert len(outcome.lanes) == LANES_MAX
    plain = json.loads(json.dumps(outcome.to_plain()))
    assert len(plain["devices"]) == PLAIN_DEVICES_MAX
    (rest,) = plain["more_devices"]
    assert (rest["kind"], rest["devices"]) == ("board", 5)
    assert rest["bytes_up"] + sum(row["bytes_up"] for row in plain["devices"]) == plain["bytes_up"] == outcome.bytes_up
    assert plain["lanes"][0]["spans"][0][0] in list(DeviceActivity)
    assert plain["idle_share"] == outcome.idle_share


# Disasters ---------------------------------------------------------------------------------------------


class Saves:
    """The last checkpoint of each job that became durable."""

    def __init__(self) -> None:
        self.last: dict[str, Save] = {}

    def step(self, step: Step) -> None:
        pass

    def mark(self, mark: Mark) -> None:
        if mark.kind == "durable":
            self.last[mark.facts["job"]] = mark.facts["save"]


@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.full) for seed in range(10, 41))])
def test_whatever_happens_lanes_have_no_gaps_and_evaluations_are_those_that_survived(seed: int) -> None:
    what = case("plain", seed)
    metrics, saves = Metrics(len(what.builds)), Saves()
    checked = CheckedRun(what, observers=[metrics, saves])
    # Whether the protocol holds is asked elsewhere; what happened is to be told rightly in any case.
    with contextlib.suppress(Violation):
        checked.run()
    for job in what.jobs:
        outcome = metrics.outcome(checked.world, job.spec.job)
        check_lanes(outcome)
        for lane, device in zip(outcome.lanes, outcome.devices, strict=True):
            assert lane.node == device.node
            busy_s = held_s(lane, DeviceActivity.TRAINING) + held_s(lane, DeviceActivity.EVALUATING)
            assert device.busy_s == pytest.approx(busy_s)
            assert device.busy_s + device.wire_s <= device.here_s + 1e-6
            assert device.here_s <= outcome.seconds - held_s(lane, DeviceActivity.AWAY) + 1e-6
        last = saves.last[job.spec.job]
        assert outcome.rounds == last.version
        survived = [row["version"] for row in last.state["evaluations"]]
        assert [point.version for point in outcome.evaluations] == survived
        times = [point.at_s for point in outcome.evaluations]
        assert times == sorted(times)
        assert all(0 < at_s <= outcome.seconds for at_s in times)
        assert 0 <= outcome.idle_share <= 1
