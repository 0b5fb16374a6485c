"""What the watchers of a simulation take for a violation, told by hand."""

from __future__ import annotations

from typing import Any

import pytest

from dst.case import case
from dst.fuzz import CheckedRun
from shoal.plan import Plan
from shoal.roles.actions import Action, Save, Send
from shoal.roles.events import Event, Received, Started
from shoal.scheduling.ledger import Applied
from shoal.sim.invariants import Invariants, Violation
from shoal.sim.jobs import bare_spec
from shoal.sim.observe import Mark, Step
from shoal.wire.messages import Go, Message, ReduceResult, Update, Work

OF: dict[str, Any] = {"job": "job", "term": 1}


class Watch:
    """An asynchronous tree, led by ``hub`` under term 1, as those who watch it see it."""

    def __init__(self) -> None:
        spec = bare_spec("job", Plan(batch_size=100, pace="async", topology="tree"), examples=600)
        self._invariants = Invariants({"job": (spec, 80)})
        self._at_s = 0.0
        self._invariants.mark(Mark(0.0, "home", "kept", {"job": "job", "state": "running", "term": 1}))
        self._invariants.mark(Mark(0.0, "hub", "led", {"job": "job", "term": 1, "version": 0}))

    def happens(self, event: Event, *actions: Action) -> None:
        self._at_s += 0.1
        self._invariants.step(Step(self._at_s, "hub", "leader", "job", event, list(actions)))

    def hears(self, sender: str, message: Message, *actions: Action) -> None:
        self.happens(Received(sender=sender, message=message), *actions)

    def lends(self, *leases: int, formation: int) -> None:
        for lease in leases:
            work = Work(lease=lease, kind="train", version=0, batches=(lease,), formation=formation, deadline_s=9, **OF)
            self.happens(Started(), Send(to=f"w{lease}", message=work))

    def reports(self, *leases: int, formation: int) -> None:
        for lease in leases:
            self.hears(f"w{lease}", Update(lease=lease, version=0, examples=1, formation=formation, **OF))

    def sums(self, *leases: int, formation: int) -> None:
        self.hears("w1", ReduceResult(leases=leases, formation=formation, version=1, weight=len(leases), **OF))

    def saves(self, *leases: int) -> None:
        rows = tuple(Applied(epoch=0, batch=lease, version=1, node=f"w{lease}", lease=lease) for lease in leases)
        self.happens(Started(), Save(version=1, tensors={}, state={"version": 1, "term": 1}, applied=rows))


def test_where_nobody_waits_a_version_is_made_of_one_sum() -> None:
    watch = Watch()
    watch.lends(1, 2, 3, formation=1)
    watch.reports(1, 2, 3, formation=1)
    watch.sums(1, 2, 3, formation=1)
    watch.saves(1, 2, 3)


def test_and_not_of_two() -> None:
    watch = Watch()
    watch.lends(1, 2, 3, formation=1)
    watch.reports(1, 2, 3, formation=1)
    watch.sums(1, 2, formation=1)
    watch.sums(3, formation=1)
    with pytest.raises(Violation, match="version 1 is made of 3 updates"):
        watch.saves(1, 2, 3)


def test_a_sum_of_a_formation_that_is_no_more_takes_nothing_apart() -> None:
    watch = Watch()
    watch.lends(1, 2, 3, formation=1)
    watch.reports(1, 2, 3, formation=1)
    for lease in (1, 2, 3):
        watch.happens(Started(), Send(to=f"w{lease}", message=Go(lease=lease, formation=2, **OF)))
    watch.reports(2, 3, formation=2)
    watch.sums(2, 3, formation=2)
    watch.sums(1, 2, formation=1)
    watch.saves(2, 3)


def test_a_storm_is_a_violation() -> None:
    checked = CheckedRun(case("plain", 0))
    kernel = checked.world.kernel

    def again() -> None:
        kernel.after(0.001, again)

    kernel.at(1.0, again)
    with pytest.raises(Violation, match="a storm of 10000 events"):
        checked.run()
