"""Wherever updates of a private job meet, whatever is lost: a version is the sum of devices that count as one each,
with the leader's noise in it once; and what comes of the same updates is the same in a star, a tree and a shard."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from happenings import NODES, befalls, happenings
from hypothesis import given
from hypothesis import strategies as st
from private_troupe import PrivateTroupe, private_plan

from shoal.roles.leader.lending import Lending
from shoal.wire.messages import Reduce, ReduceResult, SetUpAggregator

EPOCHS = 3


@given(
    happenings,
    st.sampled_from([("tree", "sync"), ("tree", "buffered"), ("shard", "sync"), ("shard", "sync")]),
    st.integers(3, 5),
    st.integers(1, 4),
    st.integers(0, 3),
    st.tuples(st.integers(1, 6), st.integers(0, 3)),
    st.sampled_from([0.0, 0.5]),
)
def test_noise_once_a_version_and_each_device_as_one(
    script: list[tuple[str, int]],
    shape: tuple[str, str],
    count: int,
    together: int,
    aggregators: int,
    size: tuple[int, int],
    momentum: float,
) -> None:
    kind, pace = shape
    plan = private_plan(
        topology=kind,
        pace=pace,
        cohort=together if pace == "sync" else 0,
        buffer=together,
        aggregators=aggregators,
        momentum=momentum,
    )
    troupe = PrivateTroupe(plan, parameters=size[0], buffers=size[1])
    nodes = NODES[:count]
    troupe.joins(*nodes)
    troupe.forms()
    for what, number in script:
        befalls(troupe, what, number)
    troupe.spoils.clear()
    troupe.walls.clear()
    troupe.joins(*(node for node in nodes if node not in troupe.devices))
    troupe.finishes(epochs=max(EPOCHS, troupe.leader.epoch + 1))
    assert not troupe.ended
    troupe.check_versions()
    troupe.check_accounts()


@pytest.mark.parametrize("kind", ["tree", "shard"])
def test_a_version_is_that_of_a_star_given_the_same_noise(kind: str) -> None:
    def play(topology: str) -> PrivateTroupe:
        troupe = PrivateTroupe(private_plan(topology=topology, cohort=5, aggregators=2, momentum=0.5), parameters=40)
        troupe.joins(*NODES)
        for _ in range(80):
            troupe.round()
            troupe.passes(0.6)
        assert (troupe.leader._formations.kind, troupe.ended) == (topology, "")
        return troupe

    star, other = play("star"), play(kind)
    last = min(star.leader.version, other.leader.version)
    assert last >= 40
    for version in range(last + 1):
        # Devices ask in another order, so that leases differ and updates do not: each is drawn from its lease.
        assert _leases(star, version) == _leases(other, version)
        np.testing.assert_allclose(star.versions[version], other.versions[version], atol=2e-5)
    counts = [message for _, _, message in other.heard if isinstance(message, Reduce)]
    assert {weight for count in counts for weight in count.weights} == {1.0}
    forms = [message for _, _, message in other.heard if isinstance(message, SetUpAggregator)]
    assert all("model" not in form.tensors and form.sums_only for form in forms)


def _leases(troupe: PrivateTroupe, version: int) -> set[int]:
    return {row.lease for row in troupe.rows if row.version == version}


def _a_sum_comes_late() -> None:
    """A group's sum is a version late. Its devices come again by the version that they are in."""
    plan = private_plan(topology="tree", aggregators=2, pace="buffered", cohort=0, buffer=1, apart=2, workers_min=2)
    troupe = PrivateTroupe(plan)
    troupe.joins("a", "b", "c", "d")
    troupe.forms()
    for _ in range(3):
        first, *_ = sorted(troupe.leader.aggregators)
        troupe.talks()
        for node in troupe.at_work():
            troupe.trains(node)
        held, before = (first, "home"), troupe.leader.version
        while lines := [line for line in troupe.waiting() if line != held or not _is_sum(troupe, line)]:
            troupe.hears(lines[0])
        if troupe.waiting():
            assert troupe.leader.version <= before + 1
        troupe.talks()
        troupe.passes(0.6)
    assert any(isinstance(message, ReduceResult) for _, _, message in troupe.heard)
    troupe.finishes(epochs=troupe.leader.epoch + 1)
    troupe.check_versions()
    troupe.check_accounts()


def _is_sum(troupe: PrivateTroupe, line: tuple[str, str]) -> bool:
    return isinstance(troupe.lines[line][0], ReduceResult)


def test_devices_of_a_late_sum_come_again_by_the_version_that_they_are_in() -> None:
    _a_sum_comes_late()
    with (
        patch.object(Lending, "on_summed", lambda self, nodes: None),
        pytest.raises(AssertionError, match="in version"),
    ):
        _a_sum_comes_late()
