"""Sized leases have the time that their size takes: the first ones only measure devices, and are far shorter."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.learning.layout import Layout
from shoal.plan import Until
from shoal.roles.actions import Action, Save, Send
from shoal.roles.events import Received, Saved, Started, TimerFired
from shoal.roles.leader.leader import Leader
from shoal.wire.messages import DeviceState, Failed, JobSpec, Message, Ready, Update, Work

#: Seconds, and joules, that an example takes.
SECONDS, JOULES = 0.1, 0.5
DEVICES = 12


class Fleet:
    """Equal devices that train until the time of their lease is over, and a leader."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        layout = Layout.of([("w", (2,), "parameter")])
        self.leader = Leader(spec=spec, layout=layout, model=np.zeros(2, np.float32), term=1, manager="home")
        #: When, a number that makes entries differ, and who says what.
        self.said: list[tuple[float, int, str, Message | None]] = []
        self.now_s = 0.0
        self.sizes: list[int] = []
        self.late = 0
        self.state = DeviceState(kind="pi", memory_total_mb=1024.0, examples=1000 if spec.plan.data == "local" else 0)
        self._does(self.leader.handle(Started(), 0.0))
        self._later(1.0, "", None)
        for number in range(DEVICES):
            self._later(0.1, f"d{number}", Ready(job="digits", state=self.state))

    def runs(self, seconds: float) -> None:
        while self.said and self.now_s < seconds:
            self.now_s, _, node, message = heapq.heappop(self.said)
            if message is None:
                self._later(0.5, "", None)
                self._does(self.leader.handle(TimerFired(name="tick"), self.now_s))
                continue
            event = Received(sender=node, message=message, size_bytes=0)
            self._does(self.leader.handle(event, self.now_s))
            if isinstance(message, Failed):
                self._later(1.0, node, Ready(job="digits", state=self.state))

    def _later(self, after_s: float, node: str, message: Message | None) -> None:
        heapq.heappush(self.said, (self.now_s + after_s, len(self.said) + len(self.sizes) * 1000, node, message))

    def _does(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send(message=Work() as work):
                    self._trains(action.to, work)
                case Save():
                    self._does(self.leader.handle(Saved(version=action.version), self.now_s))
                case _:
                    pass

    def _trains(self, node: str, work: Work) -> None:
        examples = work.examples or self.spec.plan.batch_size * len(work.batches)
        told: dict[str, Any] = {"job": "digits", "term": 1, "lease": work.lease}
        self.sizes.append(examples)
        if SECONDS * examples > work.deadline_s:
            self.late += 1
            self._later(work.deadline_s, node, Failed(**told, reason="no result within the time of its lease"))
            return
        tensors = {"delta": np.ones(2, np.float32)}
        costs = {"train_s": SECONDS * examples, "joules": JOULES * examples, "state": self.state}
        self._later(
            SECONDS * examples, node, Update(**told, **costs, version=work.version, examples=examples, tensors=tensors)
        )


@pytest.mark.parametrize(
    "budget", [{"budget_s": 30.0}, {"budget_joules": 150.0}, {"budget_s": 30.0, "budget_joules": 150.0}]
)
@pytest.mark.parametrize("pace", ["sync", "async"])
@pytest.mark.parametrize("data", ["shared", "local"])
def test_leases_that_fill_a_budget_are_not_late_beside_those_that_measure(
    make_spec: Callable[..., JobSpec], data: str, pace: str, budget: dict[str, float]
) -> None:
    size = {"epoch_leases": 10_000} if data == "local" else {}
    plan = {"work": "sized", "batch_size": 4, "until": Until(epochs=1), "workers_max": DEVICES, **size, **budget}
    fleet = Fleet(make_spec(examples=0 if data == "local" else 400_000, data=data, pace=pace, **plan))
    fleet.runs(200.0)
    assert fleet.late == 0
    # As many as a budget of 30 s or 150 J takes, but for the margin.
    assert 200 <= fleet.sizes[-1] <= 330
    assert len(fleet.sizes) >= 5 * DEVICES


def test_a_lease_that_ran_out_before_its_budget_makes_the_next_one_no_larger(make_spec: Callable[..., JobSpec]) -> None:
    """Leases have ten seconds by the plan: they are fitted to that."""
    fleet = Fleet(make_spec(examples=400_000, work="sized", batch_size=4, budget_s=30.0, lease_s=10.0, pace="sync"))
    fleet.runs(200.0)
    assert fleet.late == 0
    assert 60 <= fleet.sizes[-1] <= 110
