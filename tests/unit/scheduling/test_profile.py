"""Profilers on small numbers that can be worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.scheduling.profile.conformal import WithMargin
from shoal.scheduling.profile.features import Features, unknown
from shoal.scheduling.profile.kalman import KalmanState, Tuning, updated
from shoal.scheduling.profile.logrls import LogRls
from shoal.scheduling.profile.regression import ROWS_KEPT, FleetRegression, fit
from shoal.scheduling.profile.sizing import EXAMPLES_MAX, FIRST_EXAMPLES, Profiler, examples_within


def device(name: str = "a", *, kind: str = "", mhz: float | None = None, celsius: float | None = None) -> Features:
    return Features(device=name, kind=kind, frequency_sum_mhz=mhz, temperature_c=celsius)


# Features ------------------------------------------------------------------------------------------------


def test_what_is_not_known_is_said() -> None:
    assert unknown(device(mhz=1000.0), ("frequency_sum_mhz", "temperature_c", "load")) == "temperature, load unknown"
    assert unknown(device(mhz=1000.0), ("frequency_sum_mhz",)) == ""


@pytest.mark.parametrize("celsius", [math.nan, math.inf, -300.0, 65_535.0])
def test_a_sensor_that_lies_is_refused(celsius: float) -> None:
    with pytest.raises(Misuse, match="temperature_c"):
        device(celsius=celsius)


def test_a_device_has_a_name() -> None:
    with pytest.raises(Misuse, match="name"):
        device("")


# Sizes ---------------------------------------------------------------------------------------------------


def test_eq_1_of_fleet() -> None:
    assert examples_within(3.0, 0.01) == 300
    assert examples_within(3.0, 10.0) == 1
    # The faults: a slope of nothing asks for everything, one below nothing for one.
    assert examples_within(3.0, 0.0) == examples_within(3.0, 1e-300) == EXAMPLES_MAX
    assert examples_within(3.0, -0.01) == 1


@pytest.mark.parametrize("profiler", [LogRls(), WithMargin(LogRls())])
def test_before_anything_is_known_a_task_is_small(profiler: Profiler) -> None:
    sizing = profiler.decide(device(), 3.0)
    assert sizing.examples == FIRST_EXAMPLES
    assert "no device was measured" in sizing.reason
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(Misuse, match="budget"):
            profiler.decide(device(), bad)
        with pytest.raises(Misuse, match="took"):
            profiler.observed(device(), 10, bad)
    with pytest.raises(Misuse, match="took"):
        profiler.observed(device(), 0, 1.0)


# Ours ----------------------------------------------------------------------------------------------------


def test_the_filter_halves_the_way_where_it_is_as_unsure_as_the_measurement() -> None:
    still = Tuning(offset_drift=0.0, k_drift=0.0, noise=0.3)
    state = updated(KalmanState(offset=1.0, k=0.0, offset_var=0.09, k_var=0.04), 0.0, 1.2, tuning=still)
    assert state.offset == pytest.approx(1.1)
    assert state.offset_var == pytest.approx(0.045)
    assert (state.k, state.k_var, state.tasks) == (0.0, 0.04, 1), "a task at 30 degrees says nothing of warmth"


def test_what_warmth_does_is_learned_from_warm_tasks() -> None:
    state = KalmanState(offset=0.0, k=0.0, offset_var=1e-6, k_var=0.04)
    for _ in range(20):
        state = updated(state, 1.0, 0.3, tuning=Tuning(offset_drift=0.0))
    assert state.k == pytest.approx(0.3, abs=0.02)


def test_a_jump_is_followed_at_once() -> None:
    known = KalmanState(offset=0.0, k=0.0, offset_var=0.0004, k_var=0.0001)
    tuning = Tuning(noise=0.07)
    small = updated(known, 0.0, 0.1, tuning=tuning).offset / 0.1
    large = updated(known, 0.0, 0.7, tuning=tuning).offset / 0.7
    assert small < 0.3
    assert large > 0.9


def test_a_device_is_known_by_its_own_tasks_then_its_kind_then_all_others() -> None:
    ours = LogRls()
    for _ in range(6):
        ours.observed(device("a", kind="pi"), 100, 2.0)
        ours.observed(device("b", kind="phone"), 100, 1.0)
    own = ours.decide(device("a", kind="pi"), 10.0)
    assert own.examples == pytest.approx(500, rel=0.01)
    assert "warm: 6 tasks of its own; memory, frequency, temperature unknown" in own.reason
    alike = ours.predict(device("new", kind="pi"))
    other = ours.predict(device("other", kind="laptop"))
    assert alike is not None
    assert other is not None
    assert alike.is_cold
    assert other.is_cold
    assert alike.per_example == pytest.approx(0.02, rel=0.01)
    assert alike.basis.startswith("another pi")
    # Between the two; and surely not known.
    assert 0.01 <= other.per_example <= 0.02
    assert other.spread > 3 * alike.spread


def test_a_first_task_is_never_more_than_the_quickest_device_could_do() -> None:
    ours = LogRls()
    for name, mhz in (("a", 2000.0), ("b", 4000.0), ("c", 8000.0), ("d", 3000.0), ("e", 6000.0)):
        for _ in range(4):
            ours.observed(device(name, mhz=mhz), 100, 2000.0 / mhz)
    # By the regression one of 64 GHz takes an eighth of what c takes; but nobody saw such a device.
    prediction = ours.predict(device("new", mhz=64_000.0))
    assert prediction is not None
    assert prediction.per_example == pytest.approx(2000.0 / 8000.0 / 100)


def test_devices_that_are_all_alike_say_little_about_one_that_is_not() -> None:
    ours = LogRls()
    ours.observed(device("a", mhz=4_079_742.0), 1, 2.0)
    ours.observed(device("a", mhz=4_132_845.0), 1, 1.0)
    prediction = ours.predict(device("b", mhz=1.0))
    assert prediction is not None
    assert prediction.per_example == pytest.approx(16.0), "eight times the slowest, not e^700"


@pytest.mark.parametrize("spent", [5e-324, 1e-300, 1e300])
def test_a_cost_that_no_task_has_is_learned_as_the_nearest_that_one_may_have(spent: float) -> None:
    ours = LogRls()
    for _ in range(3):
        ours.observed(Features(device="liar", kind="pi"), 4096, spent)
    assert ours.decide(Features(device="liar", kind="pi"), 1.0).examples >= 1
    # The next leader can read what was learned.
    LogRls().restore(ours.snapshot())


def test_the_margin_is_in_the_reason_and_widens_with_doubt() -> None:
    profiler = WithMargin(LogRls(), within=0.9)
    for _ in range(8):
        profiler.observed(device("a"), 100, 1.0)
        profiler.observed(device("b"), 100, 1.0)
    warm, cold = profiler.decide(device("a"), 10.0), profiler.decide(device("new"), 10.0)
    assert cold.examples < warm.examples < 1000
    assert "% margin (warm: 8 tasks" in warm.reason
    assert "% margin (cold: regression over 2 devices" in cold.reason
    with pytest.raises(Misuse, match="within"):
        WithMargin(LogRls(), within=1.0)


def test_first_tasks_have_a_margin_of_their_own() -> None:
    profiler = WithMargin(LogRls(), within=0.7)
    for _ in range(8):
        profiler.observed(device("a"), 100, 1.0)
    # 52 % of a normal deviation keeps 70 % within, 128 % keeps 90 %.
    assert (profiler.margin.q, profiler.cold_margin.q) == (
        pytest.approx(0.524, abs=1e-3),
        pytest.approx(1.282, abs=1e-3),
    )
    examples = profiler.decide(device("a"), 10.0).examples
    profiler.observed(device("a"), examples, 30.0)
    assert profiler.margin.q == pytest.approx(0.524 + 0.1 * 0.7, abs=1e-3), "it was over"
    assert profiler.cold_margin.q == pytest.approx(1.282, abs=1e-3)
    examples = profiler.decide(device("new"), 10.0).examples
    profiler.observed(device("new"), examples, 0.1)
    assert profiler.cold_margin.q == pytest.approx(1.282 - 0.1 * 0.1, abs=1e-3), "it was not"
    assert profiler.margin.q == pytest.approx(0.524 + 0.1 * 0.7, abs=1e-3)


def test_a_busy_device_does_not_outvote_the_others() -> None:
    ours = LogRls()
    for _ in range(100):
        ours.observed(device("busy"), 100, 1.0)
    for _ in range(4):
        ours.observed(device("quiet"), 100, 4.0)
    prediction = ours.predict(device("new"))
    assert prediction is not None
    # The geometric mean of 0.01 and 0.04.
    assert prediction.per_example == pytest.approx(0.02)


def test_warmth_counts_once_in_a_first_prediction() -> None:
    ours = LogRls()
    for place, celsius in enumerate((30.0, 36.0, 42.0, 48.0, 33.0, 45.0) * 3):
        ours.observed(device(str(place), celsius=celsius), 100, math.exp(0.3 * (celsius - 30) / 15))
    for celsius in (30.0, 45.0):
        prediction = ours.predict(device("new", celsius=celsius))
        assert prediction is not None
        assert prediction.per_example == pytest.approx(0.01 * math.exp(0.3 * (celsius - 30) / 15), rel=0.01)


# Regression ----------------------------------------------------------------------------------------------


def test_a_plane_is_found_and_gaps_count_as_the_mean() -> None:
    rows = [(1.0, 5.0), (2.0, 5.0), (3.0, 5.0), (4.0, 5.0), (math.nan, 5.0)]
    fitted = fit(rows, [3.0, 5.0, 7.0, 9.0, 6.0], list("abcde"), ridge=0.0)
    assert fitted.slopes == pytest.approx((2.0, 0.0)), "what never varies has no slope"
    assert fitted.at((10.0, 5.0)) == pytest.approx(21.0)
    assert fitted.at((math.nan, 7.0)) == pytest.approx(6.0)
    assert fitted.spread == pytest.approx(0.0, abs=1e-9)


def test_far_from_all_that_was_fitted_it_is_less_sure() -> None:
    chance = np.random.default_rng(0)
    rows = [(float(x),) for x in np.linspace(0, 1, 12)]
    fitted = fit(rows, [row[0] + 0.1 * chance.normal() for row in rows], [str(i) for i in range(12)], ridge=0.0)
    assert 0.05 < fitted.spread_at((0.5,)) < 0.2
    assert fitted.spread_at((5.0,)) > 3 * fitted.spread_at((0.5,))


def test_a_fleet_keeps_the_newest_rows_of_each_and_not_too_many() -> None:
    fleet = FleetRegression(ridge=0.0, refit_every=1, rows_each=2)
    for target in (9.0, 1.0, 3.0):
        fleet.add((0.0,), target, "a")
    assert fleet.fitted is not None
    assert fleet.fitted.intercept == 2.0
    busy = FleetRegression(ridge=0.0, refit_every=1)
    busy.add((0.0,), 1e9, "gone")
    for _ in range(ROWS_KEPT):
        busy.add((0.0,), 1.0, "a")
    assert busy.fitted is not None
    assert (busy.fitted.intercept, busy.fitted.devices) == (1.0, 1)
