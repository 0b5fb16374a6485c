"""Deliberate bugs of private jobs must be caught, in seeds that draw them; and seeds before those draw none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from dst.case import case
from dst.fuzz import fuzz
from shoal.roles.actions import Participate
from shoal.roles.events import Participated
from shoal.roles.leader.gathering.private_sum import PrivateSum
from shoal.roles.leader.participants import Participants
from shoal.roles.worker.participation import Participation
from shoal.roles.worker.worker import Worker
from shoal.sim.driver.role_host import Host
from shoal.sim.driver.worker_driver import SimWorkerDriver
from shoal.sim.invariants import Violation
from shoal.sim.world import World

SEEDS_MAX = 150


def given_back_when_refused() -> AbstractContextManager[Any]:
    """A device takes a refused update off its account."""
    refused = Worker._on_refused

    def give_back(self: Worker, message: Any) -> None:
        if self._participation._taken:
            self._participation._taken.pop()
        refused(self, message)

    return patch.object(Worker, "_on_refused", give_back)


def not_on_the_disk() -> AbstractContextManager[Any]:
    """The account is in the memory of a process, and goes with it."""

    def count(self: SimWorkerDriver, host: Host, action: Participate) -> None:
        facts = {"term": action.term, "version": action.version, "lease": action.lease}
        self._around.process.mark("counted", job=self._job.spec.job, **facts)
        if not host.ended:
            host.post(Participated(**facts))

    return patch.object(SimWorkerDriver, "_count", count)


def left_before_it_was_counted() -> AbstractContextManager[Any]:
    """The driver is asked, and nobody waits for its disk."""
    may_leave = Participation.may_leave

    def at_once(self: Participation, work: Any) -> bool:
        may_leave(self, work)
        return True

    return patch.object(Participation, "may_leave", at_once)


def nobody_counts_to_the_last() -> AbstractContextManager[Any]:
    """Neither the device nor its leader says when it is enough."""
    stack = ExitStack()
    stack.enter_context(patch.object(Participation, "refusal", lambda self, work: None))
    stack.enter_context(patch.object(Participants, "are_spent", lambda self, workers, *, least=1: False))
    stack.enter_context(patch("shoal.roles.leader.participants.is_spent", lambda worker: False))
    return stack


def again_at_once() -> AbstractContextManager[Any]:
    """A leader lends to a device that just came, and the device does not mind."""
    stack = ExitStack()
    stack.enter_context(patch.object(Participation, "_last", lambda self, term: None))
    stack.enter_context(patch.object(Participants, "on_came", lambda self, node, *, version: None))
    return stack


def cut_by_nobody() -> AbstractContextManager[Any]:
    """An update leaves as long as the task made it."""
    return patch.object(Participation, "cut", lambda self, update: update)


def the_same_noise_after_a_failover() -> AbstractContextManager[Any]:
    """What noise is drawn from does not depend on the term."""
    seed = World.noise_seed
    return patch.object(World, "noise_seed", lambda self, job, term: seed(self, job, 1))


def divided_by_how_many_came() -> AbstractContextManager[Any]:
    """The sum of a version is divided by its updates."""
    mean = PrivateSum.mean

    def by_arrivals(self: PrivateSum) -> Any:
        total, down = mean(self)
        return total * np.float32(self._privacy.devices / self.devices), down

    return patch.object(PrivateSum, "mean", by_arrivals)


def no_noise() -> AbstractContextManager[Any]:
    """Noise is drawn, and forgotten."""
    noise = PrivateSum._noise
    return patch.object(PrivateSum, "_noise", lambda self: 0 * noise(self))


def noise_that_forgets() -> AbstractContextManager[Any]:
    """Each version has fresh noise, and takes nothing of the one before it back."""
    noise = PrivateSum._noise

    def fresh(self: PrivateSum) -> np.ndarray:
        self._chain.buffers[:] = 0
        return noise(self)

    return patch.object(PrivateSum, "_noise", fresh)


def passed_over_without_noise() -> AbstractContextManager[Any]:
    """Versions go on and the chain does not: devices are closer in it than they know."""
    return patch.object(PrivateSum, "skip", lambda self: None)


HISTORY = "is not what its history says"


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("mutant", "told"),
    [
        (given_back_when_refused, "says that it took part|is its participation"),
        (not_on_the_disk, "says that it took part|is its participation"),
        (left_before_it_was_counted, "was not counted"),
        (nobody_counts_to_the_last, "is its participation"),
        (again_at_once, "too close|twice|its account would not hold"),
        (cut_by_nobody, "long, of"),
        (the_same_noise_after_a_failover, "was another's before"),
        (divided_by_how_many_came, HISTORY),
        (no_noise, HISTORY),
        (noise_that_forgets, HISTORY),
        (passed_over_without_noise, f"{HISTORY}|noise was drawn"),
    ],
)
def test_a_bug_of_a_private_job_is_caught(mutant: Callable[[], AbstractContextManager[Any]], told: str) -> None:
    with mutant():
        for seed in range(30_000 + 1, 30_000 + 1 + SEEDS_MAX):
            if all(job.spec.plan.privacy is None for job in case("private", seed).jobs):
                continue
            try:
                fuzz("private", seed)
            except Exception as error:
                if any(each in str(error) for each in told.split("|")):
                    return
                if isinstance(error, Violation):
                    continue
                raise
    pytest.fail(f"{mutant.__name__} was not seen in {SEEDS_MAX} seeds")
