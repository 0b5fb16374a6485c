"""A drawn cohort: the same everywhere, uniform or in proportion, and without regard to who else is here."""

from __future__ import annotations

from collections import Counter

import pytest

from shoal.scheduling.sampling import drawn

pytestmark = pytest.mark.timeout(60)

_NODES = [f"device-{number}" for number in range(40)]


def _equal(node: str) -> float:
    return 1.0


def test_a_draw_depends_on_the_seed_and_the_version_and_not_on_the_order() -> None:
    first = drawn(_NODES, 5, seed=1, version=7, share_of=_equal)
    assert len(set(first)) == 5
    assert drawn(reversed(_NODES), 5, seed=1, version=7, share_of=_equal) == first
    assert drawn(_NODES, 5, seed=1, version=8, share_of=_equal) != first
    assert drawn(_NODES, 5, seed=2, version=7, share_of=_equal) != first


def test_the_draw_is_the_same_in_every_release() -> None:
    assert drawn(_NODES, 3, seed=0, version=0, share_of=_equal) == ["device-33", "device-20", "device-5"]


def test_a_device_that_goes_changes_no_other_place() -> None:
    first = drawn(_NODES, 10, seed=3, version=0, share_of=_equal)
    others = [node for node in _NODES if node != first[4]]
    assert drawn(others, 9, seed=3, version=0, share_of=_equal) == [node for node in first if node != first[4]]


def test_each_device_is_drawn_equally_often() -> None:
    cohorts = (drawn(_NODES, 4, seed=5, version=version, share_of=_equal) for version in range(4000))
    times = Counter(node for cohort in cohorts for node in cohort)
    # 400 on average; the standard deviation is 19.
    assert set(times) == set(_NODES)
    assert all(abs(count - 400) < 95 for count in times.values())


def test_a_device_with_three_times_the_examples_is_drawn_first_three_times_as_often() -> None:
    shares = {"many": 3.0, "few": 1.0}
    first = Counter(
        drawn(shares, 1, seed=9, version=version, share_of=shares.__getitem__)[0] for version in range(4000)
    )
    assert abs(first["many"] - 3000) < 140


def test_a_device_without_examples_is_drawn_last() -> None:
    shares = {"none": 0.0, "few": 1.0, "many": 9.0}
    for version in range(50):
        assert drawn(shares, 3, seed=9, version=version, share_of=shares.__getitem__)[-1] == "none"
