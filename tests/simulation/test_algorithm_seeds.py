"""Drawn clusters whose leaders ask an algorithm: its state and the versions stay one, through every fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from dst.algorithms import AskingOracle, algorithm_for
from dst.case import FuzzCase, case
from dst.fuzz import CheckedRun
from shoal.errors import Misuse
from shoal.roles.events import Event
from shoal.roles.leader.asking import AskedAlgorithm
from shoal.roles.leader.training_state import TrainingState
from shoal.sim.driver.role_host import Host
from shoal.sim.invariants import Violation
from shoal.sim.jobs import SimulatedJob

SEEDS = range(60)
#: Seeds that are known to show mutants, before any others are tried.
FIRST_SEEDS = (3, 7, 11)


def with_algorithms(what: FuzzCase) -> FuzzCase | None:
    """Return the case with an algorithm in each job whose plan suits one, or None if there is none."""
    jobs = [asking(job) for job in what.jobs]
    return replace(what, jobs=tuple(jobs)) if any(job.algorithm is not None for job in jobs) else None


#: What an algorithm needs of a plan. The rest stays as it was drawn.
SUITED: dict[str, Any] = {"topology": "star", "pace": "sync", "trust": "identity", "sampling": "", "clip_update": 0.0}


def asking(job: SimulatedJob) -> SimulatedJob:
    for hooks, changes in (("merge choose", {}), ("merge choose", {"cohort": 2}), ("merge", {})):
        try:
            plan = replace(job.spec.plan, **SUITED, **changes, algorithm=f"drawn:DrawnAlgorithm {hooks}")
        except Misuse:
            continue
        return replace(job, spec=replace(job.spec, plan=plan), algorithm=algorithm_for(plan))
    return job


@contextmanager
def repeating() -> Iterator[None]:
    """The driver hands out the answer before once more, and each answer twice."""
    # By the host itself: another may get the id of one that is gone, and would hear the answer to its question.
    last: dict[Host, Event] = {}

    def answer(self: Any, event: Event) -> None:
        for each in (event, event, last.get(self)):
            if each is not None:
                self._inbox.appendleft(each)
        last[self] = event

    with patch.object(Host, "answer", answer):
        yield


def played(seed: int, profile: str = "plain") -> AskingOracle | None:
    """Play a seed with algorithms. Return None if none of its plans suits one."""
    what = with_algorithms(case(profile, seed))
    if what is None:
        return None
    run = CheckedRun(what)
    run.run()
    return run.asking


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.full) for first in SEEDS[20::20])])
def test_versions_and_state_stay_one(first: int) -> None:
    seen = [oracle for seed in range(first, first + 20) if (oracle := played(seed)) is not None]
    assert len(seen) >= 5
    assert sum(oracle.questions for oracle in seen) > 100
    assert sum(oracle.restored for oracle in seen) > 3


@pytest.mark.timeout(600)
def test_an_answer_counts_once_however_often_it_comes() -> None:
    # A driver does not do this; the leader does not rely on it for more than the order.
    with repeating():
        seen = [oracle for seed in range(12) if (oracle := played(seed)) is not None]
    assert sum(oracle.questions for oracle in seen) > 50


def state_is_lost_at_failover() -> AbstractContextManager[Any]:
    return patch.object(AskedAlgorithm, "restore", lambda self, state: None)


def state_of_the_version_before() -> AbstractContextManager[Any]:
    """The new state is kept only with the next version."""
    advance = TrainingState.advance

    def late(self: Any, answer: Any = None) -> Any:
        if answer is None:
            return advance(self)
        before, self.asked.late = getattr(self.asked, "late", self.asked.state), answer.state
        return advance(self, replace(answer, state=before))

    return patch.object(TrainingState, "advance", late)


@contextmanager
def merged_twice() -> Iterator[None]:
    """An answer that comes again makes a version again."""
    answered = AskedAlgorithm.on_answered

    def again(self: Any, answer: Any) -> Any:
        asked = self._asked or self.kept
        self._asked = self.kept = asked
        return answered(self, answer)

    with (
        repeating(),
        patch.object(AskedAlgorithm, "on_answered", again),
        patch.object(AskedAlgorithm, "awaits", lambda self, number: number == self._number),
    ):
        yield


@contextmanager
def stale_answer_taken() -> Iterator[None]:
    """The number of an answer is not looked at."""
    with repeating(), patch.object(AskedAlgorithm, "awaits", lambda self, number: self._asked is not None):
        yield


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "mutant",
    [
        state_is_lost_at_failover,
        state_of_the_version_before,
        merged_twice,
        stale_answer_taken,
    ],
)
def test_a_mutant_is_caught(mutant: Callable[[], AbstractContextManager[Any]]) -> None:
    for seed in (*FIRST_SEEDS, *SEEDS):
        try:
            with mutant():
                played(seed)
        except (Violation, AssertionError, KeyError, ZeroDivisionError):
            return
    pytest.fail(f"{mutant.__name__} was not seen")
