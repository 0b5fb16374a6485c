"""Sealed sums between a leader and its workers: exact whatever dies, and a leader that lies gets nothing."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from sealed_troupe import HOME, SealedTroupe, a_plan

from shoal.errors import PeerViolation
from shoal.sealing.group import bits_of
from shoal.wire.messages import (
    Agree,
    Agreed,
    Bind,
    Failed,
    Message,
    Offer,
    Open,
    Opened,
    SealKey,
    SealRefused,
    SealRoster,
    Unbind,
    Update,
    Work,
)

NAMES = [f"d{number}" for number in range(6)]


def a_troupe(devices: int = 6, **plan: object) -> SealedTroupe:
    troupe = SealedTroupe(a_plan(**plan))  # type: ignore[arg-type]
    troupe.joins(*NAMES[:devices])
    return troupe


def assert_exact(troupe: SealedTroupe, version: int, *, devices: int) -> None:
    troupe.run(lambda: troupe.leader.version >= version)
    assert troupe.leader.version == version
    rows = [row for save in troupe.saves for row in save.applied if row.version == version]
    assert len(rows) == devices
    if version == 1:
        # Steps of 2^-25 and a float32 model.
        assert np.allclose(troupe.leader.model - troupe.first, troupe.mean_of(version), atol=1e-6)


def test_a_version_is_the_mean_of_updates_that_no_leader_saw() -> None:
    troupe = a_troupe()
    assert_exact(troupe, 1, devices=6)
    uploads = [message for *_, message in troupe.said(Update)]
    assert len(uploads) >= 6
    assert all(set(message.tensors) == {"words", "seals"} for message in uploads if isinstance(message, Update))
    assert_exact(troupe, 3, devices=6)


def test_the_leader_hashes_a_model_once_while_devices_train() -> None:
    """All devices wait for what it does after the last offer."""
    troupe, offers_heard = a_troupe(), list[int]()

    def hashed(data: memoryview) -> object:
        offers_heard.append(len(troupe.said(Offer)))
        return hashlib.sha256(data)

    with patch("shoal.roles.leader.gathering.sealing.hashlib", SimpleNamespace(sha256=hashed)):
        assert_exact(troupe, 2, devices=6)
    assert offers_heard[:2] == [1, 7]
    assert len(offers_heard) <= 3


def test_words_of_16_bits_are_half_as_long_and_as_right_as_their_steps() -> None:
    troupe = a_troupe(codec="int16")
    troupe.run(lambda: troupe.leader.version >= 1)
    # Six devices share a word: a step is a 5,461st of the bound, which is 1 at first.
    off = np.abs(troupe.leader.model - troupe.first - troupe.mean_of(1))
    assert 0 < off.max() < 7 / 5461
    uploads = [message.tensors["words"] for *_, message in troupe.said(Update) if isinstance(message, Update)]
    assert {words.dtype.str for words in uploads} == {"<u2"}
    troupe.run(lambda: troupe.leader.version >= 3)
    assert troupe.leader.version == 3


def test_words_of_another_size_are_refused() -> None:
    troupe = a_troupe(codec="int16")

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, Update) and sender == "d1":
            wide = {**message.tensors, "words": message.tensors["words"].astype("<u4")}
            return [replace(message, tensors=wide)]
        return [message]

    troupe.lies = lies
    troupe.run(lambda: troupe.leader.version >= 1)
    assert any("words of 16 bits" in record.reason for record in troupe.records), troupe.records


@pytest.mark.parametrize(
    ("before", "in_sum"), [(Bind, 5), (Update, 5), (Agree, 6), (Agreed, 6), (Open, 6), (Opened, 6)]
)
def test_a_device_that_dies_at_any_word_leaves_the_sum_exact(before: type[Message], in_sum: int) -> None:
    troupe = a_troupe()
    troupe.run_to(before)
    troupe.loses("d2")
    assert_exact(troupe, 1, devices=in_sum)
    assert_exact(troupe, 2, devices=5)


@pytest.mark.parametrize("before", [Bind, Update, Agree, Agreed])
def test_where_too_few_are_left_nothing_is_opened_and_the_rest_trains_again(before: type[Message]) -> None:
    troupe = a_troupe(4)
    troupe.run_to(before)
    troupe.loses("d0", "d1", "d2")
    troupe.run()
    assert troupe.leader.version == 0
    assert not troupe.said(Opened)
    trained = len(troupe.devices["d3"].trained)
    troupe.joins("d4", "d5", "d6")
    assert_exact(troupe, 1, devices=4)
    # It seals an update once: what was in a void group is trained again.
    assert len(troupe.devices["d3"].trained) <= trained + 3


@pytest.mark.parametrize("before", [Offer, Bind, Update, Agree, Agreed, Open, Opened])
def test_a_leader_that_dies_at_any_word_costs_no_mask_and_no_update_twice(before: type[Message]) -> None:
    troupe = a_troupe()
    troupe.run_to(before)
    troupe.dies()
    assert_exact(troupe, 1, devices=6)
    labels = [(node, seal.request.label.digest()) for node, seal in troupe.sealed]
    assert len(set(labels)) == len(labels)


def test_a_session_that_breaks_after_the_upload_is_asked_again() -> None:
    troupe = a_troupe()
    troupe.run_to(Agree, count=6)
    lost = next(each for each in troupe.queue if each[1] == "d1")
    troupe.queue.remove(lost)
    troupe.queue.append(("d1", HOME, troupe.said(Offer)[0][2]))
    offer = next(message for sender, _, message in troupe.said(Offer) if sender == "d1")
    troupe.queue[-1] = ("d1", HOME, offer)
    assert_exact(troupe, 1, devices=6)


def test_an_epoch_ends_where_too_little_is_left_for_another_sum() -> None:
    troupe = a_troupe(6, epoch_leases=15)
    troupe.run()
    waived = [record.reason for record in troupe.records if record.kind == "lease.waived"]
    assert waived == ["3 of 15 leases: a sum needs 4"] * 2
    assert [record.reason for record in troupe.records if record.kind == "end.decided"] == ["finished: 2 of 2 epochs"]


# A leader that lies ---------------------------------------------------------------------------------------------


def refusals(troupe: SealedTroupe) -> str:
    return "\n".join(message.reason for *_, message in troupe.said(SealRefused) if isinstance(message, SealRefused))


def test_it_splits_views_and_nothing_is_opened() -> None:
    troupe = a_troupe()

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, Agree) and to in NAMES[:3]:
            return [replace(message, present=bits_of(range(5), 6))]
        if isinstance(message, Agreed) and sender in NAMES[:3]:
            # It makes up what is missing, and goes on.
            return [replace(message, macs=message.macs + bytes(16))]
        return [message]

    troupe.lies = lies
    troupe.run(lambda: len(troupe.said(SealRefused)) >= 6)
    assert "different sets" in refusals(troupe)
    assert "the wrong size" in refusals(troupe)
    assert not troupe.said(Opened)
    assert troupe.leader.version == 0


def test_it_swaps_a_key_and_nobody_uploads() -> None:
    troupe = a_troupe()

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, SealRoster):
            own = message.keys[0]
            return [replace(message, keys=(replace(own, public=bytes([7]) * 32), *message.keys[1:]))]
        return [message]

    troupe.lies = lies
    troupe.run(lambda: len(troupe.said(SealRefused)) >= 6)
    assert "does not hold" in refusals(troupe)
    assert not troupe.said(Update)


def test_it_names_a_node_twice_and_the_message_is_none() -> None:
    troupe = a_troupe()
    troupe.run_to(SealRoster)
    roster = next(message for *_, message in troupe.queue if isinstance(message, SealRoster))
    with pytest.raises(PeerViolation, match="one per device"):
        replace(roster, keys=(*roster.keys, roster.keys[0]))


def test_it_names_a_member_present_and_lost_and_gets_one_answer() -> None:
    troupe = a_troupe()
    troupe.run_to(Agreed, count=6)
    agree = next(message for *_, message in troupe.said(Agree) if isinstance(message, Agree))
    troupe.queue.clear()
    for node in NAMES[:5]:
        # It has a MAC for all six. Now it wants the edges of the sixth as well.
        troupe.hears(node, replace(agree, present=bits_of(range(5), 6)))
    troupe.run(lambda: len(troupe.said(SealRefused)) >= 5)
    assert "another set of members" in refusals(troupe)
    assert not troupe.said(Opened)


def test_it_replays_a_group_and_no_mask_is_used_twice() -> None:
    troupe = a_troupe()
    troupe.run_to(Agree)
    binds = [(to, message) for _, to, message in troupe.said(Bind)]
    sealed = len(troupe.sealed)
    for to, bind in binds:
        troupe.hears(to, bind)
    assert_exact(troupe, 1, devices=6)
    assert len([each for each in troupe.sealed if each[1].request.label.group == 1]) == sealed


def test_it_wants_an_opened_update_in_another_group_and_is_told_that_it_is_spent() -> None:
    troupe = a_troupe()
    troupe.run_to(Opened, count=6)
    binds = [(to, message) for _, to, message in troupe.said(Bind) if isinstance(message, Bind)]
    troupe.queue.clear()
    for to, bind in binds:
        if to != "d5":
            # The sum without d5, to be taken from the sum with it.
            troupe.hears(to, replace(bind, group=2, members=bits_of(range(5), 6)))
    troupe.run(lambda: len(troupe.said(SealRefused)) >= 5, most=200)
    assert "sealed before" in refusals(troupe)
    assert all(seal.request.label.group == 1 for _, seal in troupe.sealed)


def test_it_gives_two_models_and_gets_no_sum() -> None:
    troupe = a_troupe()

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, Work) and to == "d0" and message.version == 1 and message.tensors:
            return [replace(message, tensors={"model": np.array(message.tensors["model"]) + np.float32(1)})]
        return [message]

    troupe.lies = lies
    troupe.run(lambda: bool([record for record in troupe.records if record.kind == "group.voided"]))
    void = [record.reason for record in troupe.records if record.kind == "group.voided"]
    assert void
    assert troupe.leader.version == 1


def test_it_gives_another_first_model_and_the_device_does_not_seal() -> None:
    troupe = a_troupe()

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, Work) and to == "d0" and message.tensors:
            return [replace(message, tensors={"model": np.array(message.tensors["model"]) + np.float32(1)})]
        return [message]

    troupe.lies = lies
    assert_exact(troupe, 1, devices=5)
    assert "version 0 is not the model that the operator signed" in refusals(troupe)


def test_it_asks_for_a_group_of_too_few() -> None:
    troupe = a_troupe()
    troupe.run_to(Bind, count=6)
    for at, (sender, to, message) in enumerate(list(troupe.queue)):
        if isinstance(message, Bind):
            troupe.queue[at] = (sender, to, replace(message, members=bits_of(range(3), 6)))
    troupe.run(lambda: len(troupe.said(Unbind)) >= 6, most=300)
    assert "it must have at least 4" in refusals(troupe)
    assert not troupe.said(Update)


def declined(troupe: SealedTroupe) -> list[str]:
    return [record.reason for record in troupe.records if record.kind == "lease.declined"]


def tells(troupe: SealedTroupe, **changed: object) -> None:
    """One device is lent something else than the others."""

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, Work) and to == "d1":
            return [replace(message, **changed)]  # type: ignore[arg-type]
        if isinstance(message, Update) and sender == "d1":
            # Such a leader minds nothing.
            return [replace(message, version=0)]
        return [message]

    troupe.lies = lies


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"rate": 1e-30}, "a learning rate of 1e-30; the plan has 0"),
        ({"rate": 1e6}, "a learning rate of 1e+06; the plan has 0"),
        ({"examples": 1}, "the lease has 1 examples; the plan has 64"),
        ({"examples": 6400}, "the lease has 6400 examples; the plan has 64"),
    ],
)
def test_it_names_another_rate_or_size_and_the_lease_is_not_taken(changed: dict[str, object], reason: str) -> None:
    troupe = a_troupe()
    tells(troupe, **changed)
    troupe.run(lambda: troupe.leader.version >= 1, most=2000)
    assert any(reason in each for each in declined(troupe)), declined(troupe)
    assert not troupe.devices["d1"].trained
    assert not any(sender == "d1" for sender, *_ in troupe.said(Update))


@pytest.mark.parametrize("changed", [{"epoch": 3}, {"version": 1}])
def test_it_tells_a_device_another_epoch_or_version_and_gets_no_sum(changed: dict[str, object]) -> None:
    troupe = a_troupe()
    tells(troupe, **changed)
    troupe.run(lambda: sum(record.kind == "group.voided" for record in troupe.records) >= 2, most=4000)
    assert sum(record.kind == "group.voided" for record in troupe.records) >= 2
    assert troupe.leader.version == 0


def test_it_names_a_turn_and_the_device_draws_its_own() -> None:
    troupe = a_troupe()
    tells(troupe, batches=(7,))
    troupe.run(lambda: troupe.leader.version >= 2)
    turns = [train.batches for train in troupe.devices["d1"].trained]
    assert (7,) not in turns
    assert len(set(turns)) == len(turns)


def test_it_weighs_one_device_over_the_others_and_they_refuse() -> None:
    troupe = a_troupe()

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        return [replace(message, weight_most=64 * 5)] if isinstance(message, Bind) else [message]

    troupe.lies = lies
    troupe.run(lambda: len(troupe.said(SealRefused)) >= 6, most=400)
    assert "Bind.weight_most is 320; with" in refusals(troupe)
    assert not troupe.said(Update)


def test_it_hides_that_a_group_is_void_and_an_update_is_in_no_second_one() -> None:
    """d0 is never asked to agree, so that it cannot know that others open the sum with its words."""
    troupe = a_troupe()

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        # Nor is it assigned anything else: it still has that update.
        is_kept_back = isinstance(message, Agree | Unbind) or (isinstance(message, Work) and bool(troupe.said(Bind)))
        return [] if to == "d0" and is_kept_back else [message]

    troupe.lies = lies
    troupe.run(lambda: troupe.leader.version >= 1)
    bind = next(message for _, to, message in troupe.said(Bind) if isinstance(message, Bind) and to == "d0")
    before = len(troupe.sealed)
    troupe.hears("d0", replace(bind, group=9))
    troupe.run(lambda: not troupe.queue, most=200)
    assert "sealed before" in refusals(troupe)
    assert not [seal for node, seal in troupe.sealed[before:] if node == "d0" and seal.lease == bind.lease]


def test_the_loss_is_a_word_of_the_sum_and_no_figure_is_told() -> None:
    troupe = a_troupe()
    assert_exact(troupe, 1, devices=6)
    uploads = [message for *_, message in troupe.said(Update) if isinstance(message, Update)]
    assert {message.loss_sum for message in uploads} == {0.0}
    # Each device trained with a loss of 1 in all; the leader knows the mean of their means.
    made = [examples for _, examples in troupe.made.values()][:6]
    assert troupe.leader._training.train_loss == pytest.approx(sum(1 / each for each in made) / 6, rel=1e-3)


@pytest.mark.parametrize("codec", ["dense", "int16"])
def test_a_training_that_diverges_is_zeros_in_the_sum_and_nobody_says_whose(codec: str) -> None:
    troupe = a_troupe(codec=codec)
    troupe.diverges = {"d2"}
    troupe.run(lambda: troupe.leader.version >= 1)
    assert troupe.leader.version == 1
    assert not troupe.said(Failed)
    assert np.isfinite(troupe.leader.model).all()


def test_a_job_most_of_whose_trainings_diverge_fails_and_says_what_to_do() -> None:
    troupe = a_troupe()
    troupe.diverges = set(NAMES)
    troupe.run()
    ending = [record.reason for record in troupe.records if record.kind == "end.decided"]
    assert ending
    assert "try a lower learning rate" in ending[0]


def test_a_device_of_an_older_form_is_in_no_group() -> None:
    troupe = a_troupe()

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, SealKey) and sender == "d5":
            return [replace(message, key=replace(message.key, form=1))]
        return [message]

    troupe.lies = lies
    troupe.run(lambda: troupe.leader.version >= 1)
    assert any("seals by form 1, not 2: upgrade it" in record.reason for record in troupe.records)
    assert not any(to == "d5" for _, to, _ in troupe.said(Bind))
