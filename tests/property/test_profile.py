"""Whatever devices say and tasks take: sizes are sane, the margin keeps its promise, and the order of merit holds."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.iprof import IProf
from benchmarks.maui import Maui
from benchmarks.slo_loop import Task, contenders, drawn_contest, score
from shoal.errors import Misuse
from shoal.scheduling.profile.conformal import Q_LEAST, Q_MOST, STEP, WITHIN, Margin, WithMargin
from shoal.scheduling.profile.features import LIMITS, Features
from shoal.scheduling.profile.kalman import KalmanState, Tuning, updated, variance_of
from shoal.scheduling.profile.logrls import LogRls
from shoal.scheduling.profile.sizing import EXAMPLES_MAX, Profiler
from shoal.sim.rng import Rng
from shoal.wire import tensors as tensor_files

MAKERS = (
    LogRls,
    Maui,
    IProf,
    lambda: IProf(as_published=True),
    lambda: WithMargin(LogRls()),
    lambda: WithMargin(IProf()),
)


@st.composite
def told(draw: st.DrawFn) -> Features:
    values = {name: draw(st.none() | st.floats(least, most)) for name, (least, most) in LIMITS.items()}
    return Features(
        device=draw(st.sampled_from(("a", "b", "c", "d"))), kind=draw(st.sampled_from(("", "pi", "phone"))), **values
    )


tasks = st.lists(st.tuples(told(), st.integers(1, 10**6), st.floats(1e-6, 1e6)), max_size=30)


@given(which=st.sampled_from(range(len(MAKERS))), history=tasks, asking=told(), budget=st.floats(1e-6, 1e6))
@settings(max_examples=150)
def test_every_size_is_a_number_of_examples_with_a_reason(
    which: int, history: list[tuple[Features, int, float]], asking: Features, budget: float
) -> None:
    profiler: Profiler = MAKERS[which]()
    for features, examples, spent in history:
        profiler.observed(features, examples, spent)
    sizing = profiler.decide(asking, budget)
    assert 1 <= sizing.examples <= EXAMPLES_MAX
    assert sizing.reason


def through_a_file(learned: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As a checkpoint keeps it, which has no number that is none."""
    assert all(np.isfinite(array).all() for array in learned.values())
    file = io.BytesIO()
    tensor_files.write(file, learned, {})
    return dict(tensor_files.read(file.getvalue())[0])


@given(
    history=tasks, later=tasks, asking=st.lists(told(), max_size=5), budget=st.floats(1e-6, 1e6), energy=st.booleans()
)
@settings(max_examples=100)
def test_who_goes_on_from_a_snapshot_sizes_as_if_nothing_had_happened(
    history: list[tuple[Features, int, float]],
    later: list[tuple[Features, int, float]],
    asking: list[Features],
    budget: float,
    energy: bool,
) -> None:
    one, other = (WithMargin(LogRls(energy=energy)) for _ in range(2))
    for features, examples, spent in history:
        one.decide(features, budget)
        one.observed(features, examples, spent)
    other.restore(through_a_file(one.snapshot()))
    for features, examples, spent in later:
        assert other.decide(features, budget) == one.decide(features, budget)
        one.observed(features, examples, spent)
        other.observed(features, examples, spent)
    for features in asking:
        assert other.decide(features, budget) == one.decide(features, budget)
    again = other.snapshot()
    assert all(np.array_equal(array, again[name]) for name, array in one.snapshot().items())


