"""An aggregator of sealed updates: it adds up words of the members that the leader names, and looks at nothing."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import PeerViolation
from shoal.roles.actions import Send
from shoal.roles.aggregator.aggregator import Aggregator
from shoal.roles.aggregator.sealed_tray import SealedTray
from shoal.roles.events import Received
from shoal.wire.messages import BadShard, Message, Reduce, ReduceResult, SetUpAggregator, ShardAck, UpdateShard

HEAD = {"job": "job", "term": 1, "formation": 2}


def piece(lease: int, group: int, words: np.ndarray) -> UpdateShard:
    return UpdateShard(**HEAD, lease=lease, version=3, group=group, tensors={"words": words})  # type: ignore[arg-type]


def words(*values: int, of: str = "<u4") -> np.ndarray:
    return np.array(values, dtype=of)


def test_words_are_added_modulo_what_a_word_holds() -> None:
    tray = SealedTray(2, 32)
    tray.take("a", piece(1, 7, words(2**32 - 1, 5)))
    tray.take("b", piece(2, 7, words(3, 6)))
    leases, total = tray.total(7, (1, 2))
    assert (leases, total.tolist()) == ((1, 2), [2, 11])
    short = SealedTray(1, 16)
    short.take("a", piece(1, 7, words(2**16 - 1, of="<u2")))
    short.take("b", piece(2, 7, words(2, of="<u2")))
    assert short.total(7, (1, 2))[1].tolist() == [1]


def test_a_sum_is_of_the_leases_that_the_leader_names_and_of_their_group() -> None:
    tray = SealedTray(1, 32)
    tray.take("a", piece(1, 7, words(1)))
    tray.take("b", piece(2, 7, words(10)))
    tray.take("c", piece(3, 8, words(100)))
    leases, total = tray.total(7, (1, 3, 4))
    assert (leases, total.tolist()) == ((1,), [1])
    # Pieces of that group are gone, and what comes of it later is not kept: nobody will ask for it.
    tray.take("d", piece(4, 7, words(1000)))
    assert tray.total(7, (1, 2, 4))[0] == ()
    assert tray.total(8, (3, 4)) == ((3,), words(100))


def test_an_update_that_is_sealed_anew_takes_the_place_of_what_it_was() -> None:
    tray = SealedTray(1, 32)
    tray.take("a", piece(1, 7, words(1)))
    tray.take("a", piece(1, 8, words(2)))
    # A late copy.
    tray.take("a", piece(1, 7, words(1)))
    assert tray.total(8, (1,))[1].tolist() == [2]


@pytest.mark.parametrize(
    "tensors",
    [
        {"words": words(1, 2, 3)},
        {"words": words(1, 2, of="<u2")},
        {"words": np.zeros(2, dtype=np.float32)},
        {"delta": np.zeros(2, dtype=np.float32)},
        {"words": words(1, 2), "seals": np.zeros(4, dtype=np.uint8)},
        {},
    ],
)
def test_what_is_no_piece_is_refused_before_anything_is_made_of_it(tensors: dict[str, np.ndarray]) -> None:
    shard = UpdateShard(**HEAD, lease=1, version=3, group=7, tensors=tensors)  # type: ignore[arg-type]
    with pytest.raises(PeerViolation):
        SealedTray(2, 32).take("a", shard)
    with pytest.raises(PeerViolation, match="of group 0"):
        SealedTray(2, 32).take("a", piece(1, 0, words(1, 2)))


def an_aggregator(kind: str) -> Aggregator:
    form = SetUpAggregator(
        **HEAD,  # type: ignore[arg-type]
        kind=kind,
        version=3,
        start=0,
        stop=2,
        members=("a", "b"),
        norm_max=1e-9,
        word_bits=32,
    )
    return Aggregator(form, node="z", leader="home")


def said(aggregator: Aggregator, sender: str, message: Message) -> list[Message]:
    actions = aggregator.handle(Received(sender=sender, message=message, size_bytes=8), 1.0)
    return [action.message for action in actions if isinstance(action, Send)]


@pytest.mark.parametrize("kind", ["tree", "shard"])
def test_an_aggregator_answers_for_words_and_sends_their_sum(kind: str) -> None:
    aggregator = an_aggregator(kind)
    # Whatever norm it was told: masked words have none.
    (taken,) = said(aggregator, "a", piece(1, 7, words(5, 6)))
    assert isinstance(taken, ShardAck)
    assert (taken.lease, taken.group) == (1, 7)
    assert said(aggregator, "stranger", piece(9, 7, words(5, 6))) == []
    (bad,) = said(aggregator, "b", piece(2, 7, words(5)))
    assert isinstance(bad, BadShard)
    assert bad.node == "b"
    count = Reduce(**HEAD, version=4, leases=(1, 2), weights=(1.0, 1.0), scales=(1.0, 1.0), last=True, group=7)  # type: ignore[arg-type]
    (result,) = said(aggregator, "home", count)
    assert isinstance(result, ReduceResult)
    assert (result.leases, result.group, result.bytes_up) == ((1,), 7, 24)
    assert list(result.tensors) == ["words"]
    assert result.tensors["words"].tolist() == [5, 6]


def test_the_words_of_a_member_that_left_stay_until_they_are_summed_up() -> None:
    aggregator = an_aggregator("tree")
    said(aggregator, "a", piece(1, 7, words(5, 6)))
    left = SetUpAggregator(**HEAD, kind="tree", version=3, start=0, stop=2, members=("b",), word_bits=32)  # type: ignore[arg-type]
    assert said(aggregator, "home", left) == []
    count = Reduce(**HEAD, version=4, leases=(1,), weights=(1.0,), scales=(1.0,), last=True, group=7)  # type: ignore[arg-type]
    (result,) = said(aggregator, "home", count)
    assert isinstance(result, ReduceResult)
    assert result.leases == (1,)
