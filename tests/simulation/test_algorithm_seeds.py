"""Drawn clusters whose leaders ask an algorithm: its state and the versions stay one, through every fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import shoal
from dst.case import FuzzCase, case
from dst.fuzz import CheckedRun
from shoal.errors import Misuse
from shoal.learning.algorithm import AlgorithmState, UpdateFacts, WaitingDevice
from shoal.roles.actions import AskAlgorithm, Save
from shoal.roles.events import AlgorithmAnswered, Event
from shoal.roles.leader.asking import AskedAlgorithm
from shoal.roles.leader.training_state import ASKED, TrainingState
from shoal.sim.driver.role_host import Host
from shoal.sim.invariants import Violation
from shoal.sim.jobs import SimulatedJob
from shoal.sim.observe import Mark, Step

SEEDS = range(60)
#: Seeds that are known to show mutants, before any others are tried.
FIRST_SEEDS = (3, 7, 11)


class Counting(shoal.Algorithm):
    """The mean that the plan would make; and the number of versions that it made."""

    def __init__(self, *, by_device: bool) -> None:
        self._by_device = by_device

    def merge(
        self, updates: np.ndarray, facts: Sequence[UpdateFacts], state: AlgorithmState
    ) -> tuple[np.ndarray, AlgorithmState]:
        assert len(updates) == len(facts) == len({each.node for each in facts})
        weights = np.array([1 if self._by_device else each.examples for each in facts], dtype=np.float64)
        made = state.get("made", np.zeros(1)) + 1
        return weights @ updates / weights.sum(), {"made": made}

    def choose(self, candidates: Sequence[WaitingDevice], count: int, rng: np.random.Generator) -> Sequence[str]:
        return [str(name) for name in rng.permutation([each.node for each in candidates])[:count]]


class MergesOnly(Counting):
    choose = shoal.Algorithm.choose


class StateOracle:
    """Every saved version was made by as many merges as its state says; each question is answered next."""

    def __init__(self, jobs: Sequence[str]) -> None:
        self._jobs = jobs
        self.questions = self.restored = 0
        #: Node and job -> whether its leader waits for an answer.
        self._waits: dict[tuple[str, str], bool] = {}

    def step(self, step: Step) -> None:
        if step.role != "leader" or step.job not in self._jobs:
            return
        key = step.node, step.job
        if self._waits.get(key) and not isinstance(step.event, AlgorithmAnswered):
            raise Violation(f"{step.job}: {type(step.event).__name__} came before the answer of the algorithm")
        self._waits[key] = False
        for action in step.actions:
            if isinstance(action, AskAlgorithm):
                self.questions, self._waits[key] = self.questions + 1, True
            elif isinstance(action, Save):
                self._check(step.job, action)

    def _check(self, job: str, save: Save) -> None:
        made = save.tensors.get(f"{ASKED}made")
        count = 0 if made is None else int(made[0])
        steps = int(save.state["asked_steps"])
        if count != steps:
            raise Violation(f"{job}: the state of version {save.version} says {count} merges, and there were {steps}")

    def mark(self, mark: Mark) -> None:
        if mark.kind == "led" and mark.facts["job"] in self._jobs:
            self._waits.pop((mark.node, mark.facts["job"]), None)
            self.restored += mark.facts["version"] > 0


def with_algorithms(what: FuzzCase) -> FuzzCase | None:
    """Return the case with an algorithm in each job whose plan suits one, or None if there is none."""
    jobs = [asking(job) for job in what.jobs]
    return replace(what, jobs=tuple(jobs)) if any(job.algorithm is not None for job in jobs) else None


#: What an algorithm needs of a plan. The rest stays as it was drawn.
SUITED: dict[str, Any] = {"topology": "star", "pace": "sync", "trust": "identity", "sampling": "", "clip_update": 0.0}


def asking(job: SimulatedJob) -> SimulatedJob:
    by_device = job.spec.plan.weights == "device"
    both, merges = Counting(by_device=by_device), MergesOnly(by_device=by_device)
    for algorithm, hooks, changes in (
        (both, "merge choose", {}),
        (both, "merge choose", {"cohort": 2}),
        (merges, "merge", {}),
    ):
        try:
            plan = replace(job.spec.plan, **SUITED, **changes, algorithm=f"here:Counting {hooks}")
        except Misuse:
            continue
        return replace(job, spec=replace(job.spec, plan=plan), algorithm=algorithm)
    return job


@contextmanager
def counted_steps() -> Iterator[None]:
    """Have each snapshot say how many versions of its history were made of merged updates. Kept apart from the state
    that the algorithm has."""
    advance, snapshot, restore = TrainingState.advance, TrainingState.snapshot, TrainingState.restore
    go_back, found_good = TrainingState.go_back, TrainingState.on_found_good

    def counting(self: Any, *arguments: Any) -> Any:
        self.steps_made = getattr(self, "steps_made", 0) + 1
        return advance(self, *arguments)

    def saying(self: Any) -> Any:
        tensors, state = snapshot(self)
        return tensors, {**state, "asked_steps": getattr(self, "steps_made", 0)}

    def reading(self: Any, *, tensors: Any, state: Any) -> None:
        self.steps_made = int(state["asked_steps"])
        restore(self, tensors=tensors, state=state)

    def remembering(self: Any) -> None:
        self.steps_good = getattr(self, "steps_made", 0)
        found_good(self)

    def going_back(self: Any) -> None:
        self.steps_made = getattr(self, "steps_good", 0)
        go_back(self)

    with ExitStack() as stack:
        for name, new in (
            ("advance", counting),
            ("snapshot", saying),
            ("restore", reading),
            ("on_found_good", remembering),
            ("go_back", going_back),
        ):
            stack.enter_context(patch.object(TrainingState, name, new))
        yield


@contextmanager
def repeating() -> Iterator[None]:
    """The driver hands out the answer before once more, and each answer twice."""
    last: dict[int, Event] = {}

    def answer(self: Any, event: Event) -> None:
        for each in (event, event, last.get(id(self))):
            if each is not None:
                self._inbox.appendleft(each)
        last[id(self)] = event

    with patch.object(Host, "answer", answer):
        yield


def played(seed: int, profile: str = "plain") -> StateOracle | None:
    """Play a seed with algorithms; None if none of its plans suits one."""
    what = with_algorithms(case(profile, seed))
    if what is None:
        return None
    oracle = StateOracle([job.spec.job for job in what.jobs if job.algorithm is not None])
    with counted_steps():
        CheckedRun(what, observers=[oracle]).run()
    return oracle


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
    class Repeated(StateOracle):
        def step(self, step: Step) -> None:
            if not isinstance(step.event, AlgorithmAnswered):
                self._waits.clear()
            super().step(step)

    with repeating(), counted_steps():
        for seed in range(12):
            if (what := with_algorithms(case("plain", seed))) is not None:
                CheckedRun(
                    what, observers=[Repeated([job.spec.job for job in what.jobs if job.algorithm is not None])]
                ).run()


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
