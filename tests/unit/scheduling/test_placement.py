"""Who should lead a job: seconds a byte, and when a difference is one."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.scheduling.placement import Candidate, best_placed, is_worth_moving, leading_s_per_byte, spare_cpu


def candidate(node: str = "a", **how: Any) -> Candidate:
    return Candidate(**{"node": node, "cpus": 4, "load": 0.0, **how})


@pytest.mark.parametrize(
    ("cpus", "load", "spare"),
    [
        (4, 0.0, 1.0),  # four idle ones: merging uses one
        (4, 0.75, 1.0),
        (4, 0.9, 0.4),
        (1, 0.4, 0.6),
        (1, 1.0, 0.1),  # a busy one still gives some of its time
        (4, 7.0, 0.1),
        (0, 0.0, 0.1),  # it did not say
        (1, -3.0, 1.0),
    ],
)
def test_spare_processor_is_a_share_of_one(cpus: int, load: float, spare: float) -> None:
    assert spare_cpu(candidate(cpus=cpus, load=load)) == pytest.approx(spare)


def test_a_round_is_a_model_out_and_an_update_in_for_each_worker() -> None:
    # 2 / 100 MB/s + 1.5 ns a byte.
    fast = candidate(link_bytes_per_s=100e6)
    assert leading_s_per_byte(fast, workers=1) == pytest.approx(21.5e-9)
    assert leading_s_per_byte(fast, workers=10) == pytest.approx(215e-9)
    assert leading_s_per_byte(fast, workers=0) == leading_s_per_byte(fast, workers=1)
    # A tenth of a processor: merging takes ten times as long.
    busy = candidate(load=1.0, link_bytes_per_s=100e6)
    assert leading_s_per_byte(busy, workers=1) == pytest.approx(35e-9)


def test_a_link_that_nobody_measured_is_taken_for_ethernet() -> None:
    assert leading_s_per_byte(candidate(), workers=3) == leading_s_per_byte(
        candidate(link_bytes_per_s=12.5e6), workers=3
    )


def test_nobody_is_placed_best_among_none() -> None:
    assert best_placed([], workers=3) is None


def test_the_one_with_the_better_link_or_the_idle_processor_is_placed_best() -> None:
    slow, fast = candidate("slow", link_bytes_per_s=1e6), candidate("fast", link_bytes_per_s=5e6)
    assert best_placed([slow, fast], workers=3) == fast
    busy, idle = candidate("busy", load=1.0, link_bytes_per_s=1e9), candidate("idle", link_bytes_per_s=1e9)
    assert best_placed([busy, idle], workers=3) == idle


def test_of_those_who_are_about_equal_the_first_is_taken() -> None:
    first, second = candidate("b", link_bytes_per_s=10e6), candidate("a", link_bytes_per_s=12e6)
    assert best_placed([first, second], workers=3) == first
    assert best_placed([second, first], workers=3) == second
    much = candidate("c", link_bytes_per_s=13e6)
    assert best_placed([first, second, much], workers=3) == second, "the first of those who are near the best"


def test_a_move_must_halve_the_time() -> None:
    leader = candidate("leader", link_bytes_per_s=10e6)
    assert not is_worth_moving(candidate(link_bytes_per_s=19e6), leader=leader, workers=3)
    assert is_worth_moving(candidate(link_bytes_per_s=22e6), leader=leader, workers=3)
    assert not is_worth_moving(leader, leader=leader, workers=3)
