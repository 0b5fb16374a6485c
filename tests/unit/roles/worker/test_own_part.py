"""The own part of a model goes on from a lease only if the leader took the update of that lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.roles.actions import Action, End, SettleOwn, Train, UndoOwn
from shoal.roles.events import Connected, Disconnected, Prepared, Reassigned, Received, Started, Trained, TrainerFailed
from shoal.roles.worker.worker import Worker
from shoal.wire.messages import Finished, Go, JobSpec, Message, UpdateRefused, Wait, Work

MODEL = {"model": np.array([1, 2], dtype=np.float32)}
DELTA = {"delta": np.array([0.5, 0.5], dtype=np.float32)}

TAKEN, BACK = SettleOwn(lease=1, taken=True), SettleOwn(lease=1, taken=False)


class Device:
    """A worker whose model has an own part; every action it takes is kept."""

    def __init__(self, spec: JobSpec, *, has_own: bool = True) -> None:
        self.worker = Worker(spec=spec, leader="home", term=1)
        self.all: list[Action] = []
        for event in (Started(), Connected(node="home"), Prepared(has_own=has_own)):
            self.happens(event)

    def happens(self, event: Any) -> list[Action]:
        actions = self.worker.handle(event, 0.0)
        self.all += actions
        return actions

    def hears(self, message: Message) -> list[Action]:
        return self.happens(Received(sender="home", message=message))

    def trains(self, lease: int = 1, **changes: Any) -> None:
        self.hears(work(lease, **changes))
        self.happens(Trained(lease=lease, examples=1, loss_sum=0.5, seconds=0.1, tensors=DELTA))

    @property
    def settled(self) -> list[Action]:
        return [action for action in self.all if isinstance(action, SettleOwn)]


def work(lease: int, *, version: int = 0, term: int = 1, **changes: Any) -> Work:
    given: dict[str, Any] = {"kind": "train", "batches": (4,), "deadline_s": 60.0, "tensors": MODEL, "credit": True}
    return Work(job="digits", term=term, lease=lease, version=version, **given | changes)


def refused(lease: int, term: int = 1) -> UpdateRefused:
    return UpdateRefused(job="digits", term=term, lease=lease, reason="lease expired")


@pytest.fixture
def device(make_spec: Callable[..., JobSpec]) -> Device:
    return Device(make_spec())


def test_the_next_lease_begins_after_the_own_part_was_kept(device: Device) -> None:
    device.trains(1)
    assert device.settled == []
    kinds = [type(action) for action in device.hears(work(2, version=1)) if isinstance(action, SettleOwn | Train)]
    assert kinds == [SettleOwn, Train]
    assert device.settled == [TAKEN]


def test_a_reason_to_wait_is_a_word_too_and_counts_once(device: Device) -> None:
    device.trains(1)
    device.hears(Wait(job="digits", reason="others train"))
    device.hears(Wait(job="digits", reason="others train"))
    device.hears(work(2, version=1))
    assert device.settled == [TAKEN]


def test_a_refused_update_takes_the_own_part_back(device: Device) -> None:
    device.trains(1)
    device.hears(refused(1))
    device.hears(work(2, version=1))
    assert device.settled == [BACK]


def test_a_word_that_crossed_the_update_does_not_save_it(device: Device) -> None:
    device.trains(1)
    device.hears(Wait(job="digits", reason="on its way before the update came"))
    device.hears(refused(1))
    device.hears(refused(1))
    assert device.settled == [TAKEN, BACK]


def test_an_update_that_waits_for_room_is_not_taken_yet(device: Device) -> None:
    device.trains(1, credit=False)
    device.hears(Wait(job="digits", reason="busy"))
    assert device.settled == []
    device.hears(Go(job="digits", term=1, lease=1))
    device.hears(work(2, version=1))
    assert device.settled == [TAKEN]


def test_an_offer_that_another_lease_replaces_is_lost(device: Device) -> None:
    device.trains(1, credit=False)
    device.hears(work(2, version=1))
    assert device.settled == [BACK]


def test_an_update_that_may_have_been_lost_with_the_session_does_not_count(device: Device) -> None:
    device.trains(1)
    device.happens(Disconnected(node="home", reason="cut"))
    device.happens(Connected(node="home"))
    device.hears(work(2, version=1))
    assert device.settled == [BACK]


def test_an_update_that_is_kept_through_a_cut_may_still_be_taken(device: Device) -> None:
    device.hears(work(1))
    device.happens(Disconnected(node="home", reason="cut"))
    device.happens(Trained(lease=1, examples=1, loss_sum=0.5, seconds=0.1, tensors=DELTA))
    assert device.settled == []
    device.happens(Connected(node="home"))
    device.hears(work(2, version=1))
    assert device.settled == [TAKEN]


def test_a_new_leader_has_not_taken_what_the_old_one_was_sent(device: Device) -> None:
    device.trains(1)
    device.happens(Reassigned(leader="home", term=2))
    device.hears(work(1, version=1, term=2))
    assert device.settled == [BACK]


def test_an_update_that_left_before_the_trainer_died_counts(device: Device) -> None:
    device.trains(1)
    device.happens(TrainerFailed(lease=1, reason="killed"))
    device.happens(Prepared(has_own=True))
    device.hears(work(2, version=1))
    assert device.settled == [TAKEN]


def test_what_diverged_is_never_kept(device: Device) -> None:
    device.hears(work(1))
    device.happens(Trained(lease=1, examples=1, loss_sum=float("nan"), seconds=0.1, tensors=DELTA))
    device.hears(work(2, version=1))
    assert device.settled == []


def test_the_last_update_of_a_job_counts(device: Device) -> None:
    device.trains(1)
    done = device.hears(Finished(job="digits", reason="the goal was reached"))
    kinds = [type(action) for action in done if isinstance(action, SettleOwn | End)]
    assert kinds == [SettleOwn, End]


def test_a_model_without_an_own_part_has_nothing_to_settle(make_spec: Callable[..., JobSpec]) -> None:
    device = Device(make_spec(), has_own=False)
    device.trains(1)
    device.hears(refused(1))
    device.trains(2)
    device.hears(work(3, version=1))
    assert device.settled == []


def test_a_copy_of_an_update_that_was_merged_changes_nothing(device: Device) -> None:
    device.trains(1)
    device.hears(replace(refused(1), is_copy=True))
    device.hears(replace(refused(1), is_copy=True))
    device.hears(work(2, version=1))
    assert device.settled == [TAKEN]


def test_leases_that_a_new_leader_lacks_are_taken_back(device: Device) -> None:
    for lease, version in ((1, 3), (2, 4), (3, 5)):
        device.trains(lease, version=version)
    device.hears(Wait(job="digits", reason="others train"))
    assert [action.undoable for action in device.settled if isinstance(action, SettleOwn)] == [1, 2, 3]
    device.happens(Reassigned(term=2, leader="home"))
    done = device.hears(work(1, version=4, term=2, began=4))
    kinds = [action for action in done if isinstance(action, UndoOwn | Train)]
    assert kinds[0] == UndoOwn(leases=2)
    assert isinstance(kinds[1], Train)
    assert not [action for action in device.hears(work(2, version=5, term=2, began=4)) if isinstance(action, UndoOwn)]


def test_what_is_durable_is_never_taken_back(device: Device) -> None:
    for lease, version in ((1, 3), (2, 4)):
        device.trains(lease, version=version)
    device.trains(3, version=5, durable_version=5)
    device.hears(Wait(job="digits", reason="others train"))
    assert device.settled[-1] == SettleOwn(lease=3, taken=True, undoable=2)
    device.happens(Reassigned(term=2, leader="home"))
    assert UndoOwn(leases=1) in device.hears(work(1, version=5, term=2, began=5))


def test_a_leader_that_goes_on_from_the_last_version_takes_nothing_back(device: Device) -> None:
    device.trains(1, version=3)
    device.hears(Wait(job="digits", reason="others train"))
    device.happens(Reassigned(term=2, leader="home"))
    assert not [action for action in device.hears(work(1, version=4, term=2, began=4)) if isinstance(action, UndoOwn)]


def test_an_update_that_a_new_leader_has_was_taken(device: Device) -> None:
    device.trains(1, version=3)
    device.happens(Disconnected(node="home", reason="its leader was killed"))
    device.happens(Reassigned(leader="home", term=2))
    device.happens(Connected(node="home"))
    device.hears(Wait(job="digits", reason="others come"))
    assert device.settled == []
    device.hears(work(1, version=4, term=2, began=4))
    assert device.settled == [TAKEN]
