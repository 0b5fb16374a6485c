"""Deliberate bugs of sealed sums must be caught: by seeds that draw them, and by leaders that lie or die at each word.

The stories are played with the roles alone, so that a leader may say what no leader of ours would.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from caught import is_caught
from sealed_troupe import HOME, SIZE, SealedTroupe, a_plan

from benchmarks.sealed import labels_of
from dst.fuzz import fuzz
from dst.seal_oracle import SealOracle
from shoal.compress.feedback import Feedback
from shoal.compress.sparse import Sparse
from shoal.roles.leader.gathering import sealing as leader_sealing
from shoal.roles.worker.sealing import DeviceSealing
from shoal.roles.worker.worker import Worker
from shoal.sealing import device
from shoal.sealing.device import SealedUpdate
from shoal.sealing.group import bits_of
from shoal.sealing.label import Label
from shoal.sealing.opening import Mask, SumOpening
from shoal.sim.driver.seal_keys import SimSealKeys
from shoal.sim.invariants import Violation
from shoal.wire.coded import encode_places
from shoal.wire.messages import Agree, Agreed, Bind, MemberKey, Message, Open, Opened, Update

NAMES = [f"d{number}" for number in range(6)]

#: A bug that seeds are to find is found within so many.
SEEDS_MAX = 40

Story = Callable[[], None]


def _troupe() -> SealedTroupe:
    troupe = SealedTroupe(a_plan())
    troupe.joins(*NAMES)
    return troupe


def _is_exact(troupe: SealedTroupe) -> None:
    troupe.run(lambda: troupe.leader.version >= 1)
    moved = troupe.leader.model - troupe.first
    if troupe.leader.version != 1 or not np.allclose(moved, troupe.mean_of(1), atol=1e-6):
        raise Violation("the version is not the sum of its updates")


def dies_at_each_word() -> None:
    for word in (Bind, Update, Agree, Agreed, Open, Opened):
        troupe = _troupe()
        troupe.run_to(word)
        troupe.loses("d2")
        _is_exact(troupe)


def leader_dies_at_each_word() -> None:
    for word in (Update, Agreed, Opened):
        troupe = _troupe()
        troupe.run_to(word)
        troupe.dies()
        _is_exact(troupe)


def names_two_sets() -> None:
    troupe = _troupe()
    troupe.run_to(Agreed, count=6)
    agree = next(message for *_, message in troupe.said(Agree) if isinstance(message, Agree))
    for node in NAMES[:5]:
        troupe.hears(node, replace(agree, present=bits_of(range(5), 6)))
    troupe.run(most=400)


def replays_groups() -> None:
    troupe = _troupe()
    troupe.run_to(Agree)
    for _, to, message in troupe.said(Bind):
        troupe.hears(to, message)
    _is_exact(troupe)


def wants_an_update_in_two_sums() -> None:
    """It plays both groups to their end: the second sum lacks one device."""
    troupe = _troupe()
    troupe.run_to(Opened, count=6)
    second = [(to, message) for _, to, message in troupe.said(Bind) if isinstance(message, Bind)]
    asked = {to: message for _, to, message in troupe.said(Open) if isinstance(message, Open)}
    agree = next(message for *_, message in troupe.said(Agree) if isinstance(message, Agree))
    uploads: dict[str, Update] = {}

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, Update) and message.group == 2:
            uploads[sender] = message
        return [message] if sender == HOME else []

    troupe.lies = lies
    troupe.queue.clear()
    for to, bind in second:
        troupe.hears(to, replace(bind, group=2))
    troupe.run(lambda: len(uploads) == 6, most=200)
    if len(uploads) < 6:
        return
    for to in NAMES:
        troupe.hears(to, replace(agree, group=2))
    troupe.run(lambda: not troupe.queue, most=100)
    macs = {
        sender: action.message
        for sender, worker in troupe.devices.items()
        for action in [_agreed_by(worker.worker)]
        if action is not None
    }
    opening = _opening(troupe, uploads)
    for place, node in enumerate(NAMES):
        if node in macs:
            opening.on_agreed(place, macs[node].macs)
    opening.begin()
    for place, node in enumerate(NAMES):
        request = opening.request(place)
        troupe.hears(node, replace(asked[node], group=2, macs=request.macs, envelopes=request.envelopes))
    troupe.run(lambda: not troupe.queue, most=100)


def _agreed_by(worker: Any) -> Any:
    kept = worker._sealing._kept
    if kept is None:
        return None
    macs = kept[1].agree(frozenset(range(6)))
    return type("Said", (), {"message": Agreed(job="job", term=1, group=2, macs=macs)})()


def _opening(troupe: SealedTroupe, uploads: dict[str, Update]) -> SumOpening:
    group = next(seal.request.group for _, seal in troupe.sealed)
    return SumOpening(group, {place: uploads[node].tensors["seals"].tobytes() for place, node in enumerate(NAMES)})


def asks_for_too_few() -> None:
    troupe = _troupe()
    troupe.run_to(Bind, count=6)
    for at, (sender, to, message) in enumerate(list(troupe.queue)):
        if isinstance(message, Bind):
            troupe.queue[at] = (sender, to, replace(message, members=bits_of(range(3), 6)))
    troupe.run(most=300)


def words_of_16_bits_are_summed() -> None:
    """The updates are as long as the bound: a sum that wraps is far off."""
    troupe = SealedTroupe(a_plan(codec="int16"))
    troupe.joins(*NAMES)
    troupe.run(lambda: troupe.leader.version >= 1)
    moved, wanted = troupe.leader.model - troupe.first, np.clip(troupe.mean_of(1), -1, 1)
    if troupe.leader.version != 1 or np.abs(moved - wanted).max() > 0.01:
        raise Violation("the version is not the sum of its updates")


def _of_some_places(codec: str = "led30%+ef") -> SealedTroupe:
    troupe = SealedTroupe(a_plan(codec=codec))
    troupe.joins(*NAMES)
    return troupe


def sums_of_some_places_are_exact() -> None:
    """Version by version; the troupe's oracle watches what devices hold back."""
    troupe = _of_some_places()
    for version in (1, 2, 3):
        before = troupe.leader.model.copy()
        troupe.run(lambda wanted=version: troupe.leader.version >= wanted)
        moved, mean = troupe.leader.model - before, troupe.mean_of(version)
        if not np.allclose(moved, mean, atol=1e-5) or not moved.any():
            raise Violation(f"version {version} is not the sum of its updates")


