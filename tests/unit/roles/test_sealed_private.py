"""Sealed sums whose devices add the noise: each group is counted first, no sum lacks noise, and none has it twice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sealed_troupe import SealedTroupe, a_plan

from shoal.learning.privacy import SharedPrivacy
from shoal.roles.actions import Participate
from shoal.sealing.group import bits_of
from shoal.wire.messages import Agree, Bind, Failed, Message, Offer, Open, Opened, Ready, SealRefused, Unbind, Update

NAMES = [f"d{number}" for number in range(6)]
TRUST = "sealed(4, 0%, 30%) + private(20, 1e-5)"


def a_troupe(devices: int = 6, **plan: object) -> SealedTroupe:
    given = {"trust": TRUST, "cohort": 6, "workers_min": 5, "clip_update": 0.3, "participations": 5, **plan}
    troupe = SealedTroupe(a_plan(**given))  # type: ignore[arg-type]
    troupe.joins(*NAMES[:devices])
    return troupe


def privacy_of(troupe: SealedTroupe) -> SharedPrivacy:
    privacy = troupe.spec.plan.privacy
    assert isinstance(privacy, SharedPrivacy)
    return privacy


def assert_version(troupe: SealedTroupe, version: int, *, devices: int) -> None:
    """The model moved by what the devices of the version encoded, divided by the plan's number of them."""
    troupe.run(lambda: troupe.leader.version >= version - 1)
    before = troupe.leader.model
    troupe.run(lambda: troupe.leader.version >= version)
    assert troupe.leader.version == version
    privacy = privacy_of(troupe)
    rows = [row for save in troupe.saves for row in save.applied if row.version == version]
    assert len(rows) == devices
    group = max(group for _, term, group in troupe.shares if term == troupe.leader.term)
    words = sum(troupe.shares[row.node, troupe.leader.term, group][0] for row in rows)
    expected = words / privacy.point.steps / privacy.devices
    assert np.allclose(troupe.leader.model - before, expected, atol=1e-5)


def test_a_version_is_the_sum_of_cut_updates_and_everybodys_noise() -> None:
    troupe = a_troupe()
    privacy = privacy_of(troupe)
    assert (troupe.spec.plan.opened_least, privacy.certain) == (5, 5)
    assert_version(troupe, 1, devices=6)
    for (node, *_), (words, noise) in troupe.shares.items():
        steps = words - noise
        delta, _ = troupe.made[node, 1, next(seal.lease for name, seal in troupe.sealed if name == node)]
        cut = delta * min(1.0, 0.3 / float(np.linalg.norm(delta)))
        assert np.linalg.norm(steps) <= privacy.point.length
        assert np.allclose(steps / privacy.point.steps, cut, atol=1e-3 + 1.5 / privacy.point.steps)
    assert_version(troupe, 2, devices=6)
    # Each counted both, before its words left.
    assert {len(taken) for taken in troupe.disks.values()} == {2}
    drawn = [noise.tobytes() for _, noise in troupe.shares.values()]
    assert len(set(drawn)) == len(drawn) == 12


def test_an_update_tells_nothing_of_its_examples_but_itself() -> None:
    troupe = a_troupe()
    assert_version(troupe, 1, devices=6)
    uploads = [message for *_, message in troupe.said(Update) if isinstance(message, Update)]
    assert {message.loss_sum for message in uploads} == {0.0}
    assert len({message.examples for message in uploads}) == 1
    assert {message.state.participations for message in uploads if message.state is not None} == {1}


def test_nothing_is_counted_for_an_offer_and_words_wait_for_the_disk() -> None:
    troupe = a_troupe()
    asked: list[tuple[str, Participate]] = []

    def slow(node: str, action: Participate) -> bool:
        asked.append((node, action))
        assert not [each for each in troupe.sealed if each[0] == node]
        return False

    troupe.counts = slow
    troupe.run_to(Bind)
    assert len(troupe.said(Offer)) == 6
    assert not any(troupe.disks.values())
    assert_version(troupe, 1, devices=6)
    assert {action.group for _, action in asked} == {1}


def test_a_void_group_costs_its_devices_a_participation() -> None:
    troupe = a_troupe()
    troupe.run_to(Update, count=6)
    # Two vanish with their words: the noise of the four that are left is too little.
    troupe.loses("d0", "d1")
    troupe.run(most=400)
    assert troupe.leader.version == 0
    assert not troupe.said(Opened)
    troupe.joins("d6", "d7")
    assert_version(troupe, 1, devices=6)
    # Sealed twice: a device cannot know that the first sum was not opened.
    assert {node: len(taken) for node, taken in troupe.disks.items()} == {
        **dict.fromkeys(("d0", "d1", "d6", "d7"), 1),
        **dict.fromkeys(("d2", "d3", "d4", "d5"), 2),
    }
    twice = [noise for (node, *_), (_, noise) in troupe.shares.items() if node == "d2"]
    assert not np.array_equal(twice[0], twice[1])


def test_a_device_refuses_a_group_that_its_account_does_not_allow() -> None:
    """Its leader knows better, and asks all the same."""
    troupe = a_troupe(participations=1)
    troupe.run_to(Update, count=6)
    bind = next(message for _, to, message in troupe.said(Bind) if isinstance(message, Bind) and to == "d0")
    troupe.queue.clear()
    # A device seals an update once. Its account refuses a second group even if it did not.
    troupe.devices["d0"].worker._sealing._spent = (0, 0)  # type: ignore[union-attr]
    troupe.hears("d0", replace(bind, group=2))
    troupe.run(lambda: bool(troupe.said(SealRefused)), most=10)
    refused = [message for *_, message in troupe.said(SealRefused) if isinstance(message, SealRefused)]
    assert "took part 1 times, of 1" in refused[0].reason
    assert len(troupe.disks["d0"]) == 1
    assert [seal.request.label.group for node, seal in troupe.sealed if node == "d0"] == [1]


