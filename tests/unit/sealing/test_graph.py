from __future__ import annotations

import math

import pytest

from shoal.errors import Misuse
from shoal.sealing.graph import GROUP_MAX, graph_seed, neighbours_of, shape_of


def test_small_groups_are_complete_and_two_majorities_share_more_than_the_liars() -> None:
    for devices in range(6, 33):
        liars = -(-devices // 10)
        shape = shape_of(devices, liars, 0.3)
        assert shape.is_complete
        assert 2 * shape.agreed > devices + liars
    assert shape_of(8, 1, 0.3).threshold == 5


def test_large_groups_have_few_neighbours_and_a_threshold_between_liars_and_losses() -> None:
    # 7 of 64 collude and 19 are lost: 26 devices never cut a ring of 28 neighbours.
    shape = shape_of(64, 7, 0.3)
    assert (shape.neighbours, shape.threshold, shape.agreed) == (28, 8, 36)
    assert shape_of(256, 26, 0.3).neighbours == 104


@pytest.mark.parametrize(("colluding", "lost"), [(0.1, 0.3), (0.0, 0.0), (0.2, 0.3), (0.3, 0.1), (0.05, 0.5)])
def test_every_shape_keeps_the_inequalities_of_the_proof(colluding: float, lost: float) -> None:
    kept = sum(_keeps(devices, math.ceil(round(devices * colluding, 9)), lost) for devices in range(3, GROUP_MAX + 1))
    assert kept > 240


def _keeps(devices: int, liars: int, lost: float) -> bool:
    try:
        shape = shape_of(devices, liars, lost)
    except Misuse:
        return False
    least = shape.least(3)
    # One set only; liars open no mask; two honest devices are in each sum.
    assert 2 * shape.agreed > devices + liars
    assert shape.threshold > liars
    assert least >= liars + 2
    if not shape.is_complete:
        # Whatever is missing in a sum of the least, and whoever lies, takes out fewer than two runs of half of k.
        assert devices - least + liars <= shape.neighbours - 2
        # And the sum is opened although as many are lost as may be.
        assert shape.threshold <= shape.neighbours - shape.gone
        assert shape.agreed <= devices - shape.gone
    return True


def test_honest_members_of_a_ring_stay_connected_wherever_others_are_taken_out() -> None:
    """Two runs of neighbours, as long as may be, at every distance from each other."""
    shape = shape_of(40, 4, 0.3)
    taken = shape.liars + shape.gone
    for first in range(1, taken):
        for apart in range(40 - taken):
            out = {*range(first), *range(first + apart, apart + taken)}
            left = [place for place in range(40) if place not in out]
            seen, reached = {left[0]}, [left[0]]
            while reached:
                place = reached.pop()
                for step in range(1, shape.neighbours // 2 + 1):
                    for other in ((place + step) % 40, (place - step) % 40):
                        if other not in out and other not in seen:
                            seen.add(other)
                            reached.append(other)
            assert seen == set(left)


def test_a_group_in_which_nobody_is_hidden_is_refused() -> None:
    with pytest.raises(Misuse, match="hides nobody"):
        shape_of(3, 2, 0.0)
    with pytest.raises(Misuse, match="at most"):
        shape_of(GROUP_MAX + 1, 26, 0.3)


def test_neighbours_are_mutual_and_follow_from_what_all_members_drew() -> None:
    shape = shape_of(64, 7, 0.3)
    seed = graph_seed([bytes([place]) * 16 for place in range(64)])
    near = neighbours_of(shape, seed)
    assert all(len(those) == shape.neighbours and place not in those for place, those in enumerate(near))
    assert all(place in near[other] for place, those in enumerate(near) for other in those)
    changed = graph_seed([bytes([place + (place == 7)]) * 16 for place in range(64)])
    assert neighbours_of(shape, changed) != near
