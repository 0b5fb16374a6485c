"""A leader and its aggregators, as stories: whole rounds, and what becomes of them when someone is lost in between.

The roles are all real and share a troupe (see ``tests/kits``), which also sees to it that nobody trains anything but
the version its lease names, bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from troupe import HOME, Troupe, plan_of

from shoal.compress.codec import Codec
from shoal.plan import Until
from shoal.roles.events import Liveness, PeerChanged, Received
from shoal.roles.leader.gathering.formations import FORM_S, GATHER_S
from shoal.roles.worker.delivery import TAKEN_FIRST_S
from shoal.wire.coded import code, sizes_of
from shoal.wire.messages import (
    AggregatorReady,
    BadShard,
    Go,
    Message,
    ModelShard,
    Reduce,
    ReduceResult,
    RelayModel,
    Release,
    Route,
    Routed,
    SetUpAggregator,
    ShardAck,
    TearDown,
    Update,
    UpdateRefused,
    UpdateShard,
    Wait,
    Work,
)

KINDS = ("tree", "shard")


def formed(kind: str, *nodes: str, examples: int = 200, **plan: Any) -> Troupe:
    """A troupe of which a formation holds, at the beginning of a version."""
    troupe = Troupe(plan_of(**{"topology": kind, "aggregators": 2, **plan}), examples=examples)
    troupe.joins(*(nodes or ("a", "b", "c", "d")))
    troupe.forms()
    troupe.talks()
    troupe.heard.clear()
    return troupe


def reported(troupe: Troupe) -> int:
    """Everyone has trained, and the leader knows that each piece is where it belongs; nobody sums up yet."""
    version = troupe.leader.version
    for node in troupe.at_work():
        troupe.now_s += 0.01
        troupe.trains(node)
    asked = [Reduce, ReduceResult]
    while lines := [line for line in troupe.waiting() if type(troupe.lines[line][0]) not in asked]:
        troupe.hears(lines[0])
    assert troupe.leader.version == version
    return version


def says(troupe: Troupe, node: str, message: Message) -> None:
    """What this node's roles would not say by themselves."""
    troupe._leads(Received(sender=node, message=message))


def shape(troupe: Troupe) -> str:
    return troupe.progress.topology


def checked(troupe: Troupe) -> None:
    """To the end of the epoch and over it: every batch once, every version the mean of its leases."""
    troupe.finishes(epochs=1)
    troupe.check_batches(1)
    troupe.check_versions()


# Whole rounds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_what_a_star_makes_of_the_same_updates(kind: str, momentum: float) -> None:
    # Seven batches, of which the last is short: weights differ.
    troupes = [
        Troupe(plan_of(topology=shape, momentum=momentum, aggregators=2), examples=27) for shape in ("star", kind)
    ]
    for troupe in troupes:
        troupe.joins("a", "b", "c", "d")
        for _ in range(30):
            troupe.round()
            troupe.passes(0.6)
    star, other = troupes
    assert shape(star) == "star"
    assert shape(other) == {"tree": "tree 1-2-4", "shard": "shard over 4 of 4 workers"}[kind]
    assert star.leader.version == other.leader.version > 12
    assert sorted({(row.lease, row.version) for row in star.rows}) == sorted({(r.lease, r.version) for r in other.rows})
    np.testing.assert_allclose(other.leader.model, star.leader.model, rtol=1e-6, atol=1e-5)
    other.check_versions()


def test_a_round_of_a_tree_word_by_word() -> None:
    troupe = formed("tree")
    troupe.round()
    # Each worker sends one piece, each aggregator one sum, and gets one model for all of its group.
    assert sorted((one, to) for one, to, m in troupe.heard if isinstance(m, UpdateShard)) == [
        ("a", "a"),
        ("b", "b"),
        ("c", "a"),
        ("d", "b"),
    ]
    assert sorted(one for one, to, m in troupe.heard if isinstance(m, ReduceResult)) == ["a", "b"]
    assert sorted(to for _, to, m in troupe.heard if isinstance(m, RelayModel)) == ["a", "b"]
    assert len([m for _, to, m in troupe.heard if isinstance(m, ModelShard)]) == 4
    updates = [m for _, to, m in troupe.heard if isinstance(m, Update)]
    assert [(update.formation, dict(update.tensors)) for update in updates] == [(1, {})] * 4
    works = [m for _, to, m in troupe.heard if isinstance(m, Work)]
    assert [(work.formation, work.values_by, dict(work.tensors)) for work in works] == [(1, 1, {})] * 4


