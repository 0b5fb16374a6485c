"""Which requests are accepted, and what the others are told."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.maui import Maui
from shoal.errors import Misuse
from shoal.scheduling.profile.features import Features
from shoal.scheduling.requests import ENOUGH, WINDOW, Accepted, Budget, Intake, RequestRefused, Rules, WorkRequest
from shoal.scheduling.steering import Steering


def known(per_example: float, unit: str = "s") -> Maui:
    """A profiler that has seen what an example takes."""
    profiler = Maui(unit=unit)
    profiler.observed(Features(device="seen"), 100, 100 * per_example)
    return profiler


def intake(*, per_s: float = 1e6, **rules: float) -> Intake:
    """Up to 100 examples by time, up to 400 by energy; no crowd unless the test makes one."""
    budgets = {
        "time": Budget(profiler=known(0.01), budget=1.0),
        "energy": Budget(profiler=known(0.1, "J"), budget=40.0),
    }
    return Intake(budgets, steering=Steering(per_s=per_s), rules=Rules(**rules))


def request(device: str = "a", *, held: int = 10_000, **more: Any) -> WorkRequest:
    return WorkRequest(features=Features(device=device), examples_held=held, **more)


def ask(door: Intake, *, now_s: float = 0.0, draw: float = 0.5, **more: Any) -> Accepted | RequestRefused:
    return door.decide(request(**more), now_s=now_s, draw=draw)


def test_the_smallest_budget_holds_and_is_named() -> None:
    answer = ask(intake())
    assert answer == Accepted(
        examples=100, reason="time: 0.01 s per example (warm: one slope for all devices, of 1 tasks)"
    )


def test_a_device_may_have_a_budget_of_its_own_or_none() -> None:
    own = ask(intake(), budgets={"energy": 2.0})
    assert isinstance(own, Accepted)
    assert (own.examples, own.reason.partition(":")[0]) == (20, "energy")
    without = ask(intake(), budgets={"energy": None})
    assert isinstance(without, Accepted)
    assert (without.examples, without.reason.partition(":")[0]) == (100, "time")


def test_where_no_budget_applies_a_task_has_the_usual_size() -> None:
    door = Intake({"energy": Budget(profiler=known(0.1, "J"), budget=None)}, steering=Steering(per_s=1e6), unsized=64)
    assert ask(door) == Accepted(examples=64, reason="no budget applies to it")
    assert ask(door, held=30) == Accepted(examples=30, reason="no budget applies to it")
    assert ask(door, budgets={"energy": 1.0}, device="b").examples == 10  # type: ignore[union-attr]


def test_a_device_with_less_trains_all_it_has() -> None:
    assert ask(intake(), held=30) == Accepted(examples=30, reason="all it has; time would allow 100")


def test_a_device_with_nothing_is_sent_away() -> None:
    answer = ask(intake(), held=0)
    assert isinstance(answer, RequestRefused)
    assert answer.reason == "it has no examples"


def test_what_a_task_took_is_learned_for_each_budget() -> None:
    door = intake()
    for _ in range(50):
        door.done(Features(device="a"), 100, {"energy": 100.0})
    answer = ask(door)
    assert isinstance(answer, Accepted)
    # 1 J an example by now: 40 of them.
    assert answer.examples == pytest.approx(40, abs=1)
    assert answer.reason.startswith("energy:")
    with pytest.raises(Misuse, match="the budgets are time, energy"):
        door.done(Features(device="a"), 100, {"money": 1.0})


def test_the_smallest_tasks_are_refused_once_there_are_enough_to_compare() -> None:
    door = intake(size_percentile=35.0)
    sizes = [10 * (1 + turn % 10) for turn in range(200)]
    answers = [ask(door, held=size, device=str(turn)) for turn, size in enumerate(sizes)]
    assert all(isinstance(answer, Accepted) for answer in answers[:ENOUGH])
    late = list(zip(sizes, answers, strict=True))[100:]
    # Of 10 to 100, each as often, 30 % are below 40 and 40 % below 50.
    assert {size for size, answer in late if isinstance(answer, RequestRefused)} == {10, 20, 30}
    refused = next(answer for _, answer in late if isinstance(answer, RequestRefused))
    assert refused.reason == "10 examples: 35 % of requests are below 40"
    assert refused.retry_after_s > 0


def test_the_most_similar_are_refused_and_who_does_not_tell_is_not() -> None:
    door = intake(similarity_percentile=20.0)
    for turn in range(100):
        ask(door, device=str(turn), similarity=(turn % 10) / 10)
    refused = [similarity for similarity in (0.0, 0.5, 0.7, 0.8, 0.9) if is_refused(door, similarity=similarity)]
    assert refused == [0.8, 0.9]
    assert not is_refused(door, similarity=None)


def test_where_all_are_alike_all_are_accepted() -> None:
    door = intake(size_percentile=50.0, similarity_percentile=50.0, utility_percentile=50.0)
    assert not any(is_refused(door, similarity=0.7, utility=3.0) for _ in range(100))


def test_thresholds_do_not_rise_by_what_they_refuse() -> None:
    """Were only accepted sizes remembered, the threshold would climb until next to nothing passes."""
    door = intake(size_percentile=40.0)
    refused = [is_refused(door, held=1 + (turn * 37) % 100) for turn in range(2000)]
    assert sum(refused[-500:]) / 500 == pytest.approx(0.4, abs=0.03)


def test_the_least_useful_are_refused_but_for_a_few() -> None:
    door = intake(utility_percentile=50.0, explore=0.1)
    for turn in range(100):
        ask(door, device=str(turn), utility=float(turn % 10))
    assert is_refused(door, utility=1.0, draw=0.5)
    assert not is_refused(door, utility=1.0, draw=0.05), "explored"
    assert not is_refused(door, utility=9.0, draw=0.5)
    assert not is_refused(door, utility=None, draw=0.5), "it never trained, so nobody knows"


def is_refused(door: Intake, *, draw: float = 0.5, **more: Any) -> bool:
    return isinstance(ask(door, draw=draw, **more), RequestRefused)


def test_a_crowd_is_told_to_come_back_one_by_one() -> None:
    door = intake(per_s=2.0)
    answers = [ask(door, device=str(number), now_s=10.0, draw=0.0) for number in range(8)]
    assert [isinstance(answer, Accepted) for answer in answers] == [True, True] + [False] * 6
    refused = [answer for answer in answers if isinstance(answer, RequestRefused)]
    assert [answer.retry_after_s for answer in refused] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert refused[0].reason == "more devices ask than the pace allows"
    # Who keeps its appointment is served.
    assert isinstance(ask(door, device="7", now_s=10.0 + refused[-1].retry_after_s), Accepted)


def test_who_is_lent_work_has_a_place_when_it_is_done_and_who_is_refused_has_none() -> None:
    door = intake(per_s=1.0)
    assert isinstance(ask(door, device="a", now_s=0.0), Accepted)
    for number in range(40):
        ask(door, device=str(number), now_s=0.0, held=0)
    assert isinstance(ask(door, device="a", now_s=30.0), Accepted)
    assert not is_refused(door, device="0", now_s=1.5), "it has an appointment"
    assert is_refused(door, device="0", now_s=1.6, held=0)


def test_done_with_a_task_it_asks_again_in_its_turn() -> None:
    door = intake(per_s=1.0)
    first, second = (door._steering.appoint(name, now_s=0.0, draw=0.0) for name in "ab")
    assert second == first + 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"size_percentile": 100.0},
        {"size_percentile": -1.0},
        {"explore": 2.0},
        {"utility_percentile": math.nan},
    ],
)
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(Misuse, match="percentiles"):
        Rules(**wrong)


@pytest.mark.parametrize("wrong", [{"similarity": 1.5}, {"similarity": math.nan}, {"utility": -1.0}, {"held": -1}])
def test_requests_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        request(**wrong)


def test_it_needs_a_budget() -> None:
    with pytest.raises(Misuse, match="at least one budget"):
        Intake({}, steering=Steering(per_s=1.0))


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdef"), st.integers(0, 500), st.none() | st.floats(0, 1), st.none() | st.floats(0, 100)
        ),
        max_size=80,
    ),
    st.tuples(st.floats(0, 99), st.floats(0, 99), st.floats(0, 99)),
    st.floats(0.1, 20),
)
@settings(max_examples=60)
def test_every_answer_is_a_task_that_fits_or_a_time_to_return(
    asked: list[tuple[str, int, float | None, float | None]], percentiles: tuple[float, float, float], per_s: float
) -> None:
    size, similar, useful = percentiles
    door = intake(per_s=per_s, size_percentile=size, similarity_percentile=similar, utility_percentile=useful)
    for turn, (device, held, similarity, utility) in enumerate(asked):
        answer = ask(
            door,
            now_s=turn / 7,
            draw=(turn * 0.37) % 1,
            device=device,
            held=held,
            similarity=similarity,
            utility=utility,
        )
        assert answer.reason
        if isinstance(answer, Accepted):
            assert 1 <= answer.examples <= min(held, 100)
        else:
            assert 0 <= answer.retry_after_s <= 24 * 3600


def test_what_is_remembered_is_bounded() -> None:
    assert ENOUGH < WINDOW
