"""AdaComp's staleness for each place: figures worked out by hand, and memory that does not grow."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import Misuse
from shoal.learning.parameter_staleness import ParameterStaleness, scale_of


def places(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_a_place_counts_the_versions_that_moved_it() -> None:
    touches = ParameterStaleness(4, version=10)
    touches.note(places(0, 1))
    touches.note(places(1))
    touches.note(None)
    assert touches.version == 13
    assert touches.since(10, None).tolist() == [2, 3, 1, 1]
    assert touches.since(11, places(1, 3)).tolist() == [2, 1]
    assert touches.since(13, None).tolist() == [0, 0, 0, 0]


def test_one_move_since_costs_nothing_and_more_divide() -> None:
    # AdaComp, equation 5: α where σ = 0, else α/σ.
    np.testing.assert_array_equal(scale_of(np.array([0, 1, 2, 4])), np.array([1, 1, 0.5, 0.25], dtype=np.float32))
    assert scale_of(np.array([3])).dtype == np.float32


def test_long_gone_places_are_counted_as_if_they_had_moved_evenly() -> None:
    # Place 0 moves in every version, place 1 in every second one, place 2 never.
    touches = ParameterStaleness(3, exact_versions=8, apart_versions=4)
    for version in range(200):
        touches.note(places(0, 1) if version % 2 else places(0))
    assert touches.exact_from == 192
    for since in range(0, 200, 7):
        counted = touches.since(since, None)
        assert counted[0] == 200 - since
        assert abs(counted[1] - (200 - since) / 2) <= 1
        assert counted[2] == 0


@pytest.mark.parametrize("share", [0.01, 0.1, None])
def test_memory_does_not_grow_in_100_000_versions(share: float | None) -> None:
    size = 300
    touches = ParameterStaleness(size)
    chance = np.random.default_rng(0)
    drawn = [np.sort(chance.permutation(size)[: int((share or 1) * size)]) for _ in range(97)]
    held = []
    for version in range(100_000):
        touches.note(None if share is None else drawn[version % 97])
        if version % 10_000 == 9_999:
            held.append(touches.nbytes)
    assert max(held) <= touches.bytes_max
    assert touches.bytes_max <= 152 * size
    # From where the oldest snapshots are as old as they get: 32,768 versions.
    assert max(held[4:]) - min(held[4:]) <= 4 * 4 * size
    assert touches.since(0, None).max() <= 100_000


def test_moves_of_everything_copy_nothing() -> None:
    touches = ParameterStaleness(1000)
    before = touches.nbytes
    for _ in range(2000):
        touches.note(None)
    assert touches.nbytes == before
    assert set(touches.since(3, None).tolist()) == {1997}


@pytest.mark.parametrize("wrong", [places(2, 1), places(1, 1), places(-1), places(0, 4), np.array([0.5])])
def test_places_are_checked(wrong: np.ndarray) -> None:
    with pytest.raises(Misuse, match="places"):
        ParameterStaleness(4).note(wrong)


def test_versions_are_checked() -> None:
    with pytest.raises(Misuse, match="the newest is 0"):
        ParameterStaleness(4).since(1, None)
    with pytest.raises(Misuse, match="places 4 to 4 of 4"):
        ParameterStaleness(4).since(0, places(4))
    for wrong in ({"size": 0}, {"size": 1, "version": -1}, {"size": 1, "apart_versions": 0}):
        with pytest.raises(Misuse):
            ParameterStaleness(**wrong)
    with pytest.raises(Misuse):
        ParameterStaleness(1, entries_per_place=0)