def test_a_round_of_a_shard_word_by_word() -> None:
    troupe = formed("shard")
    troupe.round()
    kinds = troupe.kinds()
    assert {kind: kinds.count(kind) for kind in kinds} == {
        **{
            "UpdateReady": 4,
            "UpdateShard": 16,
            "ShardAck": 16,
            "Update": 4,
            "Reduce": 4,
            "ReduceResult": 4,
            "ModelShard": 16,
            "Work": 4,
        },
    }
    works = [m for _, to, m in troupe.heard if isinstance(m, Work)]
    assert [(work.formation, work.values_by, dict(work.tensors)) for work in works] == [(1, 1, {})] * 4
    counts = [m for _, to, m in troupe.heard if isinstance(m, Reduce)]
    assert len({count.leases for count in counts}) == 1, "every part of a version is of the same leases"


@pytest.mark.parametrize("kind", KINDS)
def test_a_leader_is_sent_no_update_and_sends_few_models(kind: str) -> None:
    troupe = formed(kind)
    before = troupe.progress.bytes_down
    troupe.round()
    whole_bytes = troupe.leader.model.nbytes
    brings = [array for _, to, m in troupe.heard if isinstance(m, RelayModel | Work) for array in m.tensors.values()]
    assert sum(array.nbytes for array in brings) / whole_bytes == {"tree": 2, "shard": 0}[kind]
    # What devices give out to one another is told too: each of four gets the model once.
    models = (troupe.progress.bytes_down - before) / whole_bytes
    assert models == {"tree": 2 + 4, "shard": 4}[kind]


@pytest.mark.parametrize("pace", ["async", "buffered"])
def test_in_a_tree_without_waiting_groups_wait_for_nobody_but_their_own(pace: str) -> None:
    troupe = formed("tree", pace=pace, buffer=1)
    version = troupe.leader.version
    for node in ("a", "c"):
        troupe.trains(node)
    troupe.talks()
    assert troupe.leader.version == version + 1, "b and d have not trained yet"
    assert sorted(to for _, to, m in troupe.heard if isinstance(m, Work)) == ["a", "c"]
    troupe.trains("a")
    troupe.talks()
    assert troupe.leader.version == version + 1, "a waits for c"
    troupe.trains("b")
    troupe.trains("d")
    troupe.talks()
    assert troupe.leader.version == version + 2
    assert troupe.progress.staleness_max >= 1
    checked(troupe)


def test_a_tree_that_waits_makes_one_version_of_all() -> None:
    troupe = formed("tree")
    version = troupe.leader.version
    for node in ("a", "c"):
        troupe.trains(node)
    troupe.talks()
    assert "ReduceResult" in troupe.kinds(), "the group is done, and its sum is on its way before the other is"
    assert troupe.leader.version == version
    for node in ("b", "d"):
        troupe.trains(node)
    troupe.talks()
    assert troupe.leader.version == version + 1
    checked(troupe)


def test_an_evaluation_in_a_formation_needs_no_model_twice() -> None:
    troupe = Troupe(plan_of(topology="shard"), examples=60, test=100)
    troupe.joins("a", "b", "c")
    troupe.finishes(epochs=9)
    assert shape(troupe) == "shard over 3 of 3 workers"
    exams = [m for _, to, m in troupe.heard if isinstance(m, Work) and m.kind == "evaluate"]
    assert exams
    assert all(work.formation == 0 for work in exams)
    troupe.check_versions()


# Aggregators are lost ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregator_lost_while_they_train(kind: str) -> None:
    troupe = formed(kind)
    version = troupe.leader.version
    troupe.loses("b")
    assert troupe.recorded("topology.planned")[-1].startswith(
        {"tree": "tree 1-2-3", "shard": "shard over 3 of 3 workers"}[kind]
        + ": regrouping devices: b, an aggregator, is gone: silent for 8.0 s"
    )
    troupe.round()
    assert shape(troupe) == {"tree": "tree 1-2-3", "shard": "shard over 3 of 3 workers"}[kind]
    assert troupe.leader.version == version + 1
    assert {row.node for row in troupe.rows if row.version == version + 1} == {"a", "c", "d"}
    assert not [m for _, to, m in troupe.heard if isinstance(m, UpdateRefused)], (
        "what they trained is not trained again"
    )
    checked(troupe)


