"""Seeded disasters of a flock: whatever breaks, every version is an exact mean, and all who live end with one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from dst.flock_fuzz import FAULTS, flock_fuzz_case, fuzz_flock
from shoal.flock.coordinator import Coordinator
from shoal.flock.peer import Peer
from shoal.flock.states import CommandKind
from shoal.learning.partial import Partial

SEEDS = 120
BLOCK = 20


@pytest.mark.parametrize(
    "block", [0, *(pytest.param(block, marks=pytest.mark.full) for block in range(1, SEEDS // BLOCK))]
)
def test_no_invariant_breaks(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        try:
            fuzz_flock(seed)
        except BaseException as error:
            error.add_note(f"python -m benchmarks.protocol_seeds --topology chain --first {seed} --count 1")
            raise


def test_every_kind_of_mishap_is_drawn() -> None:
    kinds = {mishap.kind for seed in range(SEEDS) for mishap in flock_fuzz_case(seed).mishaps}
    assert kinds == set(FAULTS)


# Deliberate bugs -----------------------------------------------------------------------------------------------


@contextmanager
def every_update_weighs_the_same() -> Iterator[None]:
    """MDLdroid's θ = 1."""
    add = Partial.add

    def alike(self: Partial, update: object, *, weight: float, scale: float = 1.0) -> None:
        add(self, update, weight=1.0, scale=scale)  # type: ignore[arg-type]

    with patch.object(Partial, "add", alike):
        yield


@contextmanager
def mean_applied_for_each_pair() -> Iterator[None]:
    """The paper's Δw = (N - 1) W, taken at its word."""
    mean = Peer._mean

    def times(self: Peer) -> object:
        return mean(self) * max(1, len(self._of) - 1)

    with patch.object(Peer, "_mean", times):
        yield


@contextmanager
def nobody_begins_anew() -> Iterator[None]:
    """A peer that handed its update on does not keep it: the updates of a lost holder are lost."""
    with patch.object(Coordinator, "_restart", lambda self, peers: None):
        yield


@contextmanager
def sender_goes_on() -> Iterator[None]:
    """Algorithm 1: a sender does not wait for the next version."""
    call = Coordinator._call

    def no_rest(self: Coordinator, name: str, kind: CommandKind, **more: object) -> object:
        return call(self, name, CommandKind.KEEP if kind is CommandKind.REST else kind, **more)  # type: ignore[arg-type]

    with patch.object(Coordinator, "_call", no_rest):
        yield


@pytest.mark.parametrize(
    "mutant",
    [
        every_update_weighs_the_same,
        mean_applied_for_each_pair,
        nobody_begins_anew,
        sender_goes_on,
    ],
)
def test_a_deliberate_bug_is_found(mutant: object) -> None:
    for seed in range(SEEDS):
        try:
            with mutant():  # type: ignore[operator]
                fuzz_flock(seed)
        except Exception:
            return
    pytest.fail(f"{mutant} is not found")
