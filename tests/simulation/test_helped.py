"""Deliberate bugs of sums that a helper opens must be caught: by seeds, and by leaders and helpers that lie or die.

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
from sealed_shapes import NAMES as SHAPED
from sealed_shapes import ShapedTroupe
from sealed_troupe import HELPER, SealedTroupe, a_plan

from dst.fuzz import fuzz
from shoal.plan import Until
from shoal.roles.helper import Helper
from shoal.roles.leader.gathering import helper_opener
from shoal.roles.leader.gathering.helper_opener import HelperOpener
from shoal.roles.leader.gathering.sealing import Sealing
from shoal.roles.worker.sealing import DeviceSealing
from shoal.sealing import helped, pair
from shoal.sealing.group import HELPER_ENVELOPE_BYTES, bits_of
from shoal.sealing.label import Label
from shoal.sim.driver.seal_keys import SimSealKeys
from shoal.sim.invariants import Violation
from shoal.wire.messages import AskMasks, Bind, MaskSum, MemberKey, Message, Ready, SealRefused, Update

NAMES = [f"d{number}" for number in range(6)]
TRUST = f"sealed(4, helper={HELPER})"

#: A bug that seeds are to find is found by one of these: in some of them a group comes to nothing.
SEEDS = range(140_000 + 21, 140_000 + 41)

Story = Callable[[], None]


def _troupe(**changes: object) -> SealedTroupe:
    troupe = SealedTroupe(a_plan(TRUST, **changes))
    troupe.helps()
    troupe.joins(*NAMES)
    return troupe


def _must_be_exact(troupe: SealedTroupe, version: int = 1, *, atol: float = 1e-6) -> None:
    troupe.run(lambda: troupe.leader.version >= version - 1)
    before = troupe.leader.model.copy()
    troupe.run(lambda: troupe.leader.version >= version)
    moved = troupe.leader.model - before
    if troupe.leader.version != version or not np.allclose(moved, troupe.mean_of(version), atol=atol):
        raise Violation(f"version {version} is not the sum of its updates")


def sums_are_exact() -> None:
    for codec, atol in (("dense", 1e-6), ("int16", 0.01), ("led30%+ef", 1e-5)):
        troupe = _troupe(codec=codec)
        for version in (1, 2, 3):
            _must_be_exact(troupe, version, atol=atol)
        if troupe.helper_oracle.answers < 3:
            raise Violation("sums were opened, and no helper was asked")


def noise_is_of_the_devices() -> None:
    """Sealed and private: what the helper opens is the sum of what the devices masked, with their noise."""
    trust = f"sealed(4, 0%, 30%, helper={HELPER}) + private(8, 1e-5)"
    plan = a_plan(trust, cohort=6, workers_min=6, epoch_leases=12, until=Until(epochs=2), clip_update=0.5)
    troupe = SealedTroupe(plan)
    troupe.helps()
    troupe.joins(*NAMES)
    troupe.run(lambda: troupe.leader.version >= 1)
    point = plan.privacy.point  # type: ignore[union-attr]
    total = sum(words for words, _ in troupe.shares.values())
    wanted = point.decode(np.asarray(total).astype("<i4").view("<u4"), times=1 / 6)
    if troupe.leader.version != 1 or not np.allclose(troupe.leader.model - troupe.first, wanted, atol=1e-6):
        raise Violation("the version is not what the devices masked")


def a_device_dies_at_each_word() -> None:
    for word in (Bind, Update, AskMasks, MaskSum):
        troupe = _troupe()
        troupe.run_to(word)
        troupe.loses("d2")
        _must_be_exact(troupe)


def the_leader_dies_at_each_word() -> None:
    for word in (Update, AskMasks, MaskSum):
        troupe = _troupe()
        troupe.run_to(word)
        troupe.dies()
        _must_be_exact(troupe)


def the_helper_dies_at_each_word() -> None:
    """The job waits, says so, and goes on with what is trained again."""
    for word in (Bind, Update, AskMasks, MaskSum):
        troupe = _troupe()
        troupe.run_to(word)
        troupe.loses(HELPER)
        troupe.run(lambda here=troupe: not here.queue, most=400)
        if troupe.leader.version or "is away" not in troupe.leader.progress().reason:
            raise Violation("a sum was opened without its helper, or nobody says what the job waits for")
        troupe.helps()
        _must_be_exact(troupe)


def the_leader_asks_twice() -> None:
    """The second time without one device: the difference of the two answers would be its mask."""
    troupe = _troupe()
    troupe.run_to(AskMasks)
    ask = next(message for *_, message in troupe.queue if isinstance(message, AskMasks))
    one = replace(ask, present=bits_of(range(5), 6), envelopes=ask.envelopes[: 5 * HELPER_ENVELOPE_BYTES])
    troupe.hears(HELPER, one)
    troupe.run(lambda: troupe.leader.version >= 2)
    if troupe.leader.version < 2:
        raise Violation("the job stands still")


def the_leader_asks_about_too_few() -> None:
    troupe = _troupe()

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if not isinstance(message, AskMasks):
            return [message]
        few = message.envelopes[: 3 * HELPER_ENVELOPE_BYTES]
        return [replace(message, present=bits_of(range(3), 6), envelopes=few)]

    troupe.lies = lies
    troupe.run(most=600)


def the_leader_passes_on_an_old_envelope() -> None:
    """That of the version before, in the place of the new one: what a helper added up then is not added up again."""
    troupe = _troupe()
    old: list[bytes] = []

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if isinstance(message, AskMasks):
            old.append(message.envelopes)
            return [replace(message, envelopes=old[0])]
        return [message]

    troupe.lies = lies
    troupe.run(lambda: len(old) >= 3, most=2000)
    refused = [message for *_, message in troupe.said(SealRefused) if isinstance(message, SealRefused)]
    if troupe.leader.version != 1 or "did not close for this group" not in refused[0].reason:
        raise Violation("an old envelope was opened")


def the_leader_binds_an_update_again() -> None:
    """Two sums that differ by one device would show it, and no device knows whether the first was opened."""
    troupe = _troupe()
    troupe.run_to(AskMasks)
    for _, to, message in troupe.said(Bind):
        assert isinstance(message, Bind)
        troupe.hears(to, replace(message, group=2))
    troupe.run(lambda: not troupe.queue, most=400)


def a_worker_has_the_name_of_the_helper() -> None:
    """An agent that does not know that it is to help, or does not want to, asks for work."""
    troupe = _troupe()
    troupe.joins(HELPER)
    troupe.run(most=300)


def aggregators_add_up_the_words() -> None:
    """An aggregator may be a device of whoever has the helper."""
    for kind in ("tree", "shard"):
        troupe = ShapedTroupe(kind, trust=TRUST)
        troupe.helps()
        troupe.joins(*SHAPED)
        troupe.forms()
        troupe.is_exact(versions=2)


STORIES: list[Story] = [
    aggregators_add_up_the_words,
    sums_are_exact,
    noise_is_of_the_devices,
    a_device_dies_at_each_word,
    the_leader_dies_at_each_word,
    the_helper_dies_at_each_word,
    the_leader_asks_twice,
    the_leader_asks_about_too_few,
    the_leader_passes_on_an_old_envelope,
    the_leader_binds_an_update_again,
    a_worker_has_the_name_of_the_helper,
]


@pytest.mark.parametrize("story", STORIES)
def test_without_a_bug_every_story_holds(story: Story) -> None:
    story()


# Bugs -----------------------------------------------------------------------------------------------------------


def a_label_is_answered_twice() -> AbstractContextManager[Any]:
    on_question = Helper._on_ask_masks

    def forgetful(self: Helper, ask: AskMasks) -> None:
        self._newest = (0, 0)
        on_question(self, ask)

    return patch.object(Helper, "_on_ask_masks", forgetful)


def any_number_is_enough() -> AbstractContextManager[Any]:
    """The plan's least is not heeded by the helper."""
    request = Helper._request

    def of_any(self: Helper, ask: AskMasks) -> Any:
        self._least = 1
        return request(self, ask)

    return patch.object(Helper, "_request", of_any)