@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregator_lost_after_the_sums_were_asked_for(kind: str) -> None:
    troupe = formed(kind)
    version = reported(troupe)
    assert [line for line in troupe.waiting() if isinstance(troupe.lines[line][-1], Reduce)]
    # One sum has come, the other never will.
    troupe.hears((HOME, "a"))
    troupe.loses("b")
    troupe.talks()
    assert troupe.leader.version == version + 1
    applied = [row for row in troupe.rows if row.version == version + 1]
    assert {row.node for row in applied} == {"a", "c", "d"}
    # Those who had delivered before deliver again, to others: nobody trains twice.
    assert {go.formation for go in troupe.told("c", Go)} == {2}
    checked(troupe)


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_that_some_of_the_lost_had_goes_to_the_next_in_whole(kind: str) -> None:
    troupe = formed(kind)
    troupe.trains("d")
    troupe.hears(("d", "b"))
    troupe.loses("b")
    troupe.talks()
    # It asks where to, since nobody may remember its lease; and hears it twice.
    assert {go.formation for go in troupe.told("d", Go)} == {2}
    assert not troupe.recorded("update.rejected")
    checked(troupe)


def test_who_delivers_again_is_lent_nothing_else_meanwhile() -> None:
    """Where nobody waits for anybody, it would be: and what it has would be lost."""
    troupe = formed("tree", *"abcde", pace="async")
    troupe.round()
    (lease,) = troupe.leader._training.ledger.held_by("c")
    troupe.heard.clear()
    troupe.trains("c")
    troupe.talks()
    assert troupe.leader._formations.has_arrived(lease.id)
    troupe.loses("b")
    troupe.talks()
    assert shape(troupe) == "tree 1-2-4"
    assert troupe.leader._formations.has_arrived(lease.id), "again, with another"
    assert not troupe.told("c", Work)
    assert [one.id for one in troupe.leader._training.ledger.held_by("c")] == [lease.id]
    checked(troupe)


def test_one_whose_update_can_reach_nobody_may_train_for_that_version_again() -> None:
    troupe = formed("shard", *"abcde")
    version = troupe.leader.version
    (lease,) = troupe.leader._training.ledger.held_by("d")
    troupe.trains("d")
    troupe.talks()
    troupe.walls = {("d", "c")}
    troupe.cuts("d", "c")
    troupe.loses("b")
    troupe.talks()
    troupe.passes(FORM_S)
    troupe.talks()
    assert shape(troupe) == "shard over 4 of 4 workers"
    assert troupe.leader._training.ledger.get(lease.id) is None, "not every part would have it"
    assert troupe.told("d", Wait)[-1].reason == "does not reach c that leads a share of the model"
    troupe.walls.clear()
    troupe.cuts("d", "c")
    troupe.talks()
    assert [work.version for work in troupe.told("d", Work)] == [version]
    checked(troupe)


@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregator_that_does_not_answer_is_replaced(kind: str) -> None:
    troupe = formed(kind, lease_s=5.0)
    version = reported(troupe)
    del troupe.lines[(HOME, "b")]
    troupe.talks()
    assert troupe.leader.version == version
    troupe.passes(GATHER_S + 1.0)
    troupe.talks()
    assert troupe.leader.version == version + 1
    # It works on, and leads nothing for a while.
    now = troupe.leader._formations.now
    assert now is not None
    assert "b" not in now.aggregators
    assert "b" in now.members
    assert "no sum came from b in time" in now.reason
    checked(troupe)


@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregator_that_is_suspect_is_done_without(kind: str) -> None:
    troupe = formed(kind)
    version = troupe.leader.version
    troupe._leads(PeerChanged(node="b", state=Liveness.SUSPECT, reason="silent for 3.0 s"))
    told = troupe.recorded("topology.planned")[-1]
    assert told.startswith({"tree": "tree 1-2-3", "shard": "shard over 3 of 3 workers"}[kind])
    assert "b, an aggregator, is suspect: silent for 3.0 s" in told
    # It was there all the time: its update counts, and it has a place as a worker.
    troupe._leads(PeerChanged(node="b", state=Liveness.ALIVE, reason="heard"))
    troupe.round()
    assert troupe.leader.version == version + 1
    assert {row.node for row in troupe.rows if row.version == version + 1} == {"a", "b", "c", "d"}
    now = troupe.leader._formations.now
    assert now is not None
    assert "b" not in now.aggregators
    assert "b" in now.members
    checked(troupe)


def test_a_suspect_that_leads_nothing_leaves_the_formation_alone() -> None:
    troupe = formed("tree")
    now = troupe.leader._formations.now
    troupe._leads(PeerChanged(node="d", state=Liveness.SUSPECT, reason="silent for 3.0 s"))
    assert troupe.recorded("worker.suspected") == ["d: silent for 3.0 s"]
    troupe.round()
    assert troupe.leader._formations.now is now
    checked(troupe)


