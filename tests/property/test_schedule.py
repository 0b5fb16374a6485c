"""Whatever a schedule says: its factor is positive, at most 1, without a jump where phases meet, and ends somewhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shoal.learning.schedule import FLOOR, STEP_FLOOR, Schedule

COUNTS = st.integers(1, 5000)


@st.composite
def texts(draw: st.DrawFn) -> str:
    phases = [f"warmup {draw(COUNTS)}"] if draw(st.booleans()) else []
    phases += [f"constant {draw(COUNTS)}"] if draw(st.booleans()) else []
    fall = draw(st.sampled_from(("", "cosine", "linear", "step")))
    if fall:
        by = f" x{draw(st.floats(0.001, 0.999)):.3f}" if fall == "step" else ""
        phases.append(f"{fall} {draw(COUNTS)}{by}")
    return " ".join(phases)


@given(texts(), st.integers(0, 10**9))
def test_a_factor_is_positive_and_at_most_one(text: str, version: int) -> None:
    assert STEP_FLOOR <= Schedule.parse(text).factor(version) <= 1.0


@given(texts())
def test_phases_meet_at_one(text: str) -> None:
    schedule = Schedule.parse(text)
    if schedule.warmup:
        assert schedule.factor(schedule.warmup - 1) == 1.0
    for version in (schedule.warmup, schedule.warmup + schedule.level):
        assert schedule.factor(version) == 1.0


@given(texts(), st.integers(0, 20_000))
def test_it_climbs_in_the_warmup_and_never_again(text: str, version: int) -> None:
    schedule = Schedule.parse(text)
    now, after = schedule.factor(version), schedule.factor(version + 1)
    if version + 1 < schedule.warmup:
        assert now < after
    else:
        assert now >= after
    if schedule.fall in ("cosine", "linear"):
        # No further in one version than the steepest part of a cosine.
        assert now - after <= 1.6 / schedule.over + 1e-12


@given(texts())
def test_it_ends_at_the_floor_or_stays(text: str) -> None:
    schedule = Schedule.parse(text)
    last = schedule.factor(schedule.warmup + schedule.level + schedule.over)
    assert schedule.fall not in ("cosine", "linear") or abs(last - FLOOR) < 1e-12
