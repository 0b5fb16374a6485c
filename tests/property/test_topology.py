"""Staleness rules, shares, trees and flows, for all inputs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shoal.learning.staleness import STALENESS
from shoal.topology.choose import TOPOLOGIES, WORTH, choose
from shoal.topology.cluster import Cluster, ClusterNode
from shoal.topology.flows import FlowTransfer, fair_rates, finish_times_s
from shoal.topology.predict import shard, star, tree
from shoal.topology.saturation import SATURATED, judge
from shoal.topology.shard import phases_s, water_fill
from shoal.topology.split import split

MODEL_BYTES = 1000.0

rates = st.floats(1.0, 1e4)


def node(name: str, up: float, down: float | None = None, compute_s: float = 0.0, medium: str = "") -> ClusterNode:
    return ClusterNode(
        name=name,
        up_bytes_per_s=up,
        down_bytes_per_s=up if down is None else down,
        compute_s=compute_s,
        medium=medium,
    )


@st.composite
def clusters(draw: st.DrawFn, *, most: int = 8, media: tuple[str, ...] = ("", "ap")) -> Cluster:
    count = draw(st.integers(1, most))
    workers = tuple(
        node(f"w{i}", draw(rates), draw(rates), draw(st.floats(0.0, 10.0)), draw(st.sampled_from(media)))
        for i in range(count)
    )
    leads = draw(st.booleans())
    return Cluster(leader=workers[0] if leads else node("home", draw(rates), draw(rates)), workers=workers)


# Staleness ---------------------------------------------------------------------------------------------------


@given(st.sampled_from(sorted(STALENESS)), st.integers(0, 10**6), st.floats(0.0, 1e4))
def test_a_weight_is_a_share_and_never_grows_with_staleness(name: str, staleness: int, threshold: float) -> None:
    rule = STALENESS[name]
    assert rule(0, threshold=threshold) == 1.0
    now, later = rule(staleness, threshold=threshold), rule(staleness + 1, threshold=threshold)
    assert 0 < later <= now <= 1


@given(st.integers(1, 1000))
def test_the_exponential_meets_the_inverse_at_half_of_any_threshold(half: int) -> None:
    meets = STALENESS["exponential"](half, threshold=2.0 * half)
    assert meets == pytest.approx(STALENESS["inverse"](half, threshold=0.0))


# Shares ------------------------------------------------------------------------------------------------------


def loads_s(shares: np.ndarray, narrow: np.ndarray, trains: np.ndarray) -> np.ndarray:
    """When each node's link is through, from what each sends: no formula of the planner is used.

    Column j is what i sends to j: its update of j's share if i trains, and the result of its own share if j does.
    """
    count = len(shares)
    sent = np.zeros((count, count))
    for i, j in itertools.permutations(range(count), 2):
        sent[i, j] = trains[i] * shares[j] + trains[j] * shares[i]
    assert np.allclose(sent.sum(axis=0), sent.sum(axis=1))
    return MODEL_BYTES * sent.sum(axis=1) / narrow


@given(st.lists(rates, min_size=1, max_size=12), st.lists(rates, max_size=2))
def test_shares_are_shares_and_all_who_lead_finish_together(training: list[float], leading: list[float]) -> None:
    workers = [node(f"w{i}", rate) for i, rate in enumerate(training)]
    others = [node(f"l{i}", rate) for i, rate in enumerate(leading)]
    plan = water_fill(workers, model_bytes=MODEL_BYTES, only_lead=others)
    shares = np.array(plan.shares)
    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1.0)
    trains = np.arange(len(shares)) < len(workers)
    done_s = loads_s(shares, np.array([*training, *leading]), trains)
    assert plan.sync_s == pytest.approx(float(done_s.max()), rel=1e-6)
    if len(workers) > 2:
        together_s = done_s[shares > 1e-9]
        assert together_s == pytest.approx(np.full(len(together_s), together_s[0]), rel=1e-5)
        # Who leads nothing could not be done sooner, and would be later with a share.
        assert all(done_s[shares == 0] >= together_s[0] * (1 - 1e-6))


@given(st.lists(rates, min_size=3, max_size=12))
def test_the_time_is_the_closed_form(training: list[float]) -> None:
    plan = water_fill([node(f"w{i}", rate) for i, rate in enumerate(training)], model_bytes=MODEL_BYTES)
    slowest_s, filled_s = MODEL_BYTES / min(training), 2 * (len(training) - 1) * MODEL_BYTES / sum(training)
    assert plan.sync_s == pytest.approx(max(slowest_s, filled_s), rel=1e-6)


@settings(max_examples=30)
@given(st.lists(rates, min_size=3, max_size=4), st.integers(0, 1))
def test_no_shares_on_a_grid_are_better(training: list[float], leading: int) -> None:
    workers = [node(f"w{i}", rate) for i, rate in enumerate(training[: len(training) - leading])]
    others = [node(f"l{i}", rate) for i, rate in enumerate(training[len(training) - leading :])]
    assume(len(workers) > 2)
    plan = water_fill(workers, model_bytes=MODEL_BYTES, only_lead=others)
    trains, narrow = np.arange(len(training)) < len(workers), np.array(training)
    steps = 12
    for cut in itertools.combinations(range(steps + len(training) - 1), len(training) - 1):
        edges = np.array([-1, *cut, steps + len(training) - 1])
        shares = (np.diff(edges) - 1) / steps
        assert float(loads_s(shares, narrow, trains).max()) >= plan.sync_s * (1 - 1e-6)


@given(st.lists(rates, min_size=3, max_size=10), st.data())
def test_no_small_change_is_better(training: list[float], data: st.DataObject) -> None:
    plan = water_fill([node(f"w{i}", rate) for i, rate in enumerate(training)], model_bytes=MODEL_BYTES)
    shares = np.array(plan.shares)
    giver, taker = data.draw(st.permutations(range(len(training))))[:2]
    moved = min(float(shares[giver]), data.draw(st.floats(1e-6, 0.1)))
    shares[giver] -= moved
    shares[taker] += moved
    trains = np.ones(len(training), dtype=bool)
    assert float(loads_s(shares, np.array(training), trains).max()) >= plan.sync_s * (1 - 1e-6)


@given(st.lists(rates, min_size=3, max_size=10), st.data())
def test_a_better_link_leads_no_less_and_makes_nothing_slower(training: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(training) - 1))
    better = list(training)
    better[place] *= data.draw(st.floats(1.0, 10.0))
    before = water_fill([node(f"w{i}", rate) for i, rate in enumerate(training)], model_bytes=MODEL_BYTES)
    after = water_fill([node(f"w{i}", rate) for i, rate in enumerate(better)], model_bytes=MODEL_BYTES)
    assert after.shares[place] >= before.shares[place] - 1e-9
    assert after.sync_s <= before.sync_s * (1 + 1e-9)
    order = np.argsort(training, kind="stable")
    assert all(np.diff(np.array(before.shares)[order]) >= -1e-9)


@given(clusters(media=("",)))
def test_halves_one_after_the_other_are_no_faster_than_at_once(cluster: Cluster) -> None:
    plan = water_fill(cluster.workers, model_bytes=MODEL_BYTES)
    assert sum(phases_s(cluster.workers, plan.shares, model_bytes=MODEL_BYTES)) >= plan.sync_s * (1 - 1e-6)


@settings(max_examples=25)
@given(st.lists(rates, min_size=2, max_size=5))
def test_halves_are_as_long_as_their_transfers_need_at_least(training: list[float]) -> None:
    """Played through on the fluid model, where links are shared fairly and so not always used in full."""
    workers = [node(f"w{i}", rate) for i, rate in enumerate(training)]
    shares = water_fill(workers, model_bytes=MODEL_BYTES).shares
    first = [
        FlowTransfer(source=f"w{i}", target=f"w{j}", size_bytes=MODEL_BYTES * shares[j])
        for i, j in itertools.permutations(range(len(workers)), 2)
    ]
    played_s = max(finish_times_s(first, {worker.name: worker for worker in workers}, hold_s=0.0))
    predicted_s, _ = phases_s(workers, shares, model_bytes=MODEL_BYTES)
    assert predicted_s * (1 - 1e-6) <= played_s <= 2 * predicted_s


# Flows and predictions ---------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(4, 7), rates, rates), min_size=1, max_size=12))
def test_fair_rates_fill_no_link_over_and_leave_nobody_room(flows: list[tuple[int, int, float, float]]) -> None:
    up, down = {i: rate for i, _, rate, _ in flows}, {j: rate for _, j, _, rate in flows}
    links = np.array([[i, j] for i, j, _, _ in flows])
    costs = np.array([[1 / up[i], 1 / down[j]] for i, j, _, _ in flows])
    given_rates = fair_rates(links, costs, links_count=8)
    busy = np.bincount(links.ravel(), weights=(costs * given_rates[:, None]).ravel(), minlength=8)
    assert given_rates.min() > 0
    assert busy.max() <= 1 + 1e-9
    # Max-min: each has a full link on which nobody has more.
    for row, rate in enumerate(given_rates):
        assert any(
            busy[link] >= 1 - 1e-6 and rate >= given_rates[(links == link).any(axis=1)].max() * (1 - 1e-6)
            for link in links[row]
        )


@settings(max_examples=60)
@given(clusters(), st.sampled_from([0.0, 0.05, math.inf]))
def test_no_batch_is_shorter_than_what_it_needs(cluster: Cluster, hold_s: float) -> None:
    shape = split(cluster)
    for told in (
        star(cluster, model_bytes=MODEL_BYTES, hold_s=hold_s),
        tree(cluster, shape, model_bytes=MODEL_BYTES, hold_s=hold_s),
        shard(cluster, model_bytes=MODEL_BYTES),
    ):
        assert told.batch_s >= cluster.slowest_s * (1 - 1e-9)
        assert told.sync_s == pytest.approx(told.batch_s - cluster.slowest_s, abs=1e-6)
    away = [worker for worker in cluster.workers if worker.name != cluster.leader.name]
    told = star(cluster, model_bytes=MODEL_BYTES, hold_s=hold_s)
    if not cluster.leader.medium:
        for rate in (cluster.leader.up_bytes_per_s, cluster.leader.down_bytes_per_s):
            assert told.batch_s >= len(away) * MODEL_BYTES / rate * (1 - 1e-6)
    air_s = sum(
        MODEL_BYTES / worker.up_bytes_per_s + MODEL_BYTES / worker.down_bytes_per_s for worker in away if worker.medium
    )
    assert told.batch_s >= air_s * (1 - 1e-6)


@settings(max_examples=60)
@given(clusters(), st.floats(1.0, 10.0))
def test_time_scales_with_everything(cluster: Cluster, factor: float) -> None:
    """Half the rates and twice the training: twice the time. With no turn passed on, nothing else has a unit."""

    def slower(one: ClusterNode) -> ClusterNode:
        return node(
            one.name, one.up_bytes_per_s / factor, one.down_bytes_per_s / factor, one.compute_s * factor, one.medium
        )

    slow = Cluster(leader=slower(cluster.leader), workers=tuple(slower(worker) for worker in cluster.workers))
    for hold_s in (0.0, math.inf):
        before = star(cluster, model_bytes=MODEL_BYTES, hold_s=hold_s).batch_s
        assert star(slow, model_bytes=MODEL_BYTES, hold_s=hold_s).batch_s == pytest.approx(factor * before, rel=1e-6)


@given(clusters(most=12), st.data())
def test_a_tree_has_everyone_once(cluster: Cluster, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(cluster.workers)))
    shape = split(cluster, aggregators=count, like_speeds_together=data.draw(st.booleans()))
    named = [name for group in shape.groups for name in (group.aggregator, *group.members)]
    assert sorted(named) == sorted(worker.name for worker in cluster.workers)
    assert len(shape.groups) == count


@settings(max_examples=60)
@given(clusters())
def test_the_choice_is_about_the_best_and_the_same_each_time(cluster: Cluster) -> None:
    choice = choose(cluster, model_bytes=MODEL_BYTES)
    assert tuple(told.topology for told in choice.alternatives) == TOPOLOGIES
    assert choice.best in choice.alternatives
    assert choice.best.batch_s <= min(told.batch_s for told in choice.alternatives) / (1 - WORTH) ** 2
    assert choice.reason
    assert choose(cluster, model_bytes=MODEL_BYTES) == choice


# Saturation --------------------------------------------------------------------------------------------------


@given(st.integers(1, 1000), st.floats(-0.9, 2.0), st.floats(0.0, 1.0))
def test_saturated_is_said_only_of_what_is_surely_too_little(workers: int, gain: float, margin: float) -> None:
    told = judge(workers, gain, margin)
    assert (told.verdict == SATURATED) == (gain + margin < told.wanted)
    assert told.wanted <= 1 / workers
