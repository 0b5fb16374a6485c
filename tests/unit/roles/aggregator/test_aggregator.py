"""An aggregator: takes pieces, sums up those it is told to count, and gives values out."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pytest

from benchmarks.momentum_step import momentum_step
from shoal.errors import PeerViolation
from shoal.learning.outer import OuterState, outer_step
from shoal.learning.outer_rule import ADAPTIVE
from shoal.roles.actions import Action, End, Record, Send
from shoal.roles.aggregator.aggregator import Aggregator
from shoal.roles.events import Received, StopRequested, TimerFired
from shoal.wire.messages import (
    BadShard,
    Message,
    ModelShard,
    Reduce,
    ReduceResult,
    RelayModel,
    SetUpAggregator,
    ShardAck,
    UpdateShard,
)

M = TypeVar("M", bound=Message)
MEMBERS = ("a", "b", "c")


def array(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def form_of(kind: str, **changes: Any) -> SetUpAggregator:
    given: dict[str, Any] = {"start": 0, "stop": 2, "parameters": 2, "momentum": 0.5, "members": MEMBERS, "version": 4}
    return SetUpAggregator(job="digits", term=1, formation=3, kind=kind, **given | changes)


class Summing:
    """An aggregator on node b, and what it just said."""

    def __init__(self, kind: str = "tree", **changes: Any) -> None:
        self.form = form_of(kind, **changes)
        self.sub = Aggregator(self.form, node="b", leader="home")
        self.actions: list[Action] = []

    def hears(self, sender: str, message: Message) -> list[Action]:
        self.actions = self.sub.handle(Received(sender=sender, message=message), 0.0)
        return self.actions

    def piece(self, member: str, lease: int, *values: float) -> list[Action]:
        given: dict[str, Any] = {"job": "digits", "term": 1, "formation": 3, "version": 4}
        return self.hears(member, UpdateShard(lease=lease, tensors={"delta": array(*values)}, **given))

    def count(self, *leases: int, weights: tuple[float, ...] = (), last: bool = False, **changes: Any) -> list[Action]:
        ones = (1.0,) * len(leases)
        given: dict[str, Any] = {"weights": weights or ones, "scales": ones, "version": 5}
        given |= {"job": "digits", "term": 1, "formation": 3}
        return self.hears("home", Reduce(leases=leases, last=last, **given | changes))

    def said(self, kind: type[M]) -> list[tuple[str, M]]:
        sent = [action for action in self.actions if isinstance(action, Send)]
        return [(action.to, action.message) for action in sent if isinstance(action.message, kind)]

    def sum(self) -> ReduceResult:
        ((to, gathered),) = self.said(ReduceResult)
        assert to == "home"
        return gathered


# Pieces -----------------------------------------------------------------------------------------------------------


def test_a_piece_is_taken_and_its_worker_hears_so() -> None:
    summing = Summing()
    summing.piece("a", 7, 1, 2)
    assert summing.said(ShardAck) == [("a", ShardAck(job="digits", term=1, formation=3, lease=7))]
    assert len(summing.actions) == 1


def test_the_memory_a_piece_came_in_is_free_afterwards() -> None:
    summing = Summing()
    came_in = array(1, 2)
    piece = UpdateShard(job="digits", term=1, formation=3, lease=7, version=4, tensors={"delta": came_in})
    summing.hears("a", piece)
    came_in[:] = 99
    summing.count(7, last=True)
    assert summing.sum().tensors["mean"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ((1, np.nan), "1 values that are not finite"),
        ((1, np.inf), "1 values that are not finite"),
        ((1, 2, 3), "the model is float32 (2,)"),
        ((1e10, 1), "norm is 1e+10"),
    ],
)
def test_what_is_no_piece_is_told_to_the_leader_and_counts_nowhere(values: tuple[float, ...], why: str) -> None:
    summing = Summing()
    summing.piece("a", 7, *values)
    ((to, spoilt),) = summing.said(BadShard)
    assert (to, spoilt.lease, spoilt.node, spoilt.formation) == ("home", 7, "a", 3)
    assert why in spoilt.reason
    assert not summing.said(ShardAck)
    assert [action.kind for action in summing.actions if isinstance(action, Record)] == ["update.invalid"]
    summing.count(7, last=True)
    assert summing.sum().leases == ()


def test_a_piece_under_another_name_or_none_is_spoilt() -> None:
    summing = Summing()
    for tensors in ({}, {"mean": array(1, 2)}, {"delta": np.zeros(2)}):
        summing.hears("a", UpdateShard(job="digits", term=1, formation=3, lease=7, version=4, tensors=tensors))
        assert summing.said(BadShard)


def test_one_who_is_no_member_is_not_heard() -> None:
    summing = Summing()
    assert summing.piece("stranger", 7, 1, 2) == []
    summing.hears("home", form_of("tree", members=("a", "b", "stranger")))
    assert summing.piece("c", 8, 1, 2) == [], "nor is one who was"
    summing.piece("stranger", 7, 1, 2)
    assert summing.said(ShardAck)


def test_a_piece_that_is_sent_again_counts_once() -> None:
    summing = Summing()
    summing.piece("a", 7, 1, 2)
    summing.piece("a", 7, 1, 2)
    assert summing.said(ShardAck)
    summing.count(7)
    summing.piece("a", 7, 1, 2)
    assert summing.said(ShardAck), "the first answer was lost"
    summing.count(7, last=True)
    assert (summing.sum().leases, summing.sum().weight) == ((7,), 1.0)
    assert summing.sum().tensors["mean"].tolist() == [1, 2]


def test_a_member_has_one_piece_here_at_a_time() -> None:
    summing = Summing()
    summing.piece("a", 7, 1, 2)
    summing.piece("a", 8, 3, 4)
    summing.count(7, 8, last=True)
    assert summing.sum().leases == (8,)
    assert summing.sum().tensors["mean"].tolist() == [3, 4]


# Sums -------------------------------------------------------------------------------------------------------------


def test_a_sum_is_the_weighted_mean_of_what_was_counted() -> None:
    summing = Summing()
    for lease, member in enumerate(MEMBERS, start=1):
        summing.piece(member, lease, lease, 10 * lease)
    assert summing.count(1, weights=(6.0,)) == []
    assert summing.count(3, weights=(2.0,)) == []
    summing.count(last=True)
    gathered = summing.sum()
    assert (gathered.leases, gathered.weight, gathered.version, gathered.formation) == ((1, 3), 8.0, 5, 3)
    # (6·1 + 2·3) / 8: lease 2 was not counted.
    assert gathered.tensors["mean"].tolist() == [1.5, 15.0]


def test_a_late_piece_is_worth_its_scale() -> None:
    summing = Summing()
    summing.piece("a", 1, 4, 4)
    summing.piece("b", 2, 2, 2)
    summing.count(1, 2, weights=(1.0, 3.0), scales=(0.5, 1.0), last=True)
    # (0.5·1·4 + 3·2) / (1 + 3)
    assert summing.sum().tensors["mean"].tolist() == [2.0, 2.0]
    assert summing.sum().weight == 4.0


def test_each_sum_begins_anew_and_what_was_not_counted_waits_in_a_tree() -> None:
    summing = Summing()
    summing.piece("a", 1, 1, 1)
    summing.piece("b", 2, 2, 2)
    summing.count(1, last=True)
    assert summing.sum().leases == (1,)
    summing.count(2, last=True)
    assert (summing.sum().leases, summing.sum().weight) == ((2,), 1.0)
    assert summing.sum().tensors["mean"].tolist() == [2.0, 2.0]


def test_a_sum_of_nothing_says_so() -> None:
    summing = Summing()
    summing.count(7, last=True)
    gathered = summing.sum()
    assert (gathered.leases, gathered.weight, dict(gathered.tensors)) == ((), 0.0, {})
    assert len(summing.actions) == 1, "and nothing is given out"


def test_a_sum_does_not_change_while_it_is_sent() -> None:
    summing = Summing()
    summing.piece("a", 1, 1, 1)
    summing.count(1, last=True)
    mean = summing.sum().tensors["mean"]
    assert not mean.flags.writeable
    summing.piece("a", 2, 5, 5)
    summing.count(2, last=True)
    assert mean.tolist() == [1.0, 1.0]


def test_in_a_tree_pieces_of_those_who_are_gone_are_let_go_of() -> None:
    summing = Summing()
    summing.piece("a", 1, 1, 1)
    summing.piece("c", 2, 2, 2)
    summing.count(1)
    summing.hears("home", form_of("tree", members=("b",)))
    summing.count(2, last=True)
    assert summing.sum().leases == (1,), "what was counted stays in the sum"


# Values -----------------------------------------------------------------------------------------------------------


def test_in_a_tree_a_model_is_passed_on_to_everyone_after_the_aggregator_first() -> None:
    summing = Summing()
    came_in = array(1, 2)
    summing.hears("home", RelayModel(job="digits", term=1, formation=3, version=9, tensors={"model": came_in}))
    came_in[:] = 99
    values = summing.said(ModelShard)
    # b begins with those after it: of several aggregators each begins with another.
    assert [to for to, _ in values] == ["c", "a", "b"]
    assert {(v.version, v.start, v.stop, v.formation) for _, v in values} == {(9, 0, 2, 3)}
    assert all(v.tensors["model"].tolist() == [1, 2] for _, v in values)
    assert not values[0][1].tensors["model"].flags.writeable


def test_a_model_of_another_size_is_not_passed_on() -> None:
    summing = Summing()
    with pytest.raises(PeerViolation, match="the model is float32"):
        summing.hears("home", RelayModel(job="digits", term=1, formation=3, version=9, tensors={"model": array(1)}))


def sharded(**changes: Any) -> Summing:
    """Of a model of seven values, of which four are parameters, values 3 to 5: one parameter, one buffer."""
    given: dict[str, Any] = {"start": 3, "stop": 5, "parameters": 1} | changes
    summing = Summing("shard", **given)
    part = {"model": array(10, 20), "velocity": array(2)}
    summing.hears("home", form_of("shard", tensors=part, **given))
    return summing


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_in_a_shard_the_step_is_taken_here(momentum: float) -> None:
    summing = sharded(momentum=momentum)
    model, velocity = array(10, 20), array(2)
    for version in (5, 6):
        for lease, member in enumerate(MEMBERS, start=3 * version):
            summing.piece(member, lease, lease, 1)
        summing.count(*range(3 * version, 3 * version + 3), version=version, last=True)
        mean = summing.sum().tensors["mean"]
        assert mean.tolist() == [3 * version + 1, 1]
        model, velocity = momentum_step(model, velocity, mean, momentum=momentum, parameters_size=1)
        values = summing.said(ModelShard)
        assert [to for to, _ in values] == ["c", "a", "b"]
        assert {(v.version, v.start, v.stop) for _, v in values} == {(version, 3, 5)}
        assert values[0][1].tensors["model"].tobytes() == model.tobytes()
    # By hand, with momentum 0.5: 10 + (1 + 16) = 27, then 27 + (8.5 + 19) = 54.5; the buffer has none.
    assert model.tolist() == ([54.5, 22.0] if momentum else [45.0, 22.0])


@pytest.mark.parametrize("kind", ADAPTIVE)
@pytest.mark.parametrize("codec_down", ["dense", "top100%"])
def test_in_a_shard_an_adaptive_step_goes_on_from_the_squares_it_is_given(kind: str, codec_down: str) -> None:
    step = {"outer": kind, "outer_rate": 0.01, "weight_decay": 0.5, "inner_rate": 0.1, "outer_steps": 7}
    given: dict[str, Any] = {"start": 3, "stop": 5, "parameters": 1, "momentum": 0.5, "codec_down": codec_down} | step
    given |= {"sizes": (2,), "entries": 2} if codec_down != "dense" else {}
    summing = Summing("shard", **given)
    part = {"model": array(10, 20), "velocity": array(2), "second": array(9), "residual": array(1, 0)}
    summing.hears("home", form_of("shard", tensors=part, **given))
    rule, state = summing.form.outer_rule, OuterState(array(2), array(9), 7)
    held_back = part["residual"] if codec_down != "dense" else array(0, 0)
    for version, rate in ((5, 0.0), (6, 0.004)):
        for lease, member in enumerate(MEMBERS, start=3 * version):
            summing.piece(member, lease, 1, 1)
        summing.count(*range(3 * version, 3 * version + 3), version=version, last=True, outer_rate=rate)
        weights = (part["model"] + held_back)[:1]
        change, state = outer_step(rule, state, array(1, 1), rate=rate, weights=weights)
        part["model"], held_back = part["model"] + (held_back + change), array(0, 0)
        (_, values), *_ = summing.said(ModelShard)
        if codec_down == "dense":
            assert values.tensors["model"].tobytes() == part["model"].tobytes()
    assert state.steps == 9
    model = summing.sub._model
    assert model is not None
    assert np.abs(model - part["model"]).max() < 1e-5


def test_an_adaptive_part_without_its_squares_is_not_whole() -> None:
    summing = Summing("shard", outer="adam")
    with pytest.raises(PeerViolation):
        summing.hears("home", form_of("shard", outer="adam", tensors={"model": array(1, 2), "velocity": array(1, 2)}))


@pytest.mark.parametrize(
    "wrong",
    [
        {"outer": "lion"},
        {"outer_rate": float("nan")},
        {"momentum": 1.0},
        {"outer_beta2": 1.0},
        {"outer_epsilon": 0.0},
        {"weight_decay": -1.0},
        {"inner_rate": 0.0},
        {"outer_steps": -1},
    ],
)
def test_a_step_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PeerViolation):
        form_of("shard", **wrong)


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_a_step_that_goes_nowhere_known_is_refused(rate: float) -> None:
    with pytest.raises(PeerViolation):
        Summing().count(1, outer_rate=rate)


def test_in_a_shard_what_was_not_counted_is_of_no_version() -> None:
    summing = sharded()
    summing.piece("a", 1, 1, 1)
    summing.piece("b", 2, 2, 2)
    summing.count(1, last=True)
    summing.count(2, version=6, last=True)
    assert summing.sum().leases == ()
    assert not summing.said(ModelShard)


def test_in_a_shard_the_pieces_of_those_who_are_gone_still_count() -> None:
    summing = sharded()
    summing.piece("a", 1, 1, 1)
    summing.hears("home", form_of("shard", start=3, stop=5, parameters=1, members=("b", "c")))
    summing.count(1, last=True)
    assert summing.sum().leases == (1,)
    assert [to for to, _ in summing.said(ModelShard)] == ["c", "b"], "and they get no values"


def test_a_shard_that_does_not_know_where_its_part_stands_sums_up_nothing() -> None:
    summing = Summing("shard")
    summing.piece("a", 1, 1, 1)
    summing.count(1, last=True)
    assert (summing.sum().leases, dict(summing.sum().tensors)) == ((), {})
    assert not summing.said(ModelShard)


@pytest.mark.parametrize("tensors", [{"model": array(1, 2)}, {"model": array(1), "velocity": array(1, 2)}])
def test_a_part_that_is_not_whole_is_refused(tensors: dict[str, np.ndarray]) -> None:
    summing = Summing("shard")
    with pytest.raises(PeerViolation):
        summing.hears("home", form_of("shard", tensors=tensors))


def test_it_ends_when_it_is_told_to_and_ignores_what_is_not_for_it() -> None:
    summing = Summing()
    assert summing.sub.formation == 3
    assert summing.sub.handle(StopRequested(reason="over"), 0.0) == [End(reason="over")]
    assert summing.sub.handle(TimerFired(name="tick"), 0.0) == []
    assert summing.hears("home", ShardAck(job="digits", term=1, formation=3, lease=1)) == []


def test_a_piece_longer_than_the_leader_allows_is_spoilt() -> None:
    summing = Summing(norm_max=10.0)
    summing.piece("a", 7, 6, 8)
    assert summing.said(ShardAck)
    summing.piece("c", 8, 6, 8.1)
    ((_, spoilt),) = summing.said(BadShard)
    assert spoilt.reason == "an update of norm 10.1, far from what is usual; 10 may be"
    # What is usual changes: the next count says what it is now.
    summing.count(7, norm_max=20.0)
    summing.piece("c", 9, 6, 8.1)
    assert summing.said(ShardAck)


def test_a_sum_tells_what_went_between_devices() -> None:
    summing = Summing("shard", norm_max=0.0)
    model = {"model": array(0, 0), "velocity": array(0, 0)}
    summing.hears("home", form_of("shard", tensors=model))
    piece = UpdateShard(job="digits", term=1, formation=3, lease=7, version=4, tensors={"delta": array(1, 2)})
    summing.sub.handle(Received(sender="a", message=piece, size_bytes=123), 0.0)
    summing.count(7, last=True)
    told = summing.sum()
    # Its part of the next version is 8 bytes to each member.
    assert (told.bytes_up, told.bytes_down) == (123, 8 * len(MEMBERS))
    summing.count(last=True)
    assert (summing.sum().bytes_up, summing.sum().bytes_down) == (0, 0), "since the last sum"


def test_what_was_measured_of_a_member_that_left_still_counts() -> None:
    """The leader says how much of an update counts once it has heard how far it is; its device may be gone by then."""
    summing = Summing()
    summing.hears("home", form_of("tree", tensors={"centre": array(0, 0)}))
    summing.piece("a", 7, 1, 2)
    summing.piece("c", 8, 3, 4)
    summing.count(7, weigh="clip")
    summing.hears("home", form_of("tree", members=("b",)))
    summing.count(7, kept=(1.0,))
    summing.count(8)
    summing.count(last=True)
    assert summing.sum().leases == (7,), "the other was not asked about: it is gone with its member"