def envelopes_have_no_label() -> AbstractContextManager[Any]:
    """An envelope opens under any label."""
    key = pair._envelope_key
    return patch.object(pair, "_envelope_key", lambda of, label, sender, kind: key(of, b"", sender, kind))


def envelopes_are_open() -> AbstractContextManager[Any]:
    """A seed goes to the helper in plain sight of the leader."""
    stack = ExitStack()
    stack.enter_context(patch.object(helped.pair, "close", lambda k, la, s, kind, seed: seed + bytes(16)))
    stack.enter_context(patch.object(helped.pair, "unclose", lambda k, la, s, kind, envelope: envelope[:16]))
    return stack


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


def the_leader_lends_to_the_helper() -> AbstractContextManager[Any]:
    on_helper = Sealing.on_helper

    def lends(self: Any, message: Message) -> None:
        if isinstance(message, Ready):
            self._machine._on_ready(self.helper, message)
        else:
            on_helper(self, message)

    return patch.object(Sealing, "on_helper", lends)


def an_update_is_sealed_again() -> AbstractContextManager[Any]:
    """For another group, where one came to nothing. An honest leader alone would hold, and so would devices."""
    on_sealed = DeviceSealing.on_sealed

    def unspent(self: DeviceSealing, held: Any, event: Any) -> None:
        on_sealed(self, held, event)
        self._spent = (0, 0)

    gather_offers = Sealing._gather_offers

    def bound_again(self: Sealing, *, is_last: bool) -> None:
        self._bound_once.clear()
        gather_offers(self, is_last=is_last)

    stack = ExitStack()
    stack.enter_context(patch.object(DeviceSealing, "on_sealed", unspent))
    stack.enter_context(patch.object(Sealing, "_gather_offers", bound_again))
    stack.enter_context(patch.object(Sealing, "_make_void", lambda self, group, reason: self._drop()))
    return stack


