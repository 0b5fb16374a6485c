"""The chain's benchmark on a few rounds: what it says must be so on any of them."""

from __future__ import annotations

from benchmarks.chain import broadcasts, decisions, energy, equal, unequal


def test_earliest_two_is_the_optimum_and_within_the_bound() -> None:
    found = equal(28)
    assert (found["instances"], found["optimal_share"], found["within_bound_share"]) == (28, 1.0, 1.0)
    assert found["instances_exact"] == 20, "of 3 to 16 devices, two each, those up to 12"
    assert 0 <= found["shorter_than_tree"] <= found["shorter_than_tree_in_step"]
    assert 0 <= found["shorter_than_ring"] < found["shorter_than_ring_returning"]


def test_nothing_is_better_than_the_optimum_where_links_differ() -> None:
    found = unequal(4, sizes=(3, 5, 7, 11))
    assert found["instances_unequal"] == 12
    assert 1.0 <= found["ratio_ahead_foretold"] <= found["mean_ratio_unequal"] <= 1.15
    assert found["mean_ratio_unequal"] < found["ratio_tree"] < found["ratio_ring"]


def test_energy_is_shared() -> None:
    ratio = energy(20)["variance_ratio_to_tree"]
    assert isinstance(ratio, float)
    # What is left over is a joule or two, whatever the rounds; the tree's grows with their square.
    assert 0 < ratio < 0.02


def test_the_way_back() -> None:
    assert broadcasts(3)["binomial_over_multicast_16"] == 4 / 15
    assert decisions(5)["decision_ms_1000"] > 0
