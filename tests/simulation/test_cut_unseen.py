"""Devices that cut themselves before they seal: versions are of updates that were cut, and a sum that cannot be is
dropped, in every shape. Deliberate bugs must be caught, by seeds that draw such plans and by a device that lies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from caught import is_caught
from sealed_shapes import NAMES, ShapedTroupe
from sealed_troupe import SealedTroupe, a_plan

from dst.fuzz import fuzz
from shoal.learning.clipping import clipped
from shoal.roles.leader.gathering.sealing import Sealing
from shoal.sim.invariants import Violation
from shoal.wire.messages import Message, Update, UpdateShard

SEEDS_MAX = 40
CLIP = 0.5
TRUST = "robust(clip) + sealed(4, 0%, 30%)"
Mutant = Callable[[], AbstractContextManager[Any]]


def _troupe(kind: str) -> SealedTroupe:
    changes: dict[str, Any] = {"trust": TRUST, "clip_update": CLIP, "worker_momentum": 0.0}
    if kind == "star":
        troupe = SealedTroupe(a_plan(**changes))
        troupe.joins(*NAMES)
        return troupe
    shaped = ShapedTroupe(kind, **changes)
    shaped.joins(*NAMES)
    shaped.forms()
    return shaped


def _is_cut(troupe: SealedTroupe, *, versions: int) -> None:
    """So many versions more, each the mean of updates that were cut."""
    for _ in range(versions):
        before, first = np.array(troupe.leader.model, dtype=np.float64), troupe.leader.version
        troupe.run(lambda: troupe.leader.version > first, most=3_000)  # noqa: B023
        if troupe.leader.version != first + 1:
            raise Violation(f"no version after {first}: {[record.reason for record in troupe.records[-5:]]}")
        moved = troupe.leader.model - before
        if np.linalg.norm(moved) > CLIP * 1.01:
            raise Violation(f"version {first + 1} moved by {np.linalg.norm(moved)}, and each device cuts to {CLIP}")
        rows = [row for save in troupe.saves for row in save.applied if row.version == first + 1]
        made = [troupe.made[row.node, troupe.leader.term, row.lease] for row in rows]
        total = sum(clipped(delta, clip=CLIP).astype(np.float64) for delta, _ in made)
        if not np.allclose(moved, total / len(made), atol=1e-4):
            raise Violation(f"version {first + 1} is not the mean of updates that were cut")


def _a_device_lies(kind: str) -> None:
    """One device's words are far longer than it may send; then it is honest again."""
    troupe = _troupe(kind)
    _is_cut(troupe, versions=1)

    def lies(sender: str, to: str, message: Message) -> list[Message]:
        if sender == NAMES[2] and isinstance(message, Update | UpdateShard) and "words" in message.tensors:
            words = np.array(message.tensors["words"])
            words += np.array(1 << 27, dtype=words.dtype)
            return [replace(message, tensors={**message.tensors, "words": words})]
        return [message]

    troupe.lies = lies
    troupe.run(lambda: any("one of them lies" in record.reason for record in troupe.records), most=20_000)
    if not any("one of them lies" in record.reason for record in troupe.records):
        raise Violation("a sum that is too long was taken")
    troupe.lies = lambda sender, to, message: [message]
    _is_cut(troupe, versions=2)


STORIES = [
    *(lambda kind=kind: _is_cut(_troupe(kind), versions=2) for kind in ("star", "tree", "shard")),
    *(lambda kind=kind: _a_device_lies(kind) for kind in ("star", "tree", "shard")),
]


@pytest.mark.parametrize("story", STORIES)
def test_without_a_bug_every_story_holds(story: Callable[[], None]) -> None:
    story()


def nobody_cuts() -> AbstractContextManager[Any]:
    """Devices send updates as long as training made them."""
    return patch("shoal.roles.worker.worker.clipped", lambda update, *, clip: update)


def nobody_looks() -> AbstractContextManager[Any]:
    """The leader takes any sum that it opened."""
    return patch.object(Sealing, "_too_long", lambda self, mean, *, off: None)


def the_sum_is_looked_at_for_one_device() -> AbstractContextManager[Any]:
    """The leader forgets that values are rounded, and drops honest sums that are as long as they may be."""
    too_long = Sealing._too_long
    return patch.object(Sealing, "_too_long", lambda self, mean, *, off: too_long(self, mean * 4, off=0.0))


@pytest.mark.parametrize("mutant", [nobody_cuts, nobody_looks, the_sum_is_looked_at_for_one_device])
def test_a_bug_is_caught(mutant: Mutant) -> None:
    assert is_caught(mutant, STORIES), f"{mutant.__name__} went unnoticed"


@pytest.mark.timeout(1800)
def test_seeds_catch_devices_that_do_not_cut() -> None:
    with nobody_cuts():
        for seed in range(135_000 + 1, 135_000 + 1 + SEEDS_MAX):
            try:
                fuzz("sealed-clip", seed)
            except Violation as error:
                if "is not what its history says" in str(error) or "did not move" in str(error):
                    return
    pytest.fail(f"not seen in {SEEDS_MAX} seeds")