@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregator_that_does_not_take_pieces_is_done_without(kind: str) -> None:
    troupe = formed(kind, "a", "b", "c", "d", "e", "f")
    version = troupe.leader.version
    for node in troupe.at_work():
        troupe.trains(node)
    # It hears nobody: what was sent to it is lost.
    silent = [line for line in troupe.lines if line[1] == "b" and line[0] != HOME]
    assert len(silent) == {"tree": 3, "shard": 6}[kind]
    for line in silent:
        del troupe.lines[line]
    troupe.talks()
    assert troupe.leader.version == version
    troupe.passes(TAKEN_FIRST_S + 1.0)
    troupe.talks()
    now = troupe.leader._formations.now
    assert now is not None
    assert "b did not answer the workers that sent updates there" in now.reason
    assert "b" not in now.aggregators
    assert troupe.leader.version == version + 1
    assert not [m for _, to, m in troupe.heard if isinstance(m, UpdateRefused)], (
        "what they trained is not trained again"
    )
    checked(troupe)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_that_is_not_what_was_asked_for_is_not_merged(kind: str) -> None:
    troupe = formed(kind)
    version = reported(troupe)
    while troupe.lines[(HOME, "b")]:
        troupe.hears((HOME, "b"))
    sums = troupe.lines[("b", HOME)]
    gathered = sums.popleft()
    assert isinstance(gathered, ReduceResult)
    sums.appendleft(replace(gathered, weight=gathered.weight + 1, tensors=gathered.tensors))
    troupe.talks()
    assert troupe.recorded("sum.rejected")[0].startswith("b: ReduceResult.weight is")
    assert troupe.leader.version == version + 1
    now = troupe.leader._formations.now
    assert now is not None
    assert "b" not in now.aggregators
    checked(troupe)


def test_a_late_sum_of_a_formation_that_is_over_changes_nothing() -> None:
    troupe = formed("shard", lease_s=5.0)
    reported(troupe)
    held_back = [troupe.lines.pop(("b", HOME), None), troupe.lines.pop((HOME, "b"))][1]
    troupe.talks()
    troupe.passes(GATHER_S + 1.0)
    for message in held_back:
        troupe._node_hears(HOME, "b", message)
    checked(troupe)


@pytest.mark.parametrize("kind", KINDS)
def test_where_too_few_are_left_it_is_a_star_and_nothing_is_trained_twice(kind: str) -> None:
    nodes = {"tree": ("a", "b", "c"), "shard": ("a", "b")}[kind]
    troupe = formed(kind, *nodes)
    version = reported(troupe)
    troupe.loses("a")
    troupe.talks()
    assert shape(troupe) == "star"
    assert troupe.leader.version == version + 1
    assert [go.formation for go in troupe.told("b", Go)][:1] == [0]
    whole = [m for _, to, m in troupe.heard if isinstance(m, Update) and m.tensors]
    assert {m.version for m in whole} >= {version}
    checked(troupe)


def test_an_aggregator_that_is_back_is_one_again() -> None:
    troupe = formed("shard", "a", "b", "c")
    troupe.loses("b")
    troupe.round()
    assert shape(troupe) == "shard over 2 of 2 workers"
    troupe.joins("b")
    for _ in range(8):
        troupe.round()
        troupe.passes(0.6)
    assert shape(troupe) == "shard over 3 of 3 workers", "a third of them led nothing"
    checked(troupe)


@pytest.mark.parametrize("kind", KINDS)
def test_everyone_is_lost_and_comes_back(kind: str) -> None:
    troupe = formed(kind)
    reported(troupe)
    for node in ("a", "b", "c", "d"):
        troupe.loses(node)
    troupe.passes(3.0)
    troupe.joins("a", "b", "c", "d")
    checked(troupe)


# Workers are lost ------------------------------------------------------------------------------------------------


def of_two_groups() -> Troupe:
    """A tree in which a and b lead, c works for a, d and e for b."""
    return formed("tree", "a", "b", "c", "d", "e")


def test_a_worker_lost_before_it_delivered_is_not_in_the_version() -> None:
    troupe = of_two_groups()
    version = troupe.leader.version
    troupe.loses("e")
    troupe.round()
    assert {row.node for row in troupe.rows if row.version == version + 1} == {"a", "b", "c", "d"}
    assert shape(troupe) == "tree 1-2-4", "the formation holds"
    checked(troupe)


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_arrived_counts_although_its_worker_is_gone(kind: str) -> None:
    troupe = formed(kind, *"abcde", aggregators=2)
    if kind == "shard":
        # One who leads nothing.
        troupe = Troupe(plan_of(topology=kind), examples=200, rates=dict.fromkeys("abcd", 1e7) | {"e": 1e4})
        troupe.joins(*"abcde")
        troupe.forms()
        troupe.talks()
        assert shape(troupe) == "shard over 4 of 5 workers"
    version = troupe.leader.version
    (lease,) = troupe.leader._training.ledger.held_by("e")
    troupe.trains("e")
    troupe.talks()
    troupe.loses("e")
    assert troupe.leader._formations.has_arrived(lease.id)
    troupe.round()
    assert troupe.leader.version == version + 1
    assert lease.id in {row.lease for row in troupe.rows if row.version == version + 1}
    checked(troupe)


