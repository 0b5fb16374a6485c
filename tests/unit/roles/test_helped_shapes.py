"""Sums that a helper opens where aggregators add up the words: exact whatever dies, and with no update in the open for
an aggregator that knows what the helper knows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sealed_shapes import NAMES, ShapedTroupe
from sealed_troupe import HELPER, HOME, SIZE

from shoal.roles.events import Reassigned
from shoal.sealing.fixed import FixedPoint
from shoal.sealing.group import HELPER_ENVELOPE_BYTES, SEED_BYTES, bits_of, members_of
from shoal.sealing.label import trained_on
from shoal.sealing.pair import mask_key
from shoal.sealing.stream import add_all
from shoal.wire.messages import (
    AskMasks,
    MaskSum,
    Message,
    Reduce,
    ReduceResult,
    SealRefused,
    SetUpAggregator,
    Update,
    UpdateShard,
)

KINDS = ["tree", "shard"]
TRUST = f"sealed(4, helper={HELPER})"


class HelpedTroupe(ShapedTroupe):
    def __init__(self, topology: str, **changes: object) -> None:
        #: (device, group) -> the seed of the mask that the helper takes off.
        self.seeds: dict[tuple[str, int], bytes] = {}
        super().__init__(topology, **{"trust": TRUST, **changes})

    def _mark(self, node: str, kind: str, **facts: object) -> None:
        super()._mark(node, kind, **facts)
        if kind == "seed":
            self.seeds[node, facts["group"]] = facts["seed"]  # type: ignore[index, assignment]


def a_troupe(kind: str, **changes: object) -> HelpedTroupe:
    troupe = HelpedTroupe(kind, **changes)
    troupe.helps()
    troupe.joins(*NAMES)
    troupe.forms()
    return troupe


@pytest.mark.parametrize("codec", ["dense", "int16"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_helper_opens_the_sums_of_aggregators_with_one_question_each(kind: str, codec: str) -> None:
    troupe = a_troupe(kind, codec=codec)
    troupe.is_exact(versions=4, atol=1e-5 if codec == "dense" else 5e-3)
    asked = [message for *_, message in troupe.said(AskMasks) if isinstance(message, AskMasks)]
    assert len({(ask.term, ask.group) for ask in asked}) == len(asked)
    assert all(len(ask.envelopes) == HELPER_ENVELOPE_BYTES * len(NAMES) for ask in asked)
    reports = [each for *_, each in troupe.said(Update) if isinstance(each, Update) and each.formation]
    extra = HELPER_ENVELOPE_BYTES + SEED_BYTES
    assert {each.tensors["seals"].nbytes for each in reports} == {extra + 2 * 4}
    straight = [each for *_, each in troupe.said(Update) if isinstance(each, Update) and not each.formation]
    assert all(each.tensors["seals"].nbytes == HELPER_ENVELOPE_BYTES + 2 * 4 for each in straight)


@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregator_and_the_helper_together_see_no_update(kind: str) -> None:
    troupe = a_troupe(kind)
    troupe.is_exact(versions=2)
    requests = {(node, seal.request.label.group): seal.request for node, seal in troupe.sealed}
    starts = {
        (form.term, form.formation, to): form.start
        for _, to, form in troupe.said(SetUpAggregator)
        if isinstance(form, SetUpAggregator)
    }
    looked_at = 0
    for sender, to, piece in troupe.said(UpdateShard):
        assert isinstance(piece, UpdateShard)
        request = requests[sender, piece.group]
        label = replace(
            request.label, base=trained_on(request.model, version=request.version, epoch=request.epoch)
        ).digest()
        words = np.array(piece.tensors["words"])
        start = starts[piece.term, piece.formation, to]
        add_all(words, [(mask_key(troupe.seeds[sender, piece.group], label), True)], start=start)
        values = FixedPoint(request.label.bound, request.group.size, 32).decode(words, times=1.0)
        assert not np.allclose(values, request.update[start : start + words.size], atol=1e-3)
        looked_at += 1
    assert looked_at >= 2 * len(NAMES)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_in_sums_that_a_helper_opens(kind: str) -> None:
    trust = f"sealed(9, 0%, 30%, helper={HELPER}) + private(8, 1e-5)"
    troupe = a_troupe(kind, trust=trust, cohort=9, workers_min=9, clip_update=1.0, participations=30)
    before, first = np.array(troupe.leader.model), troupe.leader.version
    troupe.run(lambda: troupe.leader.version > first)
    groups = {(each.term, each.group) for *_, each in troupe.said(MaskSum) if isinstance(each, MaskSum)}
    term, group = max(groups)
    point = troupe.spec.plan.privacy.point  # type: ignore[union-attr]
    words = sum(troupe.shares[node, term, group][0] for node in NAMES)
    assert np.allclose(troupe.leader.model - before, words / point.steps / 9, atol=1e-6)
    assert words.size == SIZE


@pytest.mark.parametrize("word", [UpdateShard, Reduce, ReduceResult, AskMasks, MaskSum])
@pytest.mark.parametrize("kind", KINDS)
def test_an_aggregator_that_is_lost_at_any_message_leaves_sums_exact(kind: str, word: type[Message]) -> None:
    troupe = a_troupe(kind)
    version = troupe.leader.version
    troupe.run_to_word(lambda message: isinstance(message, word) and getattr(message, "group", 0) > 0)
    lost = sorted(troupe.leader.aggregators)[0 if kind == "tree" else -1]
    troupe.loses(lost)
    troupe.is_exact(versions=3)
    if word in (AskMasks, MaskSum):
        # Its sum was at the leader before: nothing is lost with it.
        rows = {row.node for save in troupe.saves for row in save.applied if row.version == version + 1}
        assert rows == set(NAMES)


@pytest.mark.parametrize("word", [Update, ReduceResult, MaskSum])
@pytest.mark.parametrize("kind", KINDS)
def test_a_helper_that_begins_again_at_any_message_opens_no_sum_of_before(kind: str, word: type[Message]) -> None:
    troupe = a_troupe(kind)
    _, _, found = troupe.run_to_word(lambda message: isinstance(message, word) and getattr(message, "group", 0) > 0)
    troupe.queue = type(troupe.queue)(each for each in troupe.queue if HELPER not in each[:2])
    troupe.helps()
    troupe.is_exact(versions=3)
    answered = [each.group for *_, each in troupe.said(MaskSum) if isinstance(each, MaskSum)]
    assert len(answered) == len(set(answered))
    assert found.group not in answered  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_a_leader_that_asks_per_aggregator_gets_one_answer(kind: str) -> None:
    """It asks for the masks of those whose words one aggregator has, and of those of another, in place of all."""
    troupe = a_troupe(kind)

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if not isinstance(message, AskMasks):
            return [message]
        places = members_of(message.present, len(NAMES))
        told: list[Message] = []
        for part in (places[:5], places[4:], places[:-1], places):
            envelopes = b"".join(
                message.envelopes[HELPER_ENVELOPE_BYTES * places.index(at) :][:HELPER_ENVELOPE_BYTES] for at in part
            )
            told.append(replace(message, present=bits_of(part, len(NAMES)), envelopes=envelopes))
        return told

    troupe.lies = lies
    answers, refused = len(troupe.said(MaskSum)), len(troupe.said(SealRefused))
    troupe.run(lambda: len(troupe.said(AskMasks)) >= 4 and not troupe.queue, most=3000)
    asked = {ask.group for *_, ask in troupe.said(AskMasks) if isinstance(ask, AskMasks)}
    answered = [each.group for *_, each in troupe.said(MaskSum)[answers:] if isinstance(each, MaskSum)]
    assert answered
    assert len(answered) == len(set(answered)) <= len(asked)
    assert len(troupe.said(SealRefused)) > refused


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_term_asks_about_nothing_of_the_old_one(kind: str) -> None:
    troupe = a_troupe(kind)
    troupe.run_to_word(lambda message: isinstance(message, AskMasks))
    old = next(each for each in troupe.queue if isinstance(each[2], AskMasks))
    term = troupe.leader.term
    answers = len(troupe.said(MaskSum))
    troupe._works(HELPER, Reassigned(leader=HOME, term=term + 1))
    troupe.queue.clear()
    troupe.queue.append(old)
    troupe.run(lambda: not troupe.queue)
    assert len(troupe.said(MaskSum)) == answers