def the_sum_is_opened_before_all_came() -> AbstractContextManager[Any]:
    """One upload is in the sum and its mask is not taken off."""

    def of_some(self: Any, group: Any) -> bool:
        if len(group.reports) > self._least:
            del group.reports[max(group.reports)]
        return False

    return patch.object(Sealing, "_is_void", of_some)


def nobody_says_that_the_helper_is_away() -> AbstractContextManager[Any]:
    return patch.object(HelperOpener, "held_up", lambda self: None if self.node in self._roster.keys else "waiting")


def words_for_aggregators_have_one_mask() -> AbstractContextManager[Any]:
    """An aggregator that knows what the helper knows takes it off."""
    request = DeviceSealing._request

    def uncovered(self: DeviceSealing, *given: Any) -> Any:
        return replace(request(self, *given), is_covered=False)

    return patch.object(DeviceSealing, "_request", uncovered)


def covers_stay_in_the_sum() -> AbstractContextManager[Any]:
    return patch.object(helper_opener, "covers_in", lambda seals: [])


MUTANTS = [
    words_for_aggregators_have_one_mask,
    covers_stay_in_the_sum,
    a_label_is_answered_twice,
    any_number_is_enough,
    envelopes_have_no_label,
    envelopes_are_open,
    term_missing_from_the_label,
    the_leader_lends_to_the_helper,
    an_update_is_sealed_again,
    the_sum_is_opened_before_all_came,
    nobody_says_that_the_helper_is_away,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_bug_is_caught(mutant: Callable[[], AbstractContextManager[Any]]) -> None:
    assert is_caught(mutant, STORIES), f"{mutant.__name__} went unnoticed"


# Seeds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", [envelopes_are_open, an_update_is_sealed_again, the_sum_is_opened_before_all_came])
def test_a_bug_is_caught_by_seeds(mutant: Callable[[], AbstractContextManager[Any]]) -> None:
    with mutant():
        for seed in SEEDS:
            try:
                fuzz("helper", seed)
            except Violation:
                return
    pytest.fail(f"{mutant.__name__} was not seen in {len(SEEDS)} seeds")