@pytest.mark.parametrize("kind", KINDS)
def test_one_who_is_lost_and_back_while_its_update_waits_to_be_summed_up_works_on(kind: str) -> None:
    """Its process lives: what was lost is the word of it."""
    troupe = formed(kind, *"abcde", aggregators=2)
    if kind == "shard":
        troupe = Troupe(plan_of(topology=kind), examples=200, rates=dict.fromkeys("abcd", 1e7) | {"e": 1e4})
        troupe.joins(*"abcde")
        troupe.forms()
        troupe.talks()
    troupe.trains("e")
    troupe.talks()
    troupe.is_missed("e")
    troupe.cuts("e")
    troupe.talks()
    troupe.heard.clear()
    for _ in range(3):
        troupe.round()
    assert troupe.told("e", Work), "nobody forgot it"
    assert troupe.told("e", Work)[-1].formation, "and it has its place again"
    checked(troupe)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_is_to_leave_goes_when_its_update_is_in_a_version(kind: str) -> None:
    troupe = formed(kind, *"abcde", aggregators=2)
    troupe.trains("e")
    troupe.talks()
    says(troupe, HOME, Release(job="job", node="e", reason="is needed elsewhere"))
    version = troupe.leader.version
    for _ in range(6):
        troupe.round()
        troupe.passes(0.6)
    assert troupe.recorded("device.released") == ["e is needed elsewhere"]
    assert "e" in {row.node for row in troupe.rows if row.version == version + 1}
    checked(troupe)


def test_an_aggregator_that_is_to_leave_goes_when_another_formation_holds() -> None:
    troupe = formed("tree", *"abcde")
    says(troupe, HOME, Release(job="job", node="b", reason="is needed elsewhere"))
    # It takes a while to set up another, and b has no lease any more.
    troupe.drops = lambda sender, to, message: isinstance(message, AggregatorReady)
    for _ in range(3):
        troupe.round()
        troupe.passes(0.6)
    assert not troupe.leader._training.ledger.held_by("b")
    assert not troupe.recorded("device.released")
    troupe.drops = lambda sender, to, message: False
    for _ in range(30):
        troupe.round()
        troupe.passes(0.6)
    assert troupe.recorded("device.released") == ["b is needed elsewhere"]
    assert shape(troupe) == "tree 1-2-4"
    assert not [reason for reason in troupe.recorded("topology.planned") if "is gone" in reason], "nothing broke for it"
    assert not [reason for reason in troupe.recorded("lease.returned") if "b" in reason]
    checked(troupe)


@pytest.mark.parametrize("kind", KINDS)
def test_one_who_joins_gets_a_place_in_the_formation(kind: str) -> None:
    troupe = formed(kind, *"abcdef"[:5])
    troupe.joins("f")
    troupe.talks()
    first = troupe.told("f", Work)
    if kind == "tree":
        assert [work.formation for work in first] == [0], "its first update goes straight to the leader"
        assert dict(first[0].tensors)
    else:
        assert [work.formation for work in first] == [1], "in a shard it waits until it reaches everyone"
        assert troupe.told("f", Wait)
    troupe.round()
    troupe.round()
    assert troupe.told("f", Work)[-1].formation == 1
    assert troupe.told("f", Work)[-1].values_by == 1
    checked(troupe)


# Some do not reach others -----------------------------------------------------------------------------------------


def test_a_worker_out_of_reach_of_its_aggregator_goes_straight_to_the_leader() -> None:
    troupe = Troupe(plan_of(topology="tree", aggregators=2), examples=200)
    troupe.walls = {("e", "a"), ("e", "b")}
    troupe.joins(*"abcde")
    troupe.forms()
    troupe.talks()
    now = troupe.leader._formations.now
    assert now is not None
    assert list(now.unreached) == ["e"]
    troupe.heard.clear()
    troupe.records.clear()
    for _ in range(3):
        troupe.round()
    works = troupe.told("e", Work)
    assert [work.formation for work in works] == [0, 0, 0]
    assert all(dict(work.tensors) for work in works), "it is not told to wait for values that cannot come"
    assert not troupe.recorded("lease.returned")
    checked(troupe)


