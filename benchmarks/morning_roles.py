"""The same day through the deployed roles, in the simulator, for a fleet small enough for that. Trains nothing.

Manager, leader and workers are those that devices run; data is local and work is sized. What comes to the leader is
counted as it comes: a ``Ready`` or an ``Update`` is a request, a ``Wait`` is what a device is sent that gets no work.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from benchmarks.morning_fleet import Fleet
from shoal.learning.layout import Layout
from shoal.plan import Plan, Until
from shoal.roles.actions import Send
from shoal.roles.events import Received
from shoal.sim.devices import Presence
from shoal.sim.jobs import system_job
from shoal.sim.observe import Mark, Step
from shoal.sim.profiles import builds, home_line
from shoal.sim.rng import Rng
from shoal.sim.study import FLEET_PATIENCE
from shoal.sim.world import Settings, World
from shoal.wire.messages import Message, Ready, Update, Wait, Work
from testbed.results import say

#: A linear model of MNIST: 31 kB.
LAYOUT = Layout.of([("weight", (10, 784), "parameter"), ("bias", (10,), "parameter")])
GMACS_PER_EXAMPLE = 0.01

#: Those who are there from the beginning start one by one.
ARRIVE_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """At the leader, by minute."""

    ready: np.ndarray
    updates: np.ndarray
    lent: np.ndarray
    waits: np.ndarray
    #: What a lease took, from when it was sent to when its update came: the median.
    lease_s: float

    @property
    def asked(self) -> np.ndarray:
        asked: np.ndarray = self.ready + self.updates
        return asked


class _Door:
    """Watches what the leader hears and says."""

    def __init__(self, minutes: int) -> None:
        self.counts: dict[type[Message], np.ndarray] = {
            kind: np.zeros(minutes, int) for kind in (Ready, Update, Work, Wait)
        }
        self.leases_s: list[float] = []
        self._lent_s: dict[str, float] = {}

    def step(self, step: Step) -> None:
        if step.role != "leader":
            return
        self._time(step)
        heard = [step.event.message] if isinstance(step.event, Received) else []
        said = [action.message for action in step.actions if isinstance(action, Send)]
        for message in (*heard, *said):
            counts = self.counts.get(type(message))
            if counts is not None:
                counts[min(int(step.at_s // 60), len(counts) - 1)] += 1

    def _time(self, step: Step) -> None:
        """Of all leases that come back, how long they were out."""
        if isinstance(step.event, Received) and isinstance(step.event.message, Update):
            lent_s = self._lent_s.pop(step.event.sender, None)
            if lent_s is not None:
                self.leases_s.append(step.at_s - lent_s)
        for action in step.actions:
            if isinstance(action, Send) and isinstance(action.message, Work):
                self._lent_s[action.to] = step.at_s

    def mark(self, mark: Mark) -> None:
        pass


def play(fleet: Fleet, *, per_s: float, lease_s: float, rng: Rng, seed: int) -> Seen:
    plan = Plan(
        data="local",
        work="sized",
        pace="async",
        budget_s=lease_s,
        requests_per_s=per_s,
        workers_max=len(fleet.spans),
        # No more leases than an epoch has can be out: of fewer than there are devices, some would wait for its end.
        epoch_leases=10 * len(fleet.spans),
        until=Until(endless=True),
    )
    phones = builds("wifi-phones", len(fleet.spans), rng)
    settings = Settings(
        seed=seed,
        builds=[
            replace(phone, battery_wh=0.0, presence=_presence(spans, int(fleet.window_s)))
            for phone, spans in zip(phones, fleet.spans, strict=True)
        ],
        home_line=home_line("even"),
        jobs=[system_job(plan, LAYOUT, examples=0, job="morning", gmacs_per_example=GMACS_PER_EXAMPLE)],
        patience=FLEET_PATIENCE,
        arrive_within_s=ARRIVE_S,
    )
    door = _Door(int(fleet.window_s // 60))
    world = World(settings, observers=[door])
    world.begin()
    world.run(limit_s=fleet.window_s)
    say(f"{len(fleet.spans):,} devices on the roles: {world.kernel.handled:,} events")
    counts = door.counts
    lease_s = float(np.median(door.leases_s))
    return Seen(ready=counts[Ready], updates=counts[Update], lent=counts[Work], waits=counts[Wait], lease_s=lease_s)


def _presence(spans: tuple[tuple[float, float], ...], window_s: int) -> Presence:
    """As spans of whole seconds, one after the other."""
    runs: list[tuple[bool, int]] = []
    at_s = 0
    for from_s, to_s in spans:
        runs += [(False, int(from_s) - at_s), (True, int(to_s) - int(from_s))]
        at_s = int(to_s)
    runs.append((False, window_s - at_s))
    return Presence(spans=tuple(run for run in runs if run[1] > 0))
