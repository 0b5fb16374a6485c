"""The helper of sealed sums, and the leader that asks it: each asks and answers what it should, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sealed_troupe import HELPER, HOME, SealedTroupe, a_plan

from shoal.roles.events import (
    Connected,
    Disconnected,
    Liveness,
    MasksSummed,
    PeerChanged,
    Reassigned,
    Received,
    TimerFired,
)
from shoal.roles.helper import Helper
from shoal.roles.leader.gathering.helper_opener import MASKS_S
from shoal.sealing.group import HELPER_ENVELOPE_BYTES, bits_of
from shoal.wire.messages import (
    Agree,
    AskMasks,
    Bind,
    MaskSum,
    Message,
    Open,
    Release,
    SealKey,
    SealRefused,
    SealRoster,
    Unbind,
    Update,
    Wait,
    Work,
)

NAMES = [f"d{number}" for number in range(6)]


def a_troupe(**plan: object) -> SealedTroupe:
    troupe = SealedTroupe(a_plan(**{"trust": f"sealed(4, helper={HELPER})", **plan}))  # type: ignore[arg-type]
    troupe.helps()
    troupe.joins(*NAMES)
    return troupe


def moved_by(troupe: SealedTroupe, version: int) -> np.ndarray:
    troupe.run(lambda: troupe.leader.version >= version)
    assert troupe.leader.version == version
    return troupe.mean_of(version)


def test_a_device_speaks_once_and_the_helper_once_for_all() -> None:
    troupe = a_troupe()
    wanted = moved_by(troupe, 1)
    assert np.allclose(troupe.leader.model - troupe.first, wanted, atol=1e-6)
    assert not troupe.said(Agree)
    assert not troupe.said(Open)
    assert len(troupe.said(AskMasks)) == len(troupe.said(MaskSum)) == 1
    uploads = [message for *_, message in troupe.said(Update) if isinstance(message, Update)]
    assert {message.tensors["seals"].nbytes for message in uploads} == {HELPER_ENVELOPE_BYTES + 8}


def test_the_helper_is_told_no_words_and_lent_nothing() -> None:
    troupe = a_troupe()
    troupe.run(lambda: troupe.leader.version >= 3)
    told = [message for _, to, message in troupe.heard if to == HELPER]
    assert {type(message) for message in told} <= {SealRoster, AskMasks, Wait}
    assert not any(getattr(message, "tensors", None) for message in told)
    assert HELPER not in {view.node for view in troupe.leader.progress().workers}


def test_a_job_without_its_helper_lends_nothing_and_says_why() -> None:
    troupe = SealedTroupe(a_plan(f"sealed(4, helper={HELPER})"))
    troupe.joins(*NAMES)
    troupe.run(most=400)
    assert not troupe.said(Work)
    assert troupe.leader.progress().state == "waiting"
    assert troupe.leader.progress().reason.startswith("aide is away: it is the helper that opens sums")
    troupe.helps()
    moved_by(troupe, 2)


@pytest.mark.parametrize("before", [Bind, Update, AskMasks, MaskSum])
def test_a_helper_that_begins_again_opens_sums_of_updates_that_are_trained_again(before: type[Message]) -> None:
    troupe = a_troupe()
    troupe.run_to(before)
    # Its power is back before anybody missed it: it has another key, and knows nothing of the group.
    troupe.queue = type(troupe.queue)(each for each in troupe.queue if HELPER not in each[:2])
    troupe.helps()
    wanted = moved_by(troupe, 1)
    assert np.allclose(troupe.leader.model - troupe.first, wanted, atol=1e-6)
    assert any(record.kind == "group.voided" for record in troupe.records)


def test_a_session_of_the_helper_that_breaks_costs_nothing_if_the_answer_is_not_lost() -> None:
    troupe = a_troupe()
    troupe.run_to(AskMasks)
    troupe.queue.clear()
    for event in (Disconnected(node=HOME, reason="a cable"), Connected(node=HOME)):
        troupe._works(HELPER, event)
    moved_by(troupe, 1)
    assert not any(record.kind == "group.voided" for record in troupe.records)


@pytest.mark.parametrize("before", [Bind, AskMasks, MaskSum])
def test_a_helper_that_was_frozen_for_long_tells_its_key_again(before: type[Message]) -> None:
    troupe = a_troupe()
    troupe.run_to(before)
    troupe._leads(PeerChanged(node=HELPER, state=Liveness.LOST, reason="silent for 8.0 s"))
    troupe.run(most=300)
    assert troupe.leader.progress().reason.startswith("aide is away")
    # Its session held, and it has missed nothing. The manager gives it the job again.
    troupe._works(HELPER, Reassigned(leader=HOME, term=troupe.leader.term))
    moved_by(troupe, 2)


def test_a_roster_that_was_lost_with_a_session_comes_again_and_the_question_waits() -> None:
    troupe = a_troupe()
    lost: list[Message] = []

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, SealRoster) and to == HELPER and not lost:
            lost.append(message)
            return []
        return [message]

    troupe.lies = lies
    troupe.run(lambda: bool(troupe.said(AskMasks)))
    assert lost
    assert not troupe.said(MaskSum)
    for event in (Disconnected(node=HOME, reason="a cable"), Connected(node=HOME)):
        troupe._works(HELPER, event)
    moved_by(troupe, 1)
    assert not any(record.kind == "group.voided" for record in troupe.records)


def test_an_answer_that_is_lost_is_not_given_again() -> None:
    troupe = a_troupe()
    troupe.run_to(MaskSum)
    troupe.queue.clear()
    for event in (Disconnected(node=HOME, reason="a cable"), Connected(node=HOME)):
        troupe._works(HELPER, event)
    moved_by(troupe, 1)
    refused = [message.reason for *_, message in troupe.said(SealRefused) if isinstance(message, SealRefused)]
    assert refused == ["group 1 is not above 1: a sum is opened once"]
    # Nobody knows whether the leader has the sum: every update of the group is trained again.
    assert len(troupe.said(Unbind)) == 6


def test_while_it_adds_up_the_same_question_is_passed_over() -> None:
    troupe = a_troupe()
    troupe.run_to(AskMasks)
    ask = next(message for *_, message in troupe.queue if isinstance(message, AskMasks))
    helper = troupe.devices[HELPER].worker
    assert isinstance(helper, Helper)
    asked = Received(sender=HOME, message=ask, size_bytes=1)
    assert [type(action).__name__ for action in helper.handle(asked, 1.0)] == ["SumMasks"]
    assert helper.handle(asked, 1.0) == []
    helper.handle(MasksSummed(term=1, group=1, tensors={"words": np.zeros(33, "<u4")}), 1.0)
    refused = helper.handle(asked, 1.0)
    assert [type(action.message) for action in refused if hasattr(action, "message")] == [SealRefused]


def _refused(troupe: SealedTroupe) -> str:
    troupe.run(lambda: bool(troupe.said(SealRefused)), most=500)
    (message, *_) = [message for *_, message in troupe.said(SealRefused)]
    assert isinstance(message, SealRefused)
    assert troupe.leader.version == 0
    return message.reason


@pytest.mark.parametrize(
    ("lie", "told"),
    [
        ({"present": bits_of(range(3), 6), "envelopes": bytes(96)}, "the sum has 3 members; it must have at least 4"),
        ({"envelopes": bytes(31)}, "the envelopes do not have the size"),
        ({"envelopes": bytes(6 * 32)}, "member 0 did not close for this group"),
        ({"base": b"\1" * 32}, "member 0 did not close for this group"),
        ({"base": b""}, "the envelopes do not have the size"),
        ({"bound": 4}, "member 0 did not close for this group"),
        ({"roster": 0}, "roster 0 is not known here"),
        ({"present": b"\xff"}, "bytes name members of a group of 6"),
        ({"words": 0}, "AskMasks.words is 0"),
        ({"words": 1 << 40}, "fit one message"),
        # The first of the roster is the helper.
        ({"members": bits_of(range(6), 7)}, "the group contains its helper"),
    ],
)
def test_a_leader_that_lies_is_not_answered(lie: dict[str, object], told: str) -> None:
    troupe = a_troupe()

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        return [replace(message, **lie)] if isinstance(message, AskMasks) else [message]  # type: ignore[arg-type]

    troupe.lies = lies
    assert told in _refused(troupe)


def test_a_leader_of_an_older_term_is_not_answered() -> None:
    troupe = a_troupe()
    troupe.run_to(AskMasks)
    ask = next(message for *_, message in troupe.queue if isinstance(message, AskMasks))
    troupe.dies()
    troupe.hears(HELPER, ask)
    troupe.run(lambda: troupe.leader.version >= 1)
    assert all(message.term == 2 for *_, message in troupe.said(MaskSum) if isinstance(message, MaskSum))


def test_a_key_that_no_member_signed_is_not_added_up_with() -> None:
    troupe = a_troupe()

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, SealRoster) and to == HELPER:
            forged = [replace(key, signature=b"no") if key.node == "d3" else key for key in message.keys]
            return [replace(message, keys=tuple(forged))]
        return [message]

    troupe.lies = lies
    assert "the key of d3 does not hold" in _refused(troupe)


def test_devices_do_not_seal_for_another_key_than_the_helpers() -> None:
    troupe = a_troupe()

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, SealRoster) and to != HELPER:
            keys = [replace(key, public=message.keys[1].public) if key.node == HELPER else key for key in message.keys]
            return [replace(message, keys=tuple(keys))]
        return [message]

    troupe.lies = lies
    assert "the key of aide does not hold" in _refused(troupe)
    assert not troupe.said(Update)


def test_devices_do_not_seal_where_the_leader_is_the_helper() -> None:
    troupe = SealedTroupe(a_plan(f"sealed(4, helper={HOME})"))
    troupe.helps(HOME)
    troupe.joins(*NAMES)
    troupe._works(HOME, Connected(node=HOME))
    troupe.run(lambda: bool(troupe.said(SealRefused)), most=500)
    reasons = [message.reason for *_, message in troupe.said(SealRefused) if isinstance(message, SealRefused)]
    assert not troupe.said(Update)
    assert "must neither lead this job nor train for it" in reasons[0]


def test_what_is_no_sum_of_masks_spoils_its_group_alone() -> None:
    troupe = a_troupe()
    lied: list[Message] = []

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, MaskSum) and not lied:
            lied.append(message)
            return [replace(message, tensors={"words": message.tensors["words"][:5]})]
        return [message]

    troupe.lies = lies
    moved_by(troupe, 1)
    (void,) = [record.reason for record in troupe.records if record.kind == "group.voided"]
    assert "aide answered with what is not 35 words of 32 bits" in void


def test_a_helper_that_says_nothing_is_given_up_after_a_while() -> None:
    troupe = a_troupe()
    troupe.run_to(AskMasks)
    troupe.queue.clear()
    troupe.run(lambda: bool(troupe.said(Unbind)), most=20)
    assert not troupe.said(Unbind)
    troupe.now_s += MASKS_S
    moved_by(troupe, 1)
    assert len(troupe.said(Unbind)) == 6


def test_a_helper_that_an_operator_drains_is_away() -> None:
    troupe = a_troupe()
    troupe.run(lambda: troupe.leader.version >= 1)
    troupe._leads(Received(sender=HOME, message=Release(job="job", node=HELPER, reason="is drained"), size_bytes=1))
    troupe.run(lambda: not troupe.queue, most=300)
    assert "aide is away" in troupe.leader.progress().reason
    version = troupe.leader.version
    troupe.run(most=200)
    assert troupe.leader.version == version


def test_it_tells_its_key_again_until_the_leader_is_heard() -> None:
    troupe = SealedTroupe(a_plan(f"sealed(4, helper={HELPER})"))
    troupe.lies = lambda sender, to, message: [] if sender == HELPER else [message]
    troupe.helps()
    helper = troupe.devices[HELPER].worker
    said = [action.message for action in helper.handle(TimerFired(name="announce"), 4.0) if hasattr(action, "message")]
    assert [type(message) for message in said] == [SealKey]
    helper.handle(Received(sender=HOME, message=Wait(job="job", reason="it opens sums"), size_bytes=1), 5.0)
    assert helper.handle(TimerFired(name="announce"), 8.0) == []


def test_a_lost_helper_is_one_peer_of_many() -> None:
    troupe = a_troupe()
    troupe.run(lambda: troupe.leader.version >= 1)
    troupe._leads(PeerChanged(node=HELPER, state=Liveness.SUSPECT, reason="silent for 3.0 s"))
    troupe.run(lambda: troupe.leader.version >= 2)
    assert troupe.leader.version == 2