def test_a_formation_that_many_do_not_reach_is_given_up_and_others_lead() -> None:
    troupe = Troupe(plan_of(topology="tree", aggregators=1), examples=200)
    troupe.walls = {(node, "a") for node in "bcd"}
    troupe.joins(*"abcd")
    troupe.forms()
    assert troupe.recorded("topology.abandoned") == ["2 workers do not reach a"]
    now = troupe.leader._formations.now
    assert now is not None
    assert now.aggregators == ["b"]
    checked(troupe)


def test_a_node_that_cannot_be_an_aggregator_is_passed_over_and_nobody_else() -> None:
    troupe = Troupe(plan_of(topology="shard"), examples=200)
    troupe.joins("a", "b", "c")
    for _ in range(20):
        troupe.round()
        troupe.passes(0.6)
        if troupe.leader._formations.next is not None:
            break
    # The last says no before the others have said anything.
    said_no = AggregatorReady(job="job", term=1, formation=1, reason="no door can be opened")
    says(troupe, "c", said_no)
    assert troupe.recorded("topology.abandoned") == ["c could not be set up: no door can be opened"]
    for line in troupe.waiting():
        if isinstance(troupe.lines[line][-1], SetUpAggregator):
            del troupe.lines[line]
    troupe.forms()
    now = troupe.leader._formations.now
    assert now is not None
    assert now.aggregators == ["a", "b"]
    checked(troupe)


def test_one_who_does_not_answer_is_waited_for_so_long() -> None:
    troupe = Troupe(plan_of(topology="shard"), examples=400)
    troupe.joins("a", "b", "c")
    troupe.drops = lambda sender, to, message: sender == "b" and isinstance(message, AggregatorReady)
    troupe.forms()
    assert troupe.recorded("topology.abandoned") == [f"b did not answer in {FORM_S:g} s"]
    now = troupe.leader._formations.now
    assert now is not None
    assert now.aggregators == ["a", "c"]


# Lies and spoilt pieces -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_spoilt_piece_is_its_workers_fault_and_its_batch_is_trained_again(kind: str) -> None:
    troupe = formed(kind)
    version = troupe.leader.version
    troupe.spoils.add("d")
    troupe.round()
    (refused,) = troupe.told("d", UpdateRefused)
    assert "values that are not finite" in refused.reason
    assert "found by" in refused.reason
    for _ in range(2):
        troupe.round()
    assert troupe.leader.version > version
    assert [view.failures for view in troupe.progress.workers] == [0, 0, 0, 1]
    checked(troupe)