@given(seed=st.integers(0, 10**6), known=st.integers(1, 60), later=st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_one_that_nobody_has_seen_is_sized_the_same_after_a_snapshot(seed: int, known: int, later: int) -> None:
    """That rests on a regression over all, which is fitted anew now and then."""
    chance = Rng(seed).stream("devices", "")
    one, other = WithMargin(LogRls()), WithMargin(LogRls())

    def asks(number: int) -> Features:
        return Features(
            device=f"device-{number}",
            memory_total_mb=chance.between(500, 8000),
            frequency_sum_mhz=chance.between(1000, 20000) if number % 3 else None,
            temperature_c=chance.between(20, 80),
        )

    for number in range(known):
        features = asks(number)
        if chance.happens(0.5):
            one.decide(features, 1.0)
        one.observed(features, 10, chance.between(0.1, 9.0))
    other.restore(through_a_file(one.snapshot()))
    for number in range(known, known + later):
        features = asks(number if chance.happens(0.5) else 0)
        if chance.happens(0.5):
            assert other.decide(features, 1.0) == one.decide(features, 1.0)
        spent = chance.between(0.1, 9.0)
        one.observed(features, 10, spent)
        other.observed(features, 10, spent)
    features = asks(10**6)
    assert other.decide(features, 1.0) == one.decide(features, 1.0)


@given(history=tasks.filter(bool), data=st.data())
@settings(max_examples=150)
def test_a_snapshot_that_is_none_is_refused_and_changes_nothing(
    history: list[tuple[Features, int, float]], data: st.DataObject
) -> None:
    one, other = WithMargin(LogRls()), WithMargin(LogRls())
    for features, examples, spent in history:
        one.observed(features, examples, spent)
    learned = one.snapshot()
    name = data.draw(st.sampled_from(sorted(learned)))
    how = data.draw(st.sampled_from(("gone", "short", "huge", "other")))
    broken = dict(learned)
    match how:
        case "gone":
            del broken[name]
        case "short":
            broken[name] = broken[name][:-1]
        case "huge":
            broken[name] = np.full_like(broken[name], 255 if broken[name].dtype == np.uint8 else 10**9)
        case "other":
            broken[name] = np.zeros((2, 2, 2), np.float16)
    asking = history[0][0]
    try:
        other.restore(broken)
    except Misuse:
        assert other.snapshot() == {}
    sizing = other.decide(asking, 1.0)
    assert 1 <= sizing.examples <= EXAMPLES_MAX


@given(history=tasks, asking=told(), budget=st.floats(1e-6, 1e6), unit=st.floats(1e-3, 1e3))
@settings(max_examples=60)
def test_a_unit_changes_nothing(
    history: list[tuple[Features, int, float]], asking: Features, budget: float, unit: float
) -> None:
    """Seconds or joules, milli or kilo: ours counts in shares, so that the sizes are the same."""
    plain, scaled = WithMargin(LogRls()), WithMargin(LogRls())
    for features, examples, spent in history:
        plain.observed(features, examples, spent)
        scaled.observed(features, examples, spent * unit)
    assert scaled.decide(asking, budget * unit).examples == pytest.approx(
        plain.decide(asking, budget).examples, rel=1e-3, abs=1
    )


@given(history=tasks, budget=st.floats(1e-3, 1e3), asking=told())
@settings(max_examples=100)
def test_with_the_floor_iprof_never_asks_for_more_than_twice_what_the_quickest_did(
    history: list[tuple[Features, int, float]], budget: float, asking: Features
) -> None:
    profiler = IProf()
    for features, examples, spent in history:
        profiler.observed(features, examples, spent)
    if history:
        least = min(spent / examples for _, examples, spent in history)
        assert profiler.decide(asking, budget).examples <= max(1, 2 * budget / least * 1.0001)


@given(overs=st.lists(st.booleans(), max_size=400), within=st.sampled_from((0.8, 0.9)))
def test_the_margin_is_the_sum_of_what_it_saw(overs: list[bool], within: float) -> None:
    """Gibbs and Candès: q moves by step · (over - α), so the share of overs is α + (q_end - q_begin) / (step · T)."""
    margin = Margin(within=within, step=0.02)
    begun, reached = margin.q, [margin.q]
    for is_over in overs:
        margin.observed(is_over=is_over)
        reached.append(margin.q)
    assert min(reached) >= Q_LEAST
    assert max(reached) <= Q_MOST
    if overs and min(reached) > Q_LEAST and max(reached) < Q_MOST:
        share = sum(overs) / len(overs)
        assert share == pytest.approx(1 - within + (margin.q - begun) / (0.02 * len(overs)))


@given(st.data())
@settings(max_examples=20)
def test_a_chosen_share_stays_within_budget_whatever_the_noise(data: st.DataObject) -> None:
    """Tasks take what no model foretold, a third more or a quarter less, in any pattern that repeats."""
    pattern = data.draw(st.lists(st.floats(0.75, 1.33), min_size=1, max_size=7))
    within = data.draw(st.sampled_from((0.7, 0.8, 0.9)))
    profiler = WithMargin(LogRls(), within=within)
    features, over, count = Features(device="a"), 0, 1000
    begun = profiler.margin.q
    for turn in range(count):
        examples = profiler.decide(features, 1000.0).examples
        spent = examples * pattern[turn % len(pattern)]
        over += spent > 1000.0
        profiler.observed(features, examples, spent)
    # The share is α and the way that q went; that is bounded, so that the rest vanishes with time.
    gone = (profiler.margin.q - begun) / (STEP * count)
    assert over / count <= 1 - within + gone + 2 / count
    assert abs(gone) < 0.1


@given(
    st.lists(st.tuples(st.floats(-4, 8), st.floats(-20, 20)), min_size=1, max_size=60),
    st.floats(0.01, 1.0),
)
def test_doubt_stays_positive_and_k_in_its_limits(seen: list[tuple[float, float]], noise: float) -> None:
    tuning = Tuning(noise=noise)
    state = KalmanState(offset=0.0, k=0.1, offset_var=0.25, k_var=0.04)
    for warmth, measured in seen:
        state = updated(state, warmth, measured, tuning=tuning)
        assert state.offset_var > 0
        assert state.k_var > 0
        assert state.covar**2 <= state.offset_var * state.k_var * (1 + 1e-6) + 1e-12
        assert tuning.k_least <= state.k <= tuning.k_most
        assert variance_of(state, warmth, noise=noise) > 0
        assert math.isfinite(state.offset)


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[Task]]:
    """Ten seeds of 20 devices with 14 requests: the same conditions for all."""
    done: dict[str, list[Task]] = {}
    for seed in range(10):
        profilers = {**contenders(within=WITHIN), "published": IProf(as_published=True)}
        for name, each in drawn_contest(seed, profilers).items():
            done.setdefault(name, []).extend(each)
    return done


def test_log_rls_is_better_than_iprof_is_better_than_maui(drawn: dict[str, list[Task]]) -> None:
    scores = {name: score(tasks) for name, tasks in drawn.items()}
    assert scores["plain"].p90 < 0.9 * scores["iprof"].p90 < 0.3 * scores["maui"].p90
    assert scores["plain"].p90_late < 0.9 * scores["iprof"].p90_late
    assert scores["ours"].p90_late < scores["iprof"].p90_late, "with its margin too, though half as often over"


def test_ours_keeps_to_the_budget_from_the_first_request_on(drawn: dict[str, list[Task]]) -> None:
    ours, iprof, published = (score(drawn[name]) for name in ("ours", "iprof", "published"))
    assert ours.overshoot <= 0.2 < 0.4 < iprof.overshoot
    assert ours.worst_first <= 2.0 < iprof.worst_first
    assert published.worst_first > 2 * iprof.worst_first, "the fault that the floor mends"