def test_a_device_counts_what_is_being_written_down() -> None:
    """Two groups at once, and one participation left: the second is refused though the first is not on the disk yet."""
    troupe = a_troupe(participations=1)
    held: list[tuple[str, Participate]] = []
    troupe.run_to(Bind, count=6)
    worker = troupe.devices["d0"].worker
    notes, troupe._notes = troupe._notes, lambda node, action: held.append((node, action))  # type: ignore[method-assign]
    bind = next(message for _, to, message in troupe.queue if isinstance(message, Bind) and to == "d0")
    roster = [message for _, to, message in troupe.queue if to == "d0" and not isinstance(message, Bind)]
    troupe.queue.clear()
    for message in (*roster, bind, replace(bind, group=2)):
        troupe.hears("d0", message)
    troupe.run(lambda: not troupe.queue, most=50)
    assert [(action.group, node) for node, action in held] == [(1, "d0")]
    assert [message.group for *_, message in troupe.said(SealRefused) if isinstance(message, SealRefused)] == [2]
    for node, action in held:
        notes(node, action)
    assert len(troupe.disks["d0"]) == 1
    assert worker.term == 1


def test_a_device_whose_disk_is_full_seals_nothing() -> None:
    troupe = a_troupe()
    troupe.counts = lambda node, action: node == "d3"
    assert_version(troupe, 1, devices=5)
    assert not [node for node, _ in troupe.sealed if node == "d3"]
    failed = [message.reason for *_, message in troupe.said(Failed) if isinstance(message, Failed)]
    assert failed[0] == "the disk is full"


@pytest.mark.parametrize(
    ("members", "told"),
    [(range(4), "group has 4 members; it must have at least 5"), (range(7), "by the plan's privacy it may have 6")],
)
def test_a_group_in_which_noise_would_be_too_little_is_refused(members: range, told: str) -> None:
    troupe, size = a_troupe(), max(6, len(members))
    if size > 6:
        troupe.joins("d6")
    troupe.run_to(Bind)
    for at, (sender, to, message) in enumerate(list(troupe.queue)):
        if isinstance(message, Bind):
            troupe.queue[at] = (sender, to, replace(message, members=bits_of(members, size)))
    troupe.run(lambda: bool(troupe.said(SealRefused)), most=300)
    refused = [message for *_, message in troupe.said(SealRefused) if isinstance(message, SealRefused)]
    assert any(told in message.reason for message in refused)
    assert not troupe.shares or all(len(seal.request.label.members) != len(members) for _, seal in troupe.sealed)


def test_a_set_with_too_little_noise_is_not_agreed_to() -> None:
    """Four are enough to hide each other by ``sealed(4)``; their noise is not."""
    troupe = a_troupe()
    troupe.run_to(Agree)
    for at, (sender, to, message) in enumerate(list(troupe.queue)):
        if isinstance(message, Agree):
            troupe.queue[at] = (sender, to, replace(message, present=bits_of(range(4), 6)))
    troupe.run(most=400)
    refused = [message for *_, message in troupe.said(SealRefused) if isinstance(message, SealRefused)]
    assert any("a sum of 4 members, where at least 5 hide each other" in message.reason for message in refused)
    assert not [m for *_, m in troupe.said(Open) if isinstance(m, Open) and m.group == 1]


def test_a_job_whose_devices_are_spent_is_over_and_says_so() -> None:
    troupe = a_troupe(participations=2)
    troupe.run(most=6000)
    assert troupe.leader.version == 2
    said = troupe.leader.progress()
    assert said.reason is not None
    assert "the accounts of too many of the 6 devices here are spent: a sum is of 5 or more" in said.reason
    assert said.epsilon_worst == pytest.approx(20.0, rel=1e-3)
    assert said.participations_worst == 2
    assert said.epsilon == pytest.approx(20.0, rel=1e-3)


def test_offers_that_nobody_can_hide_are_given_up_when_accounts_are_spent() -> None:
    """Two fresh devices wait with their updates for others, whose accounts are spent."""
    troupe = a_troupe(participations=1)
    assert_version(troupe, 1, devices=6)
    troupe.joins("d6", "d7")
    troupe.run(most=3000)
    assert troupe.leader.version == 1
    assert "are spent" in (troupe.leader.progress().reason or "")


def test_what_a_device_spent_is_in_what_it_says() -> None:
    troupe = a_troupe()
    assert_version(troupe, 1, devices=6)
    said = troupe.leader.progress()
    privacy = privacy_of(troupe)
    assert said.epsilon_worst == pytest.approx(privacy.epsilon_of(privacy.spent([1])), rel=1e-6)
    readies = [message for *_, message in troupe.said(Ready) if isinstance(message, Ready)]
    assert readies[0].state is not None
    assert (readies[0].state.participations, readies[0].state.participations_left) == (0, 5)


def test_a_new_leader_gets_no_second_look() -> None:
    troupe = a_troupe()
    troupe.run_to(Update, count=6)
    troupe.dies()
    assert_version(troupe, 1, devices=6)
    drawn = [noise.tobytes() for _, noise in troupe.shares.values()]
    assert len(set(drawn)) == len(drawn)
    assert all(len(taken) == 2 for taken in troupe.disks.values())
    unbound: list[Message] = [message for *_, message in troupe.said(Unbind)]
    assert not unbound