@pytest.mark.parametrize("codec", ["dense", "top50%"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_huge_update_is_refused_by_those_who_see_it(kind: str, codec: str) -> None:
    troupe = formed(kind, codec=codec)
    for _ in range(8):
        troupe.round()
    version, before = troupe.leader.version, float(np.abs(troupe.leader.model).max())

    def lie(sender: str, to: str, message: Message) -> Message:
        if sender != "d" or not isinstance(message, UpdateShard):
            return message
        huge = np.full(troupe.layout.size, 9e3, np.float32)
        assert troupe.leader._formations.now is not None
        share = troupe.leader._formations.now.share_led_by(to)
        assert share is not None
        coded = code(Codec.parse(codec), huge, sizes_of(troupe.layout))
        return replace(message, tensors=coded.part(share.start, share.stop))

    troupe.lies = lie
    for _ in range(3):
        troupe.round()
    assert any("far from what is usual" in refused.reason for refused in troupe.told("d", UpdateRefused))
    assert troupe.leader.version > version
    assert float(np.abs(troupe.leader.model).max()) < before + 10
    assert "d" not in [member.node for member in troupe.leader._workers.able()]


def test_a_shard_begins_with_what_was_held_back() -> None:
    troupe = formed("shard", codec_down="top50%")
    formations, training = troupe.leader._formations, troupe.leader._training
    held_back = training.residual = np.arange(1, troupe.layout.size + 1, dtype=np.float32)
    assert formations.now is not None
    for share in formations.now.shares:
        sent = formations._form(formations.now, share, with_part=True).tensors["residual"]
        assert sent.tolist() == held_back[share.start : share.stop].tolist()


@pytest.mark.parametrize("down", ["dense", "top50%"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregator_that_lies_about_a_sum_is_not_believed(kind: str, down: str) -> None:
    troupe = formed(kind, codec_down=down)
    for _ in range(8):
        troupe.round()
    before = float(np.abs(troupe.leader.model).max())
    name = "moved" if kind == "shard" and down != "dense" else "mean"

    def lie(sender: str, to: str, message: Message) -> Message:
        if not isinstance(message, ReduceResult) or name not in message.tensors:
            return message
        said = message.tensors
        if name == "mean":
            return replace(message, tensors={**said, "mean": np.full_like(said["mean"], 9e3)})
        assert troupe.leader._formations.now is not None
        share = troupe.leader._formations.now.share_led_by(sender)
        assert share is not None
        huge = np.full(troupe.layout.size, 9e3, np.float32)
        coded = code(Codec.parse(down), huge, sizes_of(troupe.layout)).part(share.start, share.stop, name="moved")
        return replace(message, tensors={**said, **coded})

    troupe.lies = lie
    troupe.round()
    told = "a step of norm" if name == "moved" else "a mean of norm"
    assert told in troupe.recorded("sum.rejected")[-1]
    troupe.lies = lambda sender, to, message: message
    for _ in range(3):
        troupe.round()
    assert float(np.abs(troupe.leader.model).max()) < before + 10


def test_only_an_aggregator_finds_pieces_spoilt() -> None:
    troupe = formed("tree", *"abcde")
    (lease,) = troupe.leader._training.ledger.held_by("d")
    lie = BadShard(job="job", term=1, formation=1, lease=lease.id, node="d", reason="I say so")
    says(troupe, "e", lie)
    assert troupe.leader._training.ledger.get(lease.id) is not None
    says(troupe, "a", replace(lie, lease=lease.id + 100))
    assert troupe.progress.refused == 0
    checked(troupe)


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_that_cannot_be_is_refused(kind: str) -> None:
    troupe = formed(kind)
    (lease,) = troupe.leader._training.ledger.held_by("d")
    lie = Update(job="job", term=1, lease=lease.id, version=lease.version, examples=1000, formation=1)
    says(troupe, "d", lie)
    assert troupe.leader._training.ledger.get(lease.id) is None
    assert troupe.recorded("update.rejected")[-1] == "d: Update.examples is 1000; the lease has 2"


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_is_taken_once_by_whichever_way_it_comes(kind: str) -> None:
    """A worker whose update is with the aggregators sends it whole as well."""
    troupe = formed(kind)
    (lease,) = troupe.leader._training.ledger.held_by("d")
    troupe.trains("d")
    troupe.talks()
    assert troupe.leader._formations.has_arrived(lease.id)
    delta = np.ones(troupe.layout.size, dtype=np.float32)
    says(
        troupe,
        "d",
        Update(job="job", term=1, lease=lease.id, version=lease.version, examples=2, tensors={"delta": delta}),
    )
    assert troupe.recorded("update.rejected") == [f"d: lease {lease.id} is with the aggregators already"]
    checked(troupe)


def test_in_a_shard_no_update_is_taken_whole() -> None:
    """The aggregators would know nothing of it, and their parts of the model would be others than the leader's."""
    troupe = formed("shard")
    (lease,) = troupe.leader._training.ledger.held_by("d")
    delta = np.ones(troupe.layout.size, dtype=np.float32)
    whole = Update(job="job", term=1, lease=lease.id, version=lease.version, examples=2, tensors={"delta": delta})
    says(troupe, "d", whole)
    assert troupe.recorded("update.rejected") == [f"d: lease {lease.id} goes to the aggregators of a shard"]
    checked(troupe)


def test_an_aggregator_of_a_shard_that_was_not_told_where_its_part_stands_is_replaced() -> None:
    troupe = Troupe(plan_of(topology="shard"), examples=200)
    troupe.joins("a", "b", "c")
    # Lost with a session.
    troupe.drops = lambda sender, to, message: (
        to == "b" and isinstance(message, SetUpAggregator) and bool(message.tensors)
    )
    troupe.forms()
    troupe.round()
    now = troupe.leader._formations.now
    assert now is not None
    assert now.aggregators == ["a", "c"]
    assert troupe.recorded("sum.rejected")[0].startswith("b: its sum is of leases ()")
    checked(troupe)


def test_what_is_said_by_the_unknown_or_under_another_term_is_not_heard() -> None:
    troupe = formed("shard")
    before = troupe.progress
    for message in (
        AggregatorReady(job="job", term=2, formation=1, endpoint="x:1"),
        Routed(job="job", term=1, formation=1),
        Routed(job="job", term=1, formation=9),
        ReduceResult(job="job", term=1, formation=1, version=1),
        ReduceResult(job="job", term=2, formation=1, version=1),
        BadShard(job="job", term=1, formation=1, lease=1, node="a", reason="no"),
    ):
        says(troupe, "stranger", message)
    assert troupe.progress == before
    checked(troupe)


# The job ends, or gets another leader -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_hand_over_waits_for_the_sums(kind: str) -> None:
    troupe = formed(kind)
    version = reported(troupe)
    troupe.hands_over()
    assert not troupe.ended
    troupe.talks()
    assert troupe.ended == f"handed over at version {version + 1}"
    assert len([row for row in troupe.rows if row.version == version + 1]) == 4
    troupe.check_versions()


@pytest.mark.parametrize("kind", KINDS)
def test_a_hand_over_during_which_an_aggregator_is_lost(kind: str) -> None:
    troupe = formed(kind)
    version = reported(troupe)
    troupe.hands_over()
    troupe.loses("b")
    troupe.talks()
    assert troupe.ended == f"handed over at version {version + 1}"
    assert {row.node for row in troupe.rows if row.version == version + 1} == {"a", "c", "d"}
    troupe.check_versions()


@pytest.mark.parametrize("kind", KINDS)
def test_a_hand_over_during_which_a_sum_does_not_come(kind: str) -> None:
    troupe = formed(kind, lease_s=5.0)
    version = reported(troupe)
    troupe.hands_over()
    del troupe.lines[(HOME, "b")]
    for _ in range(5):
        troupe.talks()
        troupe.passes(GATHER_S / 2)
    assert troupe.ended == f"handed over at version {version + 1}"
    troupe.check_versions()


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_time_is_over_while_updates_are_with_the_aggregators(kind: str, asked: bool) -> None:
    troupe = Troupe(plan_of(topology=kind, aggregators=2, until=Until(seconds=15)), examples=200, test=100)
    troupe.joins(*"abcd")
    troupe.forms()
    troupe.talks()
    if asked:
        reported(troupe)
    else:
        troupe.trains("c")
        troupe.talks()
    version = troupe.leader.version
    troupe.passes(100.0 + 15.5 - troupe.now_s)
    assert troupe.recorded("end.decided") == ["the time limit of 15 s is over"]
    for _ in range(5):
        troupe.round()
    assert troupe.ended == "the time limit of 15 s is over"
    assert troupe.leader.version == version
    assert troupe.progress.state == "finished"
    troupe.check_versions()


# What is left behind ----------------------------------------------------------------------------------------------


def test_nobody_keeps_routes_or_aggregators_of_formations_that_are_over() -> None:
    troupe = formed("shard", "a", "b", "c")
    troupe.loses("c")
    # It comes while the next is set up, which is lost in its turn.
    troupe.joins("d")
    troupe.hears(("d", HOME))
    while troupe.waiting() and troupe.leader._formations.next is not None and not troupe.devices["d"].hops:
        troupe.hears(troupe.waiting()[-1])
    troupe.talks()
    troupe.loses("b")
    for _ in range(10):
        troupe.round()
        troupe.passes(0.6)
    now = troupe.leader._formations.now
    assert now is not None
    for device in troupe.devices.values():
        assert set(device.subs) <= {now.number}
        assert set(device.hops) == {now.number}
        assert set(device.worker._routes._by_formation) == {now.number}
    assert not [lease for lease in troupe.leader._formations._lent if troupe.leader._training.ledger.get(lease) is None]


def test_what_was_lent_by_formations_is_forgotten_with_its_leases() -> None:
    troupe = formed("tree", *"abcde", lease_s=3.0)
    for _ in range(4):
        # One never answers: its leases run out.
        for node in troupe.at_work():
            if node != "e":
                troupe.trains(node)
        troupe.talks()
        troupe.passes(6.0)
        troupe.talks()
    assert troupe.recorded("lease.expired")
    lent = troupe.leader._formations._lent
    assert not [lease for lease in lent if troupe.leader._training.ledger.get(lease) is None]


def test_a_formation_is_told_to_people() -> None:
    troupe = formed("tree", *"abcde")
    told = troupe.progress
    assert told.topology == "tree 1-2-5"
    assert told.topology_reason == "2 aggregators (2, as asked), those with the best links: a, b"
    assert troupe.recorded("topology.planned") == [f"tree 1-2-5: {told.topology_reason}"]
    assert len(troupe.recorded("topology.changed")) == 1
    assert not [m for _, to, m in troupe.heard if isinstance(m, TearDown | Route | ShardAck)]


def test_bytes_between_devices_are_traffic_of_the_job() -> None:
    troupe = formed("shard")
    before = troupe.progress
    troupe.lies = lambda sender, to, message: (
        replace(message, bytes_up=1000, bytes_down=3000) if isinstance(message, ReduceResult) else message
    )
    troupe.round()
    after = troupe.progress
    shares = len(troupe.leader.aggregators)
    assert after.bytes_up - before.bytes_up >= 1000 * shares
    assert after.bytes_down - before.bytes_down >= 3000 * shares
