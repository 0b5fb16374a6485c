"""Placement: about the least, the first of equals, and never the worse for having more."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from shoal.scheduling.placement import Candidate, best_placed, is_worth_moving, leading_s_per_byte, spare_cpu

LOADS = st.floats(-10, 1000)
LINKS = st.just(0.0) | st.floats(1.0, 1e12)
CANDIDATES = st.builds(
    Candidate,
    node=st.sampled_from("abcdefgh"),
    cpus=st.integers(0, 256),
    load=LOADS,
    link_bytes_per_s=LINKS,
)
WORKERS = st.integers(0, 100_000)


@given(st.lists(CANDIDATES, min_size=1, max_size=8), WORKERS)
def test_the_one_who_is_taken_is_about_as_good_as_any(candidates: list[Candidate], workers: int) -> None:
    best = best_placed(candidates, workers=workers)
    assert best in candidates
    assert best is not None
    costs = [leading_s_per_byte(candidate, workers=workers) for candidate in candidates]
    assert leading_s_per_byte(best, workers=workers) <= 1.25 * min(costs)
    before = candidates[: candidates.index(best)]
    assert all(leading_s_per_byte(other, workers=workers) > 1.25 * min(costs) for other in before), "the first of these"


@given(CANDIDATES, st.integers(1, 8), WORKERS)
def test_of_equals_the_first_is_taken(candidate: Candidate, count: int, workers: int) -> None:
    same = [replace(candidate, node=f"n{number}") for number in range(count)]
    assert best_placed(same, workers=workers) == same[0]


@given(CANDIDATES, LOADS, st.floats(1.0, 1e12), WORKERS)
def test_more_load_or_less_link_is_never_better(candidate: Candidate, load: float, link: float, workers: int) -> None:
    busier = replace(candidate, load=max(load, candidate.load))
    assert spare_cpu(busier) <= spare_cpu(candidate)
    assert leading_s_per_byte(busier, workers=workers) >= leading_s_per_byte(candidate, workers=workers)
    measured = replace(candidate, link_bytes_per_s=link)
    faster = replace(candidate, link_bytes_per_s=2 * link)
    assert leading_s_per_byte(faster, workers=workers) < leading_s_per_byte(measured, workers=workers)
    more = replace(candidate, cpus=candidate.cpus + 1)
    if candidate.load <= 1:
        assert leading_s_per_byte(more, workers=workers) <= leading_s_per_byte(candidate, workers=workers)


@given(CANDIDATES, CANDIDATES, WORKERS, WORKERS)
def test_a_role_never_moves_to_and_fro(one: Candidate, other: Candidate, workers: int, later: int) -> None:
    if is_worth_moving(one, leader=other, workers=workers):
        assert not is_worth_moving(other, leader=one, workers=later), "also when more workers came"


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(0, allow_infinity=False), st.integers(0, 1 << 62))
def test_whatever_a_node_says_of_itself_gives_a_number(load: float, link: float, cpus: int) -> None:
    candidate = Candidate(node="a", cpus=cpus, load=load, link_bytes_per_s=link)
    assert 0.1 <= spare_cpu(candidate) <= 1.0
    assert leading_s_per_byte(candidate, workers=3) > 0
    assert best_placed([candidate], workers=3) == candidate
