"""Which shape, why, and when to ask again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.errors import Misuse
from shoal.topology.choose import (
    MARGIN,
    ROUNDS_OFF,
    ROUNDS_SETTLING,
    SLOWER,
    WORTH,
    Choice,
    Watch,
    best_tree,
    choose,
    choose_again,
)
from shoal.topology.cluster import Cluster, ClusterNode
from shoal.topology.predict import tree as predict_tree
from shoal.topology.split import split

PERNET_BYTES = 720_967 * 4


def node(name: str, mbit: float, *, compute_s: float = 1.0, medium: str = "") -> ClusterNode:
    rate = mbit * 1e6 / 8
    return ClusterNode(name=name, up_bytes_per_s=rate, down_bytes_per_s=rate, compute_s=compute_s, medium=medium)


def even(count: int, mbit: float, *, home: float | None = None, medium: str = "") -> Cluster:
    leader = node("home", mbit if home is None else home)
    return Cluster(leader=leader, workers=tuple(node(f"w{i:02}", mbit, medium=medium) for i in range(count)))


def times(choice: Choice) -> dict[str, float]:
    return {told.topology: told.batch_s for told in choice.alternatives}


def test_sixteen_at_100_mbit_are_sharded() -> None:
    choice = choose(even(16, 100.0), model_bytes=PERNET_BYTES)
    assert choice.best.topology == "shard"
    assert choice.shares is not None
    assert choice.tree is None
    assert list(times(choice)) == ["star", "tree", "shard"]
    assert choice.reason.startswith(
        "shard: 1.45 s per batch, where a star takes 7.69 s and a tree takes 4.09 s; 16 of 16"
    )


def test_where_shards_are_not_to_be_had_it_is_a_tree() -> None:
    choice = choose(even(16, 100.0), model_bytes=PERNET_BYTES, topologies=("tree", "star"))
    assert choice.best.topology == "tree"
    assert choice.tree is not None
    assert choice.tree.notation == "1-4-16"
    assert choice.shares is None


def test_on_shared_air_it_is_a_star_and_the_reason_says_so() -> None:
    choice = choose(even(16, 100.0, medium="ap"), model_bytes=PERNET_BYTES)
    assert choice.best.topology == "star"
    assert choice.reason.endswith("ap is shared: bytes that one link saves, others send over the same channel")


def test_a_simpler_shape_that_is_nearly_as_fast_is_kept() -> None:
    choice = choose(even(2, 1000.0), model_bytes=PERNET_BYTES)
    assert choice.best.topology == "star"
    assert times(choice)["shard"] < choice.best.batch_s
    assert times(choice)["shard"] >= choice.best.batch_s * (1 - WORTH)
    assert choice.reason.endswith("a shard is not faster by 5 %, and has more parts")


def test_a_wide_leader_needs_no_tree() -> None:
    choice = choose(even(16, 10.0, home=1000.0), model_bytes=PERNET_BYTES, topologies=("star", "tree"))
    assert choice.best.topology == "star"


def test_the_choice_is_never_much_slower_than_the_best() -> None:
    for count in (1, 2, 3, 5, 8, 16):
        for mbit in (5.0, 100.0, 1000.0):
            for medium in ("", "ap"):
                choice = choose(even(count, mbit, medium=medium), model_bytes=PERNET_BYTES)
                # Twice: from star to tree, from tree to shard.
                assert choice.best.batch_s <= min(times(choice).values()) / (1 - WORTH) ** 2


def test_the_number_of_aggregators_is_about_the_best() -> None:
    clusters = [even(n, 100.0) for n in (4, 9, 16, 30)]
    clusters += [even(16, 100.0, home=home) for home in (20.0, 400.0)]
    mixed = tuple(node(f"w{i:02}", (20.0, 100.0, 300.0)[i % 3], compute_s=1 + 0.2 * (i % 4)) for i in range(18))
    clusters.append(Cluster(leader=node("home", 100.0), workers=mixed))
    for cluster in clusters:
        _, told = best_tree(cluster, model_bytes=PERNET_BYTES)
        every = [
            predict_tree(cluster, split(cluster, aggregators=g), model_bytes=PERNET_BYTES).batch_s
            for g in range(1, len(cluster.workers) + 1)
        ]
        assert told.batch_s <= 1.1 * min(every)


def test_only_known_shapes() -> None:
    for shapes in ((), ("ring",)):
        with pytest.raises(Misuse, match="choose from star, tree, shard"):
            choose(even(2, 10.0), model_bytes=1, topologies=shapes)


# Asking again ------------------------------------------------------------------------------------------------


def settled(choice: Choice) -> Watch:
    watch = Watch(choice)
    for _ in range(ROUNDS_SETTLING):
        assert watch.measured(1000 * choice.best.batch_s) is None
    return watch


def test_rounds_as_predicted_are_no_reason() -> None:
    choice = choose(even(4, 100.0), model_bytes=PERNET_BYTES)
    watch = settled(choice)
    for number in range(100):
        within = 1 + 0.9 * MARGIN * (-1) ** number
        assert watch.measured(choice.best.batch_s * within) is None


def test_a_straggler_now_and_then_is_no_reason() -> None:
    choice = choose(even(4, 100.0), model_bytes=PERNET_BYTES)
    watch = settled(choice)
    for _ in range(20):
        for _ in range(ROUNDS_OFF - 1):
            assert watch.measured(3 * choice.best.batch_s) is None
        assert watch.measured(choice.best.batch_s) is None


def test_too_slow_and_too_fast_in_turn_are_no_reason() -> None:
    choice = choose(even(4, 100.0), model_bytes=PERNET_BYTES)
    watch = settled(choice)
    for number in range(50):
        assert watch.measured(choice.best.batch_s * (2.0 if number % 2 else 0.5)) is None


@pytest.mark.parametrize(("factor", "words"), [(2.0, "took longer"), (0.5, "took less")])
def test_rounds_that_stay_off_are_a_reason(factor: float, words: str) -> None:
    choice = choose(even(16, 100.0), model_bytes=PERNET_BYTES)
    watch = settled(choice)
    for _ in range(ROUNDS_OFF - 1):
        assert watch.measured(factor * choice.best.batch_s) is None
    off = watch.measured(factor * choice.best.batch_s)
    assert off is not None
    assert off.measured_s == pytest.approx(factor * choice.best.batch_s)
    assert f"5 rounds in a row {words} than predicted for a shard" in off.reason
    assert "(+100 %)" in off.reason or "(-50 %)" in off.reason


def test_new_measurements_that_explain_it_leave_no_correction() -> None:
    before = choose(even(16, 100.0), model_bytes=PERNET_BYTES)
    slower = even(16, 50.0)
    measured_s = times(choose(slower, model_bytes=PERNET_BYTES))["shard"]
    again = choose_again(slower, before, measured_s=measured_s, model_bytes=PERNET_BYTES)
    assert again.best.topology == "shard"
    assert again.corrections == ()
    assert again.best.batch_s == pytest.approx(measured_s)


def test_where_the_model_is_wrong_about_a_shape_another_is_tried_and_it_does_not_go_to_and_fro() -> None:
    cluster = even(16, 100.0)
    real_s = {"star": 7.7, "tree": 4.1, "shard": 6.0}
    choice = choose(cluster, model_bytes=PERNET_BYTES)
    tried = [choice.best.topology]
    for _ in range(200):
        watch = Watch(choice)
        off = None
        for _ in range(ROUNDS_SETTLING + ROUNDS_OFF):
            off = off or watch.measured(real_s[choice.best.topology])
        if off is None:
            break
        choice = choose_again(cluster, choice, measured_s=off.measured_s, model_bytes=PERNET_BYTES)
        tried.append(choice.best.topology)
    assert tried == ["shard", "tree"]
    assert dict(choice.corrections)["shard"] == pytest.approx(6.0 / 1.447, rel=0.001)
    # What was learned of it is told among the alternatives.
    assert times(choice)["shard"] == pytest.approx(6.0)
    assert any("times the model's 1.45 s, as measured" in told.detail for told in choice.alternatives)


def test_a_correction_goes_when_the_model_is_right_again() -> None:
    cluster = even(16, 100.0)
    before = choose(cluster, model_bytes=PERNET_BYTES, corrections={"shard": 1.5})
    assert before.best.topology == "shard"
    again = choose_again(cluster, before, measured_s=1.45, model_bytes=PERNET_BYTES)
    assert again.corrections == ()


def test_if_every_shape_is_slow_the_least_slow_is_kept_and_expected() -> None:
    cluster = even(16, 100.0)
    choice = choose(cluster, model_bytes=PERNET_BYTES)
    again = choose_again(cluster, choice, measured_s=3.0, model_bytes=PERNET_BYTES)
    assert again.best.topology == "shard"
    watch = settled(again)
    for _ in range(50):
        assert watch.measured(3.0) is None


def test_what_a_shape_took_counts_in_place_of_its_prediction() -> None:
    cluster = even(16, 100.0)
    choice = choose(cluster, model_bytes=PERNET_BYTES, took_s={"shard": 1.5, "star": 7.5})
    assert times(choice) == pytest.approx({"star": 7.5, "tree": 4.09, "shard": 1.5}, rel=0.01)
    assert dict(choice.corrections) == pytest.approx({"star": 7.5 / 7.69, "shard": 1.5 / 1.447}, rel=0.001)
    again = choose_again(cluster, choice, measured_s=4.3, model_bytes=PERNET_BYTES, took_s={"star": 4.2})
    assert times(again) == pytest.approx({"star": 4.2, "tree": 4.09, "shard": 4.3}, rel=0.01)
    assert again.best.topology == "star", "nothing that has more parts is faster by enough"


@pytest.mark.parametrize("rounds", [ROUNDS_OFF, 3 * ROUNDS_OFF])
def test_a_shape_that_is_slower_than_one_before_it_was_is_left(rounds: int) -> None:
    choice = choose(even(16, 100.0), model_bytes=PERNET_BYTES)
    predicted_s = choice.best.batch_s
    for took_s, is_left in ((1.1, True), (1 + 0.9 * SLOWER, False)):
        watch = Watch(choice, took_s={"star": predicted_s, "shard": 0.1, "tree": 2 * predicted_s}, rounds=rounds)
        offs = [watch.measured(took_s * predicted_s) for _ in range(ROUNDS_SETTLING + rounds)]
        assert not any(offs[:-1])
        assert (offs[-1] is not None) == is_left, "the margin of the prediction is wider than both"
        assert watch.took_s == pytest.approx(took_s * predicted_s)
        if (off := offs[-1]) is not None:
            assert off.is_behind
            assert off.reason == f"{rounds} rounds of a shard took 1.59 s, those of a star 1.45 s"


def test_a_batch_takes_time() -> None:
    choice = choose(even(2, 100.0), model_bytes=PERNET_BYTES)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(Misuse, match="positive time"):
            Watch(choice).measured(seconds)
    with pytest.raises(Misuse, match="positive time"):
        Watch(replace(choice, best=replace(choice.best, batch_s=0.0)))


def test_where_nobody_waits_a_star_is_not_taken_to_wait_for_its_slowest() -> None:
    slow = replace(node("w8", 100.0), compute_s=4.0)
    cluster = Cluster(leader=node("home", 100.0), workers=(*even(7, 100.0).workers, slow))
    in_step = choose(cluster, model_bytes=PERNET_BYTES, topologies=("star",))
    flowing = choose(cluster, model_bytes=PERNET_BYTES, topologies=("star",), above="async")
    assert in_step.best.batch_s > 4.0
    # Eight models over the leader's link are longer than a lease of each: 8 · 2.88 MB / 12.5 MB/s.
    assert flowing.best.batch_s == pytest.approx(8 * PERNET_BYTES / 12.5e6)


def hubs(count: int, mbit: float) -> tuple[ClusterNode, ...]:
    return tuple(node(f"h{i}", mbit, compute_s=0.0) for i in range(count))


def test_a_tree_of_hubs_is_taken_unless_a_tree_of_workers_is_faster() -> None:
    slow = even(32, 20.0, home=100.0)
    of_workers, told = best_tree(slow, model_bytes=PERNET_BYTES)
    of_hubs, faster = best_tree(replace(slow, hubs=hubs(4, 1000.0)), model_bytes=PERNET_BYTES)
    assert (of_workers.hubs, of_hubs.hubs) == (0, len(of_hubs.groups))
    assert faster.batch_s < told.batch_s / 2
    assert "hubs with up to" in faster.detail
    # One hub on a bad link would carry all of it.
    kept, same = best_tree(replace(slow, hubs=hubs(1, 2.0)), model_bytes=PERNET_BYTES)
    assert (kept, same) == (of_workers, told)


def test_a_hub_trains_nothing() -> None:
    """One worker under one hub: the model twice down, the training, the update twice up."""
    cluster = Cluster(leader=node("home", 80.0), workers=(node("w", 80.0, compute_s=3.0),), hubs=hubs(1, 80.0))
    told = predict_tree(cluster, split(cluster), model_bytes=1e7, hold_s=0.0)
    assert told.batch_s == pytest.approx(4 * 1.0 + 3.0)


def test_a_hub_has_a_name_of_its_own() -> None:
    with pytest.raises(Misuse, match="a name of its own"):
        replace(even(2, 20.0), hubs=(node("w00", 10.0),))
