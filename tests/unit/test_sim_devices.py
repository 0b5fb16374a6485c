"""Modelled devices: time, energy, heat and presence obey their equations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import Misuse
from shoal.plan import Plan
from shoal.roles.actions import Train
from shoal.sim.devices import Build, ComputeJob, Device, Heat, Presence
from shoal.sim.jobs import SystemOnly, bare_spec
from shoal.sim.network import AccessLink
from shoal.sim.rates import Steady
from shoal.sim.rng import Stream

LINE = AccessLink(up=Steady(1e6), down=Steady(1e6))
WARM = Heat(rise_c_per_w=10.0, time_constant_s=100.0, limit_c=60.0, ambient_c=20.0, slowdown=2.0)
#: 10 examples of 0.1 GMAC at 2 s each, and 5 steps at 0.5 s: 4.5 s.
WORK = ComputeJob(gmacs_per_example=0.1, examples=10, batches=5)


def device(
    *,
    jitter: float = 0.0,
    battery_wh: float = 0.0,
    heat: Heat | None = None,
    memory_mb: int = 1024,
    presence: Presence | None = None,
    seed: int = 1,
) -> Device:
    build = Build(
        kind="board",
        seconds_per_gmac=2.0,
        seconds_per_batch=0.5,
        jitter=jitter,
        memory_mb=memory_mb,
        battery_wh=battery_wh,
        train_watts=5.0,
        idle_watts=1.0,
        heat=heat,
        line=LINE,
        presence=presence,
    )
    return Device(build, Stream(seed))


def cooled_s(worker: Device, from_s: float, below_c: float) -> float:
    """The first half second at which an idle device is this cool."""
    return next(at_s for at_s in (from_s + half / 2 for half in range(1000)) if worker.temperature_c(at_s) <= below_c)


def lasting(seconds: float) -> ComputeJob:
    """Work of so many seconds on a device that is neither hot nor slowed."""
    return ComputeJob(gmacs_per_example=seconds / 2.0, examples=1, batches=0)


# Time -------------------------------------------------------------------------------------------------


def test_time_is_arithmetic_plus_steps() -> None:
    assert device().seconds_for(WORK, 0.0) == pytest.approx(2.0 * 1.0 + 5 * 0.5)


def test_evaluating_costs_a_third() -> None:
    forward = ComputeJob(gmacs_per_example=0.1, examples=10, batches=5, trains=False)
    assert device().seconds_for(forward, 0.0) == pytest.approx(4.5 / 3)


def test_a_fault_slows_it() -> None:
    slowed = device()
    slowed.slow_factor = 4.0
    assert slowed.seconds_for(WORK, 0.0) == pytest.approx(18.0)


def test_jitter_is_lognormal_and_replays() -> None:
    one, same, other = device(jitter=0.3), device(jitter=0.3), device(jitter=0.3, seed=2)
    drawn = [one.seconds_for(WORK, at * 10.0) for at in range(2000)]
    assert drawn == [same.seconds_for(WORK, at * 10.0) for at in range(2000)]
    assert drawn != [other.seconds_for(WORK, at * 10.0) for at in range(2000)]
    logs = [math.log(seconds / 4.5) for seconds in drawn]
    mean = sum(logs) / len(logs)
    assert abs(mean) < 0.03
    assert math.sqrt(sum((log - mean) ** 2 for log in logs) / len(logs)) == pytest.approx(0.3, rel=0.1)


def test_a_trainer_and_four_copies_of_the_model_must_fit() -> None:
    # 350 MB + 4 x 40 MB = 510 MB.
    model_bytes = 40 * 2**20
    assert device(memory_mb=510).can_hold(model_bytes)
    assert not device(memory_mb=509).can_hold(model_bytes)


# Energy -----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(0, 300)), max_size=12), st.floats(0, 1000))
def test_energy_is_watts_times_seconds(works: list[tuple[float, float]], rest_s: float) -> None:
    worker, now_s, worked_s = device(battery_wh=1e6), 0.0, 0.0
    for wait_s, seconds in works:
        now_s += wait_s
        took_s = worker.seconds_for(lasting(seconds), now_s)
        now_s += took_s
        worked_s += took_s
        assert worker.energy_j == pytest.approx(worker.spent_j(now_s))
    now_s += rest_s
    expected_j = 5.0 * worked_s + 1.0 * (now_s - worked_s)
    assert worker.spent_j(now_s) == pytest.approx(expected_j, abs=1e-6)
    assert worker.battery_left_wh(now_s) == pytest.approx(1e6 - expected_j / 3600)


def test_energy_is_spent_as_time_passes() -> None:
    worker = device()
    worker.seconds_for(lasting(100.0), 50.0)
    # 50 s at 1 W; then 5 W up to 150 s; then 1 W again.
    assert [worker.spent_j(at_s) for at_s in (50.0, 70.0, 150.0, 160.0)] == pytest.approx([50, 150, 550, 560])


def test_a_battery_runs_down_and_stays_empty() -> None:
    # 1 Wh is 3600 J: at 5 W it lasts 720 s.
    worker = device(battery_wh=1.0)
    worker.seconds_for(lasting(1000.0), 0.0)
    assert not worker.is_empty(719.0)
    assert worker.battery_left_wh(360.0) == pytest.approx(0.5)
    assert worker.is_empty(721.0)
    assert worker.battery_left_wh(5000.0) == 0.0


def test_the_mains_never_end() -> None:
    worker = device(battery_wh=0.0)
    worker.seconds_for(lasting(1e9), 0.0)
    assert worker.battery_left_wh(1e9) == math.inf
    assert not worker.is_empty(1e9)


def test_work_cut_short_is_charged_for_what_was_done() -> None:
    worker = device(heat=WARM)
    worker.seconds_for(lasting(100.0), 0.0)
    was_c = worker.temperature_c(40.0)
    worker.interrupt(40.0)
    assert worker.spent_j(60.0) == pytest.approx(40 * 5.0 + 20 * 1.0)
    assert worker.temperature_c(40.0) == pytest.approx(was_c)
    assert worker.temperature_c(60.0) < was_c
    # Other work that begins in the middle ends the first.
    worker.seconds_for(lasting(10.0), 60.0)
    worker.seconds_for(lasting(10.0), 65.0)
    assert worker.spent_j(80.0) == pytest.approx(220 + 15 * 5.0 + 5 * 1.0)


# Heat -------------------------------------------------------------------------------------------------


@given(st.floats(0, 3000), st.floats(0, 20), st.floats(-20, 120))
def test_warming_solves_its_equation(at_s: float, watts: float, start_c: float) -> None:
    # dT/dt = (T∞ - T) / τ, by a central difference.
    step_s = 0.01
    slope = (WARM.after_c(start_c, watts, at_s + step_s) - WARM.after_c(start_c, watts, at_s - step_s)) / (2 * step_s)
    gap_c = 20.0 + 10.0 * watts - WARM.after_c(start_c, watts, at_s)
    assert slope == pytest.approx(gap_c / 100.0, abs=1e-5)
    assert WARM.after_c(start_c, watts, 0.0) == pytest.approx(start_c)


@given(st.floats(0, 500), st.floats(0, 500), st.floats(-10, 90), st.floats(0, 10))
def test_warming_in_two_parts_is_warming_in_one(first_s: float, then_s: float, start_c: float, watts: float) -> None:
    halfway_c = WARM.after_c(start_c, watts, first_s)
    assert WARM.after_c(halfway_c, watts, then_s) == pytest.approx(WARM.after_c(start_c, watts, first_s + then_s))


def test_temperature_follows_work_and_rest() -> None:
    worker = device(heat=WARM)
    # Idle at 1 W for ever: 20 + 10.
    assert worker.temperature_c(0.0) == pytest.approx(30.0)
    worker.seconds_for(lasting(100.0), 1000.0)
    # Toward 20 + 50 for one time constant, then back toward 30 for another.
    peak_c = 70.0 - 40.0 / math.e
    assert worker.temperature_c(1100.0) == pytest.approx(peak_c)
    assert worker.temperature_c(1200.0) == pytest.approx(30.0 + (peak_c - 30.0) / math.e)


def test_a_hot_device_is_slow_until_it_cooled_by_five_degrees() -> None:
    worker = device(heat=WARM)
    # 150 s at 5 W: 70 - 40 e^-1.5 = 61.07 degrees, above the limit.
    assert worker.seconds_for(lasting(150.0), 0.0) == pytest.approx(150.0)
    assert worker.temperature_c(150.0) > WARM.limit_c
    assert worker.seconds_for(lasting(1.0), 150.0) == pytest.approx(2.0)
    assert worker.is_hot
    # Between 55 and 60 it is still slow ...
    now_s = cooled_s(worker, 152.0, 57.0)
    assert worker.seconds_for(lasting(1.0), now_s) == pytest.approx(2.0)
    # ... below 55 no more, and between them not again.
    now_s = cooled_s(worker, now_s + 2.0, 54.9)
    assert worker.seconds_for(lasting(20.0), now_s) == pytest.approx(20.0)
    assert 55.0 < worker.temperature_c(now_s + 20.0) < 60.0
    assert worker.seconds_for(lasting(1.0), now_s + 20.0) == pytest.approx(1.0)
    assert not worker.is_hot


def test_a_slower_clock_draws_less() -> None:
    worker = device(heat=WARM)
    worker.seconds_for(lasting(200.0), 0.0)
    before_j = worker.spent_j(200.0)
    assert worker.seconds_for(lasting(10.0), 200.0) == pytest.approx(20.0)
    # 1 W idle and half of the other 4.
    assert worker.spent_j(220.0) - before_j == pytest.approx(20 * 3.0)


def test_without_heat_it_stays_at_room_temperature() -> None:
    worker = device()
    worker.seconds_for(lasting(1e6), 0.0)
    assert worker.temperature_c(1e6) == 25.0


# Presence ---------------------------------------------------------------------------------------------

SPANS = st.lists(st.tuples(st.booleans(), st.integers(1, 10_000)), min_size=1, max_size=12).map(tuple)


def test_spans_repeat() -> None:
    here = Presence(spans=((False, 10), (True, 5)))
    assert [here.is_present(at_s) for at_s in (0.0, 9.9, 10.0, 14.9, 15.0, 25.0, 30.0)] == [
        *(False, False, True, True, False, True, False)
    ]
    assert [here.next_change_s(at_s) for at_s in (0.0, 10.0, 14.9, 15.0)] == [10.0, 15.0, 15.0, 25.0]


def test_an_offset_begins_within_the_spans() -> None:
    here = Presence(spans=((False, 10), (True, 5)), offset_s=8)
    assert not here.is_present(1.9)
    assert here.next_change_s(0.0) == 2.0
    assert here.is_present(2.0)
    assert here.next_change_s(2.0) == 7.0


@given(SPANS, st.integers(0, 50_000), st.integers(0, 40_000), st.integers(1, 10**6))
def test_they_repeat_exactly(spans: tuple[tuple[bool, int], ...], offset_s: int, at_s: int, turns: int) -> None:
    here = Presence(spans=spans, offset_s=offset_s)
    later_s = at_s + turns * sum(seconds for _, seconds in spans)
    assert here.is_present(at_s) is here.is_present(later_s)
    change_s, later_change_s = here.next_change_s(at_s), here.next_change_s(later_s)
    if change_s is None or later_change_s is None:
        assert change_s is later_change_s
        assert len({is_there for is_there, _ in spans}) == 1
    else:
        assert change_s - at_s == later_change_s - later_s


@given(SPANS, st.integers(0, 50_000), st.floats(0, 1e7))
def test_the_next_change_is_the_next(spans: tuple[tuple[bool, int], ...], offset_s: int, now_s: float) -> None:
    here = Presence(spans=spans, offset_s=offset_s)
    change_s = here.next_change_s(now_s)
    if change_s is None:
        return
    assert change_s > now_s
    assert here.is_present(change_s) is not here.is_present(now_s)
    for share in (0.25, 0.5, 0.75, 1.0):
        # A hair before the change: with the offset added, a float has no room for less.
        before_s = max(now_s, min(now_s + share * (change_s - now_s), change_s - 1e-3))
        assert here.is_present(before_s) is here.is_present(now_s)


def test_share_of_time_there_is_that_of_the_spans() -> None:
    here = Presence(spans=((True, 3), (True, 4), (False, 13)), offset_s=6)
    assert sum(here.is_present(at_s) for at_s in range(200)) == 70


def test_a_device_tells_its_presence() -> None:
    assert device().is_present(1e9)
    assert device().next_change_s(0.0) is None
    absent = device(presence=Presence(spans=((False, 10), (True, 5))))
    assert not absent.is_present(3.0)
    assert absent.next_change_s(3.0) == 10.0


# Refusals ---------------------------------------------------------------------------------------------


def test_values_that_mean_nothing_are_refused() -> None:
    with pytest.raises(Misuse, match="at least one span"):
        Presence(spans=())
    with pytest.raises(Misuse, match="a second or longer"):
        Presence(spans=((True, 0),))
    with pytest.raises(Misuse, match="time constant"):
        Heat(rise_c_per_w=1.0, time_constant_s=0.0, limit_c=50.0, ambient_c=20.0, slowdown=2.0)
    with pytest.raises(Misuse, match="times slower"):
        Heat(rise_c_per_w=1.0, time_constant_s=9.0, limit_c=50.0, ambient_c=20.0, slowdown=0.5)
    with pytest.raises(Misuse, match="must be 0 or more"):
        device(jitter=-0.1)
    with pytest.raises(Misuse, match="less than idling"):
        Build(
            kind="board",
            seconds_per_gmac=1.0,
            seconds_per_batch=0.0,
            jitter=0.0,
            memory_mb=1,
            battery_wh=0.0,
            train_watts=1.0,
            idle_watts=2.0,
            heat=None,
            line=LINE,
        )


def test_where_nothing_is_trained_a_codec_still_has_something_to_send() -> None:
    spec = bare_spec("job", Plan(codec="top10%"), examples=640)
    lease = Train(lease=1, epoch=0, batches=(0,))
    sent = SystemOnly(100, spec.plan).train(spec, np.zeros(100, np.float32), lease).delta
    assert np.count_nonzero(sent) > 90
    assert len(set(np.abs(sent).tolist())) > 90, "of all sizes"
    assert not SystemOnly(100, Plan()).train(spec, np.zeros(100, np.float32), lease).delta.any()
