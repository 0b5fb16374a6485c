"""Attacks of a lying leader can fail: with one check of a device taken out, each of these reports harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from shoal.roles.worker import sealing as device_sealing
from shoal.roles.worker.sealing import DeviceSealing
from shoal.runtime.seal_keys import SealKeys
from shoal.sealing.graph import GraphShape, shape_of
from testbed.attacks import leader, leader_driven
from testbed.attacks.kit import NotTried, Outcome
from testbed.attacks.leader_real import VALUES, split_judged

Patched = AbstractContextManager[Any]


def no_count_of_those_who_agreed() -> Patched:
    return patch.object(device_sealing, "shape_of", lambda *given: replace(shape_of(*given), agreed=1))


def no_floor_of_a_ring() -> Patched:
    return patch.object(GraphShape, "least", lambda self, said: said)


@contextmanager
def any_lease() -> Iterator[None]:
    """Both checks: weights hold where the size of a lease is not looked at."""
    with any_weight(), patch.object(DeviceSealing, "refusal", lambda self, work: None):
        yield


def the_leaders_turn() -> Patched:
    return patch.object(DeviceSealing, "begin", lambda self, work: work.batches)


def any_weight() -> Patched:
    return patch.object(device_sealing, "EXAMPLES_APART", 1 << 20)


def any_member() -> Patched:
    return patch.object(SealKeys, "check", lambda self, roster, *, now_s: {})


MUTANTS: list[tuple[Callable[[], Patched], Callable[[], Outcome]]] = [
    (no_count_of_those_who_agreed, leader.split_sets_16),
    (no_floor_of_a_ring, leader.ring_gap_40),
    (any_lease, leader.one_count),
    (the_leaders_turn, leader.named_turn),
    (any_weight, leader.drowned),
    (any_member, leader_driven.minted_members),
]


@pytest.mark.parametrize(("mutant", "attack"), MUTANTS, ids=lambda each: each.__name__)
def test_with_its_check_taken_out_an_attack_does_harm(
    mutant: Callable[[], Patched], attack: Callable[[], Outcome]
) -> None:
    with mutant():
        outcome = attack()
    assert outcome.word == "harmed", outcome.told


@pytest.mark.parametrize("attack", [leader.one_rate, leader.clear_figures, leader.helper_few])
def test_the_cheap_ones_are_held(attack: Callable[[], Outcome]) -> None:
    outcome = attack()
    assert outcome.word == "held", outcome.told


def test_what_a_real_leader_found_is_compared_with_every_update_that_can_be() -> None:
    noise = {"found": [500.0] * VALUES, "edges": 0}
    assert split_judged([noise]).held
    update = np.zeros(VALUES)
    update[2] = 1.0
    assert not split_judged([noise, {"found": update.tolist(), "edges": 7}]).held
    with pytest.raises(NotTried):
        split_judged([])
