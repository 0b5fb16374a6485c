"""How often each place moved since a version, against a history that forgets nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.learning.parameter_staleness import ParameterStaleness

SIZE = 5

#: What a version moves: some places, or everything.
moves = st.one_of(st.none(), st.sets(st.integers(0, SIZE - 1)))
histories = st.lists(moves, max_size=90)


@st.composite
def kept(draw: st.DrawFn) -> ParameterStaleness:
    """Small enough that lists are dropped and snapshots thin out within a short history."""
    apart = draw(st.integers(1, 4))
    return ParameterStaleness(
        SIZE,
        version=draw(st.integers(0, 3)),
        apart_versions=apart,
        exact_versions=draw(st.integers(apart, 8)),
        entries_per_place=draw(st.integers(1, 4)),
    )


def row(places: set[int]) -> np.ndarray:
    return np.array(sorted(places), dtype=np.int64)


def truth(history: list[set[int] | None], since: int) -> np.ndarray:
    """Of versions counted from 0."""
    counted = np.zeros(SIZE, dtype=np.int64)
    for moved in history[since:]:
        counted[slice(None) if moved is None else row(moved)] += 1
    return counted


@given(kept(), histories)
def test_recent_versions_are_exact_and_older_ones_within_bounds(
    touches: ParameterStaleness, history: list[set[int] | None]
) -> None:
    first = touches.version
    for moved in history:
        touches.note(None if moved is None else row(moved))
        assert touches.nbytes <= touches.bytes_max
    assert touches.version == first + len(history)
    last = np.full(SIZE, np.iinfo(np.int64).max)
    for since in range(len(history) + 1):
        counted, expected = touches.since(first + since, None), truth(history, since)
        if first + since >= touches.exact_from:
            np.testing.assert_array_equal(counted, expected)
        assert (counted >= 0).all()
        assert (counted <= len(history) - since).all()
        # An older version has seen no fewer moves: whoever is later is damped more.
        assert (counted <= last).all()
        last = counted


@given(kept(), histories, st.sets(st.integers(0, SIZE - 1)), st.data())
def test_some_places_are_as_all_of_them(
    touches: ParameterStaleness, history: list[set[int] | None], wanted: set[int], data: st.DataObject
) -> None:
    first = touches.version
    for moved in history:
        touches.note(None if moved is None else row(moved))
    since = data.draw(st.integers(0, first + len(history)))
    np.testing.assert_array_equal(touches.since(since, row(wanted)), touches.since(since, None)[row(wanted)])


@given(st.lists(moves, min_size=40, max_size=90), st.integers(0, 89))
def test_between_two_snapshots_a_count_lies_between_theirs(history: list[set[int] | None], since: int) -> None:
    since = min(since, len(history))
    touches = ParameterStaleness(SIZE, apart_versions=4, exact_versions=8)
    for moved in history:
        touches.note(None if moved is None else row(moved))
    # Snapshots of 8 versions are all there, those older at first 16 versions apart, and the first of all.
    newer = next((at for at in range(since, len(history)) if at % 64 == 0 or len(history) - at <= 8), len(history))
    assert (touches.since(since, None) >= truth(history, newer)).all()
    assert (touches.since(since, None) <= truth(history, 0)).all()


@given(histories, st.integers(1, 5))
def test_what_came_before_the_first_version_moved_everything(history: list[set[int] | None], unknown: int) -> None:
    touches = ParameterStaleness(SIZE, version=unknown)
    for moved in history:
        touches.note(None if moved is None else row(moved))
    np.testing.assert_array_equal(touches.since(0, None), truth(history, 0) + unknown)
