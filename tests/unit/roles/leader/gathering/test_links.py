"""What the ways of leases in a star tell of links."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.roles.leader.gathering.links import LEADER, LinkRates
from shoal.roles.leader.workers import WorkerRecord
from shoal.topology.cluster import Cluster, ClusterNode
from shoal.topology.predict import star_ways_s

MODEL_BYTES = 2.9e6
RATE = 12.5e6


def star(count: int, *, rate: float = RATE, ups: dict[int, float] | None = None, slow: int = 0) -> Cluster:
    """So many workers; some send at another rate, the last ``slow`` train four times as long."""
    workers = tuple(
        ClusterNode(
            name=f"w{place:02}",
            up_bytes_per_s=(ups or {}).get(place, rate),
            down_bytes_per_s=rate,
            compute_s=4.0 if place >= count - slow else 1.0,
        )
        for place in range(count)
    )
    return Cluster(leader=ClusterNode(name=LEADER, up_bytes_per_s=rate, down_bytes_per_s=rate), workers=workers)


def seen(cluster: Cluster) -> Cluster:
    """What is made of the leases of a star of this kind."""
    ways_s = star_ways_s(cluster, model_bytes=MODEL_BYTES)
    members = [
        WorkerRecord(
            node=worker.name,
            durations_s=deque([worker.compute_s + way_s] * 5),
            trainings_s=deque([worker.compute_s] * 5),
        )
        for worker, way_s in zip(cluster.workers, ways_s, strict=True)
    ]
    links = LinkRates(model_bytes=MODEL_BYTES)
    links.observe(members)
    return links.cluster(members)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("rate", [1.25e6, 12.5e6, 125e6])
def test_even_links_are_found_and_nobody_is_slow(count: int, rate: float) -> None:
    found = seen(star(count, rate=rate))
    assert found.leader.up_bytes_per_s == pytest.approx(rate, rel=0.05)
    assert all(worker.up_bytes_per_s == found.leader.up_bytes_per_s for worker in found.workers)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_slow_uplink_shows_where_the_leaders_link_does_not_hide_it(count: int) -> None:
    found = seen(star(count, ups={count - 1: RATE / 10}))
    *others, last = found.workers
    assert last.up_bytes_per_s == pytest.approx(RATE / 10, rel=0.1)
    assert found.leader.up_bytes_per_s == pytest.approx(RATE, rel=0.1)
    assert all(worker.up_bytes_per_s == found.leader.up_bytes_per_s for worker in others)


def test_in_a_large_star_a_slow_uplink_is_hidden() -> None:
    # Sixteen share the leader's link, and a sixteenth of that is less than a tenth: nobody could see it.
    found = seen(star(16, ups={15: RATE / 10}))
    assert found.workers[15].up_bytes_per_s == found.leader.up_bytes_per_s


@pytest.mark.parametrize("slow", [1, 2])
def test_one_who_trains_long_has_no_slow_link(slow: int) -> None:
    found = seen(star(8, slow=slow))
    assert {worker.up_bytes_per_s for worker in found.workers} == {found.leader.up_bytes_per_s}
    assert found.slowest_s == 4.0


def test_a_leader_with_room_for_some_updates_has_no_slow_workers() -> None:
    # Sixteen models at 10 Mb/s take 37 s; there is room for eleven updates, which takes 26 s more; then for the rest.
    ways_s = [62.6] * 11 + [74.2] * 5
    members = [
        WorkerRecord(node=f"w{place:02}", durations_s=deque([1.0 + way_s] * 5), trainings_s=deque([1.0] * 5))
        for place, way_s in enumerate(ways_s)
    ]
    links = LinkRates(model_bytes=MODEL_BYTES)
    links.observe(members)
    found = links.cluster(members)
    assert {worker.up_bytes_per_s for worker in found.workers} == {found.leader.up_bytes_per_s}
    assert found.leader.up_bytes_per_s == pytest.approx(1.25e6, rel=0.05)


def test_a_star_of_many_is_played_through_with_some_of_them() -> None:
    found = seen(star(100))
    assert found.leader.up_bytes_per_s == pytest.approx(RATE, rel=0.05)


@given(st.lists(st.tuples(st.floats(0.0, 1e4), st.floats(0.0, 1e4)), min_size=1, max_size=6))
def test_whatever_leases_took_there_is_an_answer(leases: list[tuple[float, float]]) -> None:
    members = [
        WorkerRecord(node=f"w{place}", durations_s=deque([took_s]), trainings_s=deque([train_s]))
        for place, (took_s, train_s) in enumerate(leases)
    ]
    links = LinkRates(model_bytes=MODEL_BYTES)
    links.observe(members)
    found = links.cluster(members)
    assert all(worker.narrow_bytes_per_s > 0 for worker in (found.leader, *found.workers))


def test_without_leases_links_are_assumed() -> None:
    links = LinkRates(model_bytes=MODEL_BYTES)
    links.observe([WorkerRecord(node="w0")])
    found = links.cluster([WorkerRecord(node="w0")])
    assert found.workers[0].up_bytes_per_s == found.leader.up_bytes_per_s


def test_before_a_round_a_download_that_nobody_shared_makes_no_fast_link() -> None:
    # Fifteen fetched the job at one moment over one link; the last one came later and had it to itself.
    together, alone = RATE / 15, RATE
    members = [
        WorkerRecord(node=f"w{place:02}", down_bytes_per_s=alone if place == 15 else together) for place in range(16)
    ]
    found = LinkRates(model_bytes=MODEL_BYTES).cluster(members)
    assert {worker.up_bytes_per_s for worker in found.workers} == {together}
    assert {worker.down_bytes_per_s for worker in found.workers} == {together}


def test_before_a_round_a_slow_download_stays_a_slow_link() -> None:
    members = [
        WorkerRecord(node=f"w{place:02}", down_bytes_per_s=RATE / 10 if place == 3 else RATE) for place in range(4)
    ]
    found = LinkRates(model_bytes=MODEL_BYTES).cluster(members)
    assert [worker.down_bytes_per_s for worker in found.workers] == [RATE, RATE, RATE, RATE / 10]


def test_after_a_round_a_better_link_counts_as_better() -> None:
    cluster = star(4)
    ways_s = star_ways_s(cluster, model_bytes=MODEL_BYTES)
    members = [
        WorkerRecord(
            node=worker.name,
            down_bytes_per_s=8 * RATE if worker.name == "w03" else 0.0,
            durations_s=deque([worker.compute_s + way_s] * 5),
            trainings_s=deque([worker.compute_s] * 5),
        )
        for worker, way_s in zip(cluster.workers, ways_s, strict=True)
    ]
    links = LinkRates(model_bytes=MODEL_BYTES)
    links.observe(members)
    assert links.cluster(members).workers[3].down_bytes_per_s == 8 * RATE
