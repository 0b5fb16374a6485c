"""Updates in parts, compared before they are summed up: as a star does, at the cost of a round where it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from troupe import HOME, Troupe, plan_of

from shoal.compress.sparse import Sparse
from shoal.errors import PeerViolation
from shoal.learning.robust import gram, liars_borne, nearest_weights
from shoal.roles.leader.gathering.comparing import PRODUCTS, PRODUCTS_MAX_BYTES, ComparedRound, compared, products_bytes
from shoal.roles.leader.weighing import WeightsGiven
from shoal.trust import DEVICES_MAX
from shoal.wire.messages import Message, Reduce, ReduceResult, Update, UpdateShard

NODES = ("a", "b", "c", "d", "e")
LIAR = "e"


def turned(sender: str, to: str, message: Message) -> Message:
    """A device sends the opposite of what it found, and three times as much of it."""
    if sender == LIAR and isinstance(message, Update | UpdateShard) and message.tensors:
        return replace(message, tensors={"delta": -3 * message.tensors["delta"]})
    return message


def trained(
    topology: str, trust: str = "robust", *, lies: Callable[[str, str, Message], Message] = turned, **plan: Any
) -> Troupe:
    """Make some versions with four honest devices and a liar; in a shard, once the shard holds."""
    plan = {"momentum": 0.0, "worker_momentum": 0.0, **plan}
    troupe = Troupe(plan_of(topology=topology, trust=trust, workers_min=5, **plan), examples=400, parameters=40)
    troupe.lies = lies
    troupe.joins(*NODES)
    if topology != "star":
        troupe.forms()
    for _ in range(60):
        if troupe.leader.version >= 12:
            return troupe
        troupe.round()
        troupe.passes(0.6)
    raise AssertionError(f"stuck: {troupe.progress}")


def sums(troupe: Troupe) -> list[Reduce]:
    """What each version's aggregators were told to sum up."""
    told = {message.version: message for _, _, message in troupe.heard if isinstance(message, Reduce) and message.last}
    return [told[version] for version in sorted(told)]


def test_a_shard_weighs_as_a_star_to_a_millionth_and_makes_the_same_model() -> None:
    shard, star = trained("shard"), trained("star")
    assert shard.leader.topology.startswith("shard over")
    told = sums(shard)
    assert len(told) > 5
    worker = {row.lease: row.node for row in shard.rows}
    for count in told:
        rows = np.array([shard.made[lease].delta for lease in count.leases])
        rows[[worker[lease] == LIAR for lease in count.leases]] *= -3
        expected = nearest_weights(gram(rows), liars=liars_borne(len(rows), 0.2))
        weights = np.array(count.weights) * np.array(count.scales) / sum(count.weights)
        np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-6)
    # Leases have the same numbers in both, and an update is drawn from its number.
    for version in range(1, 11):
        np.testing.assert_allclose(shard.versions[version], star.versions[version], rtol=1e-5, atol=1e-5)
    assert shard.recorded("update.down-weighted") == star.recorded("update.down-weighted") != []
    assert all(told.startswith(f"{LIAR} is weighed down") for told in shard.recorded("update.down-weighted")[:3])
    views = {view.node: view.reason for view in shard.progress.workers}
    assert "weighed down in version" in views[LIAR]


@pytest.mark.parametrize("codec", ["bf16", "top30%"])
def test_what_is_compared_is_what_arrived(codec: str) -> None:
    shard, star = (
        trained(topology, lies=lambda sender, to, message: message, codec=codec, codec_down="dense")
        for topology in ("shard", "star")
    )
    for version in range(1, 11):
        np.testing.assert_allclose(shard.versions[version], star.versions[version], rtol=1e-4, atol=1e-4)


def test_a_shard_clips_as_a_star() -> None:
    shard, star = trained("shard", "robust(clip)"), trained("star", "robust(clip)")
    assert any(min(count.kept) < 1 for count in sums(shard))
    for version in range(1, 11):
        np.testing.assert_allclose(shard.versions[version], star.versions[version], rtol=1e-5, atol=1e-5)
    assert shard.recorded("update.down-weighted") == star.recorded("update.down-weighted") != []


def test_a_tree_cuts_as_a_star() -> None:
    tree, star = trained("tree", "robust(clip)"), trained("star", "robust(clip)")
    assert tree.leader.topology.startswith("tree")
    kept = [each for _, _, message in tree.heard if isinstance(message, Reduce) for each in message.kept]
    assert min(kept) < 0.9 < max(kept) == 1.0
    for version in range(1, 11):
        np.testing.assert_allclose(tree.versions[version], star.versions[version], rtol=1e-5, atol=1e-5)
    assert tree.recorded("update.down-weighted") == star.recorded("update.down-weighted") != []


@pytest.mark.parametrize("pace", ["async", "buffered"])
def test_a_tree_cuts_where_nobody_waits(pace: str) -> None:
    tree = trained("tree", "robust(clip)", pace=pace, buffer=3)
    assert any(told.startswith(f"{LIAR} is weighed down") for told in tree.recorded("update.down-weighted"))
    tree.finishes(epochs=2)
    tree.check_batches(2)


def test_an_aggregator_of_a_tree_that_tells_no_distance_is_given_up() -> None:
    tree = trained("tree", "robust(clip)")
    tree.drops = lambda sender, to, message: isinstance(message, ReduceResult) and bool(message.weighed)
    tree.round()
    tree.passes(60.0)
    assert any(
        "no sum came from" in told for told in (*tree.recorded("topology.changed"), *tree.recorded("topology.planned"))
    )
    tree.drops = lambda sender, to, message: False
    tree.finishes(epochs=2)
    tree.check_batches(2)


