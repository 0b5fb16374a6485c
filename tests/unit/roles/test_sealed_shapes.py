"""Sealed sums whose words meet in aggregators: exact whatever dies, and nobody gets an update without its masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sealed_shapes import NAMES, ShapedTroupe
from sealed_troupe import HOME, SealedTroupe, a_plan

from shoal.wire.messages import (
    Agree,
    Agreed,
    BadShard,
    Bind,
    Go,
    Hop,
    Message,
    ModelShard,
    Offer,
    Open,
    Opened,
    Reduce,
    ReduceResult,
    RelayModel,
    Route,
    ShardAck,
    Update,
    UpdateShard,
    Work,
)

KINDS = ["tree", "shard"]


def a_troupe(kind: str, **changes: object) -> ShapedTroupe:
    troupe = ShapedTroupe(kind, **changes)
    troupe.joins(*NAMES)
    troupe.forms()
    return troupe


def rows_of(troupe: ShapedTroupe, version: int) -> set[str]:
    return {row.node for save in troupe.saves for row in save.applied if row.version == version}


@pytest.mark.parametrize("kind", KINDS)
def test_words_meet_in_aggregators_and_the_leader_opens_their_sum(kind: str) -> None:
    troupe = a_troupe(kind)
    first = troupe.leader.version
    troupe.is_exact(versions=4)
    assert troupe.shape_oracle.agreed >= 4
    assert all(rows_of(troupe, version) == set(NAMES) for version in range(first + 1, first + 5))
    pieces = [message for *_, message in troupe.said(UpdateShard)]
    assert all(isinstance(each, UpdateShard) and list(each.tensors) == ["words"] for each in pieces)
    reports = [each for *_, each in troupe.said(Update) if isinstance(each, Update) and each.formation]
    assert reports
    assert all(set(each.tensors) == {"seals"} for each in reports)
    sums = [each for *_, each in troupe.said(ReduceResult) if isinstance(each, ReduceResult)]
    assert all(list(each.tensors) == ["words"] and each.tensors["words"].dtype == np.uint32 for each in sums)
    # The leader takes the step and has the model given out: an aggregator never had a value of it to step with.
    assert troupe.said(RelayModel)
    assert troupe.said(ModelShard)


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_16_bits_are_summed_up_alike(kind: str) -> None:
    troupe = a_troupe(kind, codec="int16")
    troupe.is_exact(versions=3, atol=5e-3)
    sums = [each for *_, each in troupe.said(ReduceResult) if isinstance(each, ReduceResult)]
    assert {each.tensors["words"].dtype.str for each in sums} == {"<u2"}


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_in_the_words_wherever_they_meet(kind: str) -> None:
    private = "sealed(4, 0%, 30%) + private(60, 1e-4)"
    troupe = a_troupe(kind, trust=private, cohort=9, workers_min=9, clip_update=1.0, participations=30)
    before, first = np.array(troupe.leader.model), troupe.leader.version
    troupe.run(lambda: troupe.leader.version > first)
    assert troupe.shape_oracle.agreed >= 1
    groups = {(each.term, each.group) for *_, each in troupe.said(Open) if isinstance(each, Open)}
    term, group = max(groups)
    point = troupe.spec.plan.privacy.point  # type: ignore[union-attr]
    words = sum(troupe.shares[node, term, group][0] for node in NAMES)
    assert np.allclose(troupe.leader.model - before, words / point.steps / 9, atol=1e-6)


WORDS = [UpdateShard, ShardAck, Update, Reduce, ReduceResult, Agree, Agreed, Open, Opened, RelayModel]


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregator_that_dies_at_any_word_leaves_the_sums_exact(kind: str, word: type[Message]) -> None:
    troupe = a_troupe(kind)
    group = max(bind.group for *_, bind in troupe.said(Bind) if isinstance(bind, Bind))
    version = troupe.leader.version

    def is_it(message: Message) -> bool:
        is_new = getattr(message, "group", group + 1) > group
        return isinstance(message, word) and is_new and (not isinstance(message, Update) or bool(message.formation))

    troupe.run_to_word(is_it)
    troupe.loses(sorted(troupe.leader.aggregators)[0 if kind == "tree" else -1])
    troupe.is_exact(versions=3)
    if word in (Agree, Agreed, Open, Opened):
        # Its sum was at the leader: nothing is lost with it, not even its own update.
        assert rows_of(troupe, version + 1) == set(NAMES)


def test_in_a_tree_the_groups_of_other_aggregators_go_on() -> None:
    """A third of the words is lost before it is summed up: their devices are not in the sum, their edges are given."""
    troupe = a_troupe("tree")
    version = troupe.leader.version
    troupe.run_to_word(lambda message: isinstance(message, Reduce))
    form = troupe.leader._formations.now
    assert form is not None
    share = form.shares[0]
    behind = set(share.members)
    troupe.loses(share.node)
    troupe.is_exact(versions=1)
    assert rows_of(troupe, version + 1) == set(NAMES) - behind
    edges = [each.edges for *_, each in troupe.said(Opened) if isinstance(each, Opened)]
    assert any(edges)
    troupe.is_exact(versions=3)


def test_in_a_shard_no_part_is_opened_without_the_others() -> None:
    """One part is lost when the others are at the leader: nothing is opened, and every update is bound again."""
    troupe = a_troupe("shard")
    version, opened = troupe.leader.version, len(troupe.said(Open))
    troupe.run_to_word(lambda message: isinstance(message, ReduceResult))
    lost = sorted(troupe.leader.aggregators)[-1]
    troupe.loses(lost)
    troupe.run_to_word(lambda message: isinstance(message, Bind))
    assert len(troupe.said(Open)) == opened
    assert any(record.kind == "group.voided" for record in troupe.records)
    troupe.is_exact(versions=1)
    assert rows_of(troupe, version + 1) == set(NAMES) - {lost}


def test_a_part_without_a_piece_that_others_have_is_never_opened_with_them() -> None:
    """An aggregator forgot a piece and says so: no part of that sum is used."""
    troupe = a_troupe("shard")
    forgot = sorted(troupe.leader.aggregators)[2]
    pending = [1]

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, Reduce) and to == forgot and pending:
            pending.pop()
            fewer = message.leases[1:]
            ones = (1.0,) * len(fewer)
            return [replace(message, leases=fewer, weights=ones, scales=ones)]
        return [message]

    troupe.lies = lies
    troupe.is_exact(versions=2)
    assert not pending


def test_a_member_that_reports_words_which_it_did_not_send_spoils_one_group_alone() -> None:
    """In a shard no part is of use then. The next words of that member go straight to the leader."""
    troupe = a_troupe("shard")
    liar = "d4"
    without = next(node for node in sorted(troupe.leader.aggregators) if node != liar)

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, UpdateShard) and (sender, to) == (liar, without):
            told = ShardAck(job="job", term=1, formation=message.formation, lease=message.lease, group=message.group)
            troupe.queue.append((without, liar, told))
            return []
        return [message]

    troupe.lies = lies
    version = troupe.leader.version
    troupe.is_exact(versions=3)
    assert sum(record.kind == "group.voided" for record in troupe.records) == 1
    assert rows_of(troupe, version + 1) == set(NAMES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_piece_whose_report_is_lost_is_not_in_the_sum(kind: str) -> None:
    """Its aggregators have the words of a member that the leader does not count."""
    troupe = a_troupe(kind)
    version, silent = troupe.leader.version, "d4"

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        return [] if isinstance(message, Update) and message.formation and sender == silent else [message]

    troupe.lies = lies
    troupe.run_to_word(lambda message: isinstance(message, ShardAck))
    troupe.run(lambda: not troupe.queue)
    troupe.loses(silent)
    troupe.is_exact(versions=1)
    assert rows_of(troupe, version + 1) == set(NAMES) - {silent}


def test_an_aggregator_that_lies_about_its_sum_is_not_asked_again() -> None:
    troupe = a_troupe("tree")
    liar = sorted(troupe.leader.aggregators)[0]

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, ReduceResult) and sender == liar:
            return [replace(message, leases=(*message.leases, 9999))]
        return [message]

    troupe.lies = lies
    troupe.is_exact(versions=3)
    assert any(record.kind == "sum.rejected" and liar in record.reason for record in troupe.records)
    assert liar not in troupe.leader.aggregators


def test_a_piece_that_is_called_bad_after_it_was_reported_counts_on() -> None:
    troupe = a_troupe("tree")
    version = troupe.leader.version
    sender, _, report = troupe.run_to_word(lambda message: isinstance(message, Update) and bool(message.formation))
    assert isinstance(report, Update)
    liar = sorted(troupe.leader.aggregators)[0]
    bad = BadShard(
        job="job", term=1, formation=report.formation, lease=report.lease, node=sender, reason="no piece at all"
    )
    at = next(at for at, each in enumerate(troupe.queue) if each[2] is report)
    troupe.queue.insert(at + 1, (liar, HOME, bad))
    troupe.is_exact(versions=1)
    assert rows_of(troupe, version + 1) == set(NAMES)


def test_a_device_without_the_route_says_so_and_its_words_go_straight_to_the_leader() -> None:
    troupe = a_troupe("tree")
    stray = next(name for name in NAMES if not troupe.is_aggregator(name))
    troupe.devices[stray].worker._routes._by_formation.clear()
    troupe.is_exact(versions=3)
    straight = [
        update
        for sender, _, update in troupe.said(Update)
        if isinstance(update, Update) and sender == stray and update.group and not update.formation
    ]
    assert straight


@pytest.mark.parametrize("how", ["credit", "go", "go by aggregators", "lent by aggregators"])
def test_a_leader_that_lies_gets_no_update_without_masks(how: str) -> None:
    """Whatever it lends, allows or routes: only masked words leave a device, which ``SealOracle`` watches."""
    troupe = SealedTroupe(a_plan())
    troupe.joins(*NAMES[:6])
    route = Route(
        job="job", term=1, formation=5, hops=(Hop(node="d1", endpoint="127.0.0.1:9", start=0, stop=troupe.first.size),)
    )

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if sender != HOME or to != "d0":
            return [message]
        if isinstance(message, Work) and how == "credit":
            return [replace(message, credit=True)]
        if isinstance(message, Work) and how == "lent by aggregators":
            return [route, replace(message, formation=5)]
        return [message]

    troupe.lies = lies
    troupe.run_to(Offer)
    troupe.run(lambda: not troupe.queue, most=60)
    lease = next(each.lease for sender, _, each in troupe.said(Offer) if sender == "d0" and isinstance(each, Offer))
    if how.startswith("go"):
        troupe.hears("d0", route)
        troupe.hears("d0", Go(job="job", term=1, lease=lease, formation=5 if "by" in how else 0))
    troupe.run(lambda: troupe.leader.version >= 2)
    assert troupe.leader.version >= 2
    for sender, _, message in troupe.said(Update):
        assert isinstance(message, Update)
        assert "delta" not in message.tensors, sender
    assert not troupe.said(UpdateShard)