def a_group_is_void_and_its_devices_train_again() -> None:
    """Three of six die with their uploads: too few are left, until others come."""
    troupe = _of_some_places()
    troupe.run_to(Update, count=6)
    troupe.loses(*NAMES[3:])
    troupe.run(lambda: not troupe.queue)
    troupe.joins("e0", "e1", "e2")
    troupe.run(lambda: troupe.leader.version >= 3)
    again = [node for node, seal in troupe.sealed if seal.request.label.group == 2]
    if troupe.leader.version < 3 or not set(again) >= set(NAMES[:3]):
        raise Violation("the job stands still")


def tells_devices_other_places() -> None:
    """One device is told other places: what it masks does not add up with the rest, and nothing opens."""
    troupe = _of_some_places()

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, Bind) and to == "d2":
            return [replace(message, tensors=encode_places(np.arange(9), SIZE))]
        return [message]

    troupe.lies, troupe.oracle = lies, SealOracle([])
    troupe.run(lambda: troupe.leader.version >= 1, most=1500)
    if troupe.leader.version:
        raise Violation("a sum of updates at different places was opened")


STORIES: list[Story] = [
    dies_at_each_word,
    leader_dies_at_each_word,
    names_two_sets,
    replays_groups,
    wants_an_update_in_two_sums,
    asks_for_too_few,
    words_of_16_bits_are_summed,
    sums_of_some_places_are_exact,
    a_group_is_void_and_its_devices_train_again,
    tells_devices_other_places,
]


@pytest.mark.parametrize("story", STORIES)
def test_without_a_bug_every_story_holds(story: Story) -> None:
    story()


# Bugs -----------------------------------------------------------------------------------------------------------


def term_missing_from_the_label() -> AbstractContextManager[Any]:
    """Labels have no term, and keys outlive their term: either safeguard alone would hold."""
    digest, make = Label.digest, SimSealKeys.make

    def without_term(self: Label) -> bytes:
        return digest(replace(self, term=0))

    def once(self: SimSealKeys, term: int) -> MemberKey:
        self._count = 0
        return make(self, term)

    stack = ExitStack()
    stack.enter_context(patch.object(Label, "digest", without_term))
    stack.enter_context(patch.object(SimSealKeys, "make", once))
    return stack


def share_after_edge() -> AbstractContextManager[Any]:
    """A device agrees to whatever set it is told of last."""
    agree = SealedUpdate.agree

    def forgetful(self: SealedUpdate, present: frozenset[int]) -> bytes:
        self._present = None
        return agree(self, present)

    return patch.object(SealedUpdate, "agree", forgetful)


def labels_may_come_again() -> AbstractContextManager[Any]:
    """A replayed group is sealed for once more. That an update is sealed once would hold too."""
    on_bind = DeviceSealing.on_bind

    def again(self: DeviceSealing, held: Any, bind: Bind) -> None:
        self._newest = self._spent = (0, 0)
        on_bind(self, held, bind)

    return patch.object(DeviceSealing, "on_bind", again)


def nothing_is_spent() -> AbstractContextManager[Any]:
    """An update that left sealed is sealed again."""
    on_sealed = DeviceSealing.on_sealed

    def unspent(self: DeviceSealing, held: Any, event: Any) -> None:
        on_sealed(self, held, event)
        self._spent = (0, 0)

    return patch.object(DeviceSealing, "on_sealed", unspent)


def any_number_is_enough() -> AbstractContextManager[Any]:
    """The plan's least is not heeded by devices."""
    request = DeviceSealing._request

    def of_any(self: DeviceSealing, work: Any, update: Update, bind: Bind) -> Any:
        self._least = 1
        return request(self, work, update, bind)

    return patch.object(DeviceSealing, "_request", of_any)