def test_a_member_that_joins_and_an_aggregator_that_is_lost_cost_no_batch() -> None:
    for trust in ("robust", "robust(clip)"):
        troupe = trained("shard", trust)
        troupe.round()
        troupe.loses("b")
        troupe.joins("f")
        troupe.finishes(epochs=3)
        troupe.check_batches(3)


def of_a_part(tensors: dict[str, np.ndarray]) -> Callable[[str, str, Message], Message]:
    """An aggregator lies about its products, once: the others are asked in vain."""
    told: list[str] = []

    def lies(sender: str, to: str, message: Message) -> Message:
        if isinstance(message, ReduceResult) and message.weighed and not told:
            told.append(sender)
            return replace(message, tensors=tensors)
        return message

    return lies


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {PRODUCTS: np.zeros(3)},
        {PRODUCTS: np.zeros(15, dtype=np.float32)},
        {PRODUCTS: np.full(15, np.nan)},
        {PRODUCTS: np.full(15, -1.0)},
        {PRODUCTS: np.ones(15), "mean": np.ones(2)},
    ],
)
def test_products_that_are_none_cost_a_round_and_no_batch(tensors: dict[str, np.ndarray]) -> None:
    troupe = trained("shard", lies=of_a_part(tensors))
    assert any(": it sent " in told for told in troupe.recorded("sum.rejected"))
    troupe.finishes(epochs=2)
    troupe.check_batches(2)


def test_a_sum_that_is_not_as_long_as_its_products_say_is_refused() -> None:
    told: list[str] = []

    def lies(sender: str, to: str, message: Message) -> Message:
        if isinstance(message, ReduceResult) and "mean" in message.tensors and not told:
            told.append(sender)
            return replace(message, tensors={"mean": 2 * message.tensors["mean"]})
        return message

    troupe = trained("shard", lies=lies)
    assert any("its products give" in record for record in troupe.recorded("sum.rejected"))
    troupe.finishes(epochs=2)
    troupe.check_batches(2)


def test_an_aggregator_that_does_not_answer_is_given_up() -> None:
    troupe = trained("shard")
    troupe.drops = lambda sender, to, message: isinstance(message, ReduceResult) and sender == "a"
    before = troupe.leader.version
    troupe.round()
    troupe.passes(60.0)
    assert any("no sum came from a in time" in told for told in troupe.recorded("topology.changed"))
    troupe.drops = lambda sender, to, message: False
    troupe.finishes(epochs=2)
    assert troupe.leader.version > before
    troupe.check_batches(2)


def test_a_copy_of_an_answer_changes_nothing() -> None:
    troupe = trained("shard")
    again = [(sender, m) for sender, to, m in troupe.heard if to == HOME and isinstance(m, ReduceResult) and m.weighed]
    for sender, message in again[-3:]:
        troupe._queue((sender, HOME), message)
    troupe.round()
    assert troupe.leader.topology.startswith("shard over")


def test_products_of_pieces() -> None:
    dense = np.array([1, 2, 0, 0], dtype=np.float32)
    sparse = Sparse(4, np.array([1, 3]), np.array([2, 5], dtype=np.float32))
    (packed,) = compared("nearest", [dense, sparse], [1.0, 0.5], None).values()
    # (1, 2, 0, 0) and (0, 1, 0, 2.5).
    assert packed.tolist() == [5.0, 2.0, 7.25]
    (far,) = compared("clip", [dense, sparse], [1.0, 0.5], np.ones(4, dtype=np.float32)).values()
    assert far.tolist() == [0 + 1 + 1 + 1, 1 + 0 + 1 + 2.25]
    assert products_bytes("nearest", DEVICES_MAX) == PRODUCTS_MAX_BYTES
    assert products_bytes("clip", 7) == 56


def test_a_sum_is_held_against_its_products() -> None:
    comparison = ComparedRound("nearest", (1, 3))
    comparison.add("a", {PRODUCTS: np.array([4.0, 0.0, 1.0])})
    assert comparison.total().tolist() == [[4.0, 0.0], [0.0, 1.0]]
    # Weights of a half each: a sum by examples would be of a quarter and three.
    comparison.verdict = WeightsGiven(("x", "y"), (2.0, 2 / 3))
    comparison.check_sum("a", np.array([1.0, 0.5], dtype=np.float32))
    with pytest.raises(PeerViolation, match="its products give"):
        comparison.check_sum("a", np.array([0.5, 0.75], dtype=np.float32))


def test_a_question_is_bounded() -> None:
    ones = (1.0,) * (DEVICES_MAX + 1)
    given: dict[str, Any] = {"job": "digits", "term": 1, "formation": 1, "version": 1}
    leases = tuple(range(1, DEVICES_MAX + 2))
    with pytest.raises(PeerViolation, match="257 pieces to compare; the maximum is 256"):
        Reduce(leases=leases, weights=ones, scales=ones, weigh="nearest", **given)
    with pytest.raises(PeerViolation, match=r"Reduce\.weigh is"):
        Reduce(weigh="median", **given)
    with pytest.raises(PeerViolation, match=r"Reduce\.weigh is"):
        Reduce(weigh="clip", last=True, **given)
    for kept in ((1.5,), (0.0,), (0.5, 0.5)):
        with pytest.raises(PeerViolation, match=r"Reduce\.kept must"):
            Reduce(leases=(1,), weights=(1.0,), scales=(1.0,), kept=kept, **given)
