"""A simulated node that stands still, in seeds: when it goes on, it calls no device lost for its own pause."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from dst.case import case
from dst.fuzz import CheckedRun
from shoal.roles.events import Liveness, PeerChanged
from shoal.roles.node.failure_detector import FailureDetector, Patience
from shoal.sim.observe import Mark, Step
from shoal.sim.process import Process

pytestmark = pytest.mark.timeout(300)

PATIENCE = Patience()

#: A peer that was heard until a node stood still is not lost before it was silent for so long again.
SPARED_S = PATIENCE.lost_after_s - PATIENCE.suspect_after_s


class Standstills:
    """When each process last went on after a long pause, and which peers it then called lost for their silence."""

    def __init__(self) -> None:
        self.pauses = 0
        self.blamed: list[str] = []
        self._stopped_s: dict[int, float] = {}
        self._went_on_s: dict[str, float] = {}
        #: (node that judges, node that is judged) -> since when the latter is suspect.
        self._suspect_s: dict[tuple[str, str], float] = {}

    def stopped(self, process: Process) -> None:
        self._stopped_s.setdefault(id(process), process.kernel.now_s)

    def goes_on(self, process: Process) -> None:
        if process._stops > 1:
            return  # stopped twice: it does not go on yet
        stood_s = process.kernel.now_s - self._stopped_s.pop(id(process), process.kernel.now_s)
        if stood_s >= PATIENCE.lost_after_s:
            self.pauses += 1
            self._went_on_s[process.label] = process.kernel.now_s

    def mark(self, mark: Mark) -> None:
        pass

    def step(self, step: Step) -> None:
        event = step.event
        if not isinstance(event, PeerChanged):
            return
        key = (step.node, event.node)
        if event.state is Liveness.SUSPECT:
            self._suspect_s[key] = step.at_s
        elif event.state is not Liveness.LOST:
            self._suspect_s.pop(key, None)
        elif event.reason.startswith("silent"):
            since_s = step.at_s - self._went_on_s.get(step.node, float("-inf"))
            was_suspect = self._suspect_s.pop(key, step.at_s) < step.at_s - since_s
            if since_s < SPARED_S and not was_suspect:
                self.blamed.append(f"{step.node} called {event.node} lost {since_s:.1f} s after it went on")


def played(seed: int) -> Standstills:
    seen = Standstills()
    stop, go_on = Process.stop, Process.go_on

    def stopped(self: Process) -> None:
        seen.stopped(self)
        stop(self)

    def goes_on(self: Process) -> None:
        # Noted first: what waited is handled within.
        seen.goes_on(self)
        go_on(self)

    with patch.object(Process, "stop", stopped), patch.object(Process, "go_on", goes_on):
        CheckedRun(case("plain", seed), observers=[seen]).run()
    return seen


#: A manager stands still for more than 8 s in it, and has devices that speak all the while.
SEED = 60_004


def test_a_manager_that_goes_on_calls_nobody_lost_for_its_own_pause() -> None:
    seen = played(SEED)
    assert seen.pauses > 0
    assert seen.blamed == []


def test_a_manager_that_counts_its_pause_is_caught() -> None:
    with patch.object(FailureDetector, "pass_over", lambda self, unheard_s, now_s: None):
        assert any("lost 0.0 s after it went on" in blame for blame in played(SEED).blamed)