def masks_are_left_out() -> AbstractContextManager[Any]:
    """An update leaves its device as whole numbers, readable by anybody."""
    return patch.object(device, "add_all", lambda to, keys, *, start=0: None)


def edges_of_the_lost_stay() -> AbstractContextManager[Any]:
    """The masks between those that are in the sum and those that are not are not taken off."""
    masks = SumOpening.masks

    def own_alone(self: SumOpening) -> list[Mask]:
        return masks(self)[: len(self.present)]

    return patch.object(SumOpening, "masks", own_alone)


def weights_are_forgotten() -> AbstractContextManager[Any]:
    """The sum is divided by the devices, and not by their examples."""
    decode = leader_sealing.FixedPoint.decode

    def by_devices(self: Any, total: np.ndarray, *, times: float) -> np.ndarray:
        return decode(self, total, times=1.0 / self.devices)

    return patch.object(leader_sealing.FixedPoint, "decode", by_devices)


def each_device_fills_a_word() -> AbstractContextManager[Any]:
    """The largest number of one device is the largest of a sum: a sum wraps."""

    def of_one(self: Any) -> int:
        return (1 << (self.bits - 1)) - 1 if self.bits == 16 else 1 << 20

    return patch.object(leader_sealing.FixedPoint, "limit", property(of_one))


def a_device_uses_other_places() -> AbstractContextManager[Any]:
    """It seals the places beside those that it was told."""
    request = DeviceSealing._request

    def beside(self: DeviceSealing, work: Any, update: Update, bind: Bind) -> Any:
        asked = request(self, work, update, bind)
        if asked.places is None:
            return asked
        return replace(asked, places=np.sort((asked.places + 1) % asked.update.size))

    return patch.object(DeviceSealing, "_request", beside)


def places_missing_from_the_label() -> AbstractContextManager[Any]:
    digest = Label.digest
    return patch.object(Label, "digest", lambda self: digest(replace(self, places=b"")))


def nothing_is_held_back() -> AbstractContextManager[Any]:
    """What was not sent is forgotten."""

    def forget(self: Feedback, sent: Any) -> None:
        self.reset()

    return patch.object(Feedback, "sent", forget)


def what_was_sent_is_held_back_too() -> AbstractContextManager[Any]:
    return patch.object(Worker, "_hold_back", lambda self, held, event: None)


def what_was_sent_is_taken_off_twice() -> AbstractContextManager[Any]:
    """A part of an update is missing from then on."""
    hold_back = Worker._hold_back

    def twice(self: Worker, held: Any, event: Any) -> None:
        hold_back(self, held, event)
        if event.kept is not None and event.kept.places is not None and self._feedback is not None:
            places = event.kept.places
            self._feedback.sent(Sparse(self._feedback.size, places, held.result.tensors["delta"][places]))

    return patch.object(Worker, "_hold_back", twice)


def the_sum_is_put_beside_its_places() -> AbstractContextManager[Any]:
    class Beside(Sparse):
        def dense(self) -> np.ndarray:
            return np.roll(Sparse.dense(self), 1)

    return patch.object(leader_sealing, "Sparse", Beside)


MUTANTS = [
    term_missing_from_the_label,
    share_after_edge,
    labels_may_come_again,
    nothing_is_spent,
    any_number_is_enough,
    masks_are_left_out,
    edges_of_the_lost_stay,
    weights_are_forgotten,
    each_device_fills_a_word,
    a_device_uses_other_places,
    places_missing_from_the_label,
    nothing_is_held_back,
    what_was_sent_is_held_back_too,
    what_was_sent_is_taken_off_twice,
    the_sum_is_put_beside_its_places,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_bug_is_caught(mutant: Callable[[], AbstractContextManager[Any]]) -> None:
    assert is_caught(mutant, STORIES), f"{mutant.__name__} went unnoticed"


# Seeds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mutant",
    [
        a_device_uses_other_places,
        nothing_is_held_back,
        what_was_sent_is_held_back_too,
        the_sum_is_put_beside_its_places,
    ],
)
def test_a_bug_with_agreed_places_is_caught_by_seeds(mutant: Callable[[], AbstractContextManager[Any]]) -> None:
    with mutant():
        for seed in range(100_000 + 1, 100_000 + 1 + SEEDS_MAX):
            try:
                fuzz("sealed-led", seed)
            except Violation:
                return
    pytest.fail(f"{mutant.__name__} was not seen in {SEEDS_MAX} seeds")


#: A leader of it dies, and the next one binds the same devices.
SEED_OF_TWO_TERMS = 40_028


def test_labels_are_counted_over_leaders_that_die() -> None:
    told = labels_of([SEED_OF_TWO_TERMS])
    assert told["labels_used"] > 20
    assert told["labels_jobs_of_several_leaders"] >= 1
    assert told["labels_twice"] == 0


def test_a_label_without_its_term_would_be_counted() -> None:
    """The masks of two terms are one where keys outlive their term and the label does not name it."""
    with term_missing_from_the_label():
        assert labels_of([SEED_OF_TWO_TERMS])["labels_twice"] > 0
