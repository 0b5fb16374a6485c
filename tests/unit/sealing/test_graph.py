from __future__ import annotations

import pytest

from shoal.errors import Misuse
from shoal.sealing.graph import GROUP_MAX, graph_seed, neighbours_of, shape_of


def test_small_groups_are_complete_and_two_majorities_share_more_than_the_liars() -> None:
    for devices in range(6, 33):
        shape = shape_of(devices, 0.1, 0.3)
        liars = -(-devices // 10)
        assert shape.is_complete
        assert 2 * shape.threshold > devices + liars
    assert shape_of(8, 0.1, 0.3).threshold == 5
    assert shape_of(8, 0.1, 0.3).losses_borne == 2


def test_large_groups_have_few_neighbours_and_a_threshold_between_liars_and_losses() -> None:
    # By exact tails: 7 of 64 collude and 19 are lost.
    shape = shape_of(64, 0.1, 0.3)
    assert (shape.neighbours, shape.threshold) == (24, 8)
    assert shape_of(256, 0.1, 0.3).neighbours < 64


def test_a_group_in_which_nobody_is_hidden_is_refused() -> None:
    with pytest.raises(Misuse, match="hides nobody"):
        shape_of(3, 0.34, 0.0)
    with pytest.raises(Misuse, match="at most"):
        shape_of(GROUP_MAX + 1, 0.1, 0.3)


def test_neighbours_are_mutual_and_follow_from_what_all_members_drew() -> None:
    shape = shape_of(64, 0.1, 0.3)
    seed = graph_seed([bytes([place]) * 16 for place in range(64)])
    near = neighbours_of(shape, seed)
    assert all(len(those) == shape.neighbours and place not in those for place, those in enumerate(near))
    assert all(place in near[other] for place, those in enumerate(near) for other in those)
    changed = graph_seed([bytes([place + (place == 7)]) * 16 for place in range(64)])
    assert neighbours_of(shape, changed) != near
