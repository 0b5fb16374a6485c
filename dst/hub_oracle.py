"""What must never be false of hubs: they are given no work and do none, and stand for no worker.

As the other oracles, it looks at events and actions alone. Which devices are hubs, it knows from the case.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shoal.roles.actions import Evaluate, Prepare, Record, Send, Train
from shoal.roles.events import Liveness, PeerChanged, Received, Started
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.wire.messages import (
    Assign,
    Evaluated,
    Failed,
    JobSpec,
    Offer,
    Ready,
    SetUpAggregator,
    Update,
    UpdateReady,
    Welcome,
    Work,
)


class HubOracle:
    """An observer that raises at the first step that breaks one."""

    def __init__(self, specs: Sequence[JobSpec], hubs: Collection[str]) -> None:
        self._plans = {spec.job: spec.plan for spec in specs}
        self._hubs = frozenset(hubs)
        #: (leader's node, job) -> the workers that it has heard of and not lost.
        self._here: dict[tuple[str, str], set[str]] = {}
        #: How often a hub was made an aggregator.
        self.set_up = 0

    def step(self, step: Step) -> None:
        if step.node in self._hubs and any(isinstance(act, Prepare | Train | Evaluate) for act in step.actions):
            self._hold(False, step, f"{step.node} is a hub, and its {step.role} asked for a trainer")
        if step.role == "manager":
            self._manager(step)
        elif step.role == "leader":
            self._leader(step)

    def _manager(self, step: Step) -> None:
        for action in step.actions:
            if isinstance(action, Send) and isinstance(action.message, Welcome):
                is_sent = action.to in self._hubs and action.message.come_s > 0
                self._hold(not is_sent, step, f"{action.to} is a hub, and was told to come again later")
            if not isinstance(action, Send) or not isinstance(action.message, Assign):
                continue
            role, job = action.message.role, action.message.job
            if role == "leader":
                continue
            is_hub = action.to in self._hubs
            self._hold((role == "hub") is is_hub, step, f"{action.to} was made a {role} of {job}, hub or not: {is_hub}")
            takes = self._plans[job].hubs_max > 0
            self._hold(takes or not is_hub, step, f"{action.to}, a hub, was given to {job}, which has no tree")

    def _leader(self, step: Step) -> None:
        here = self._here.setdefault((step.node, step.job), set())
        match step.event:
            case Started():
                here.clear()
            case Received(sender=sender, message=Ready() | UpdateReady() | Offer() | Update() | Evaluated() | Failed()):
                here.add(sender)
            case PeerChanged(node=node, state=Liveness.LOST):
                here.discard(node)
            case _:
                pass
        workers = here - self._hubs
        for action in step.actions:
            if isinstance(action, Record) and action.kind == "device.released":
                here.discard(action.reason.partition(" ")[0])
            if not isinstance(action, Send):
                continue
            if isinstance(action.message, SetUpAggregator):
                self.set_up += action.to in self._hubs
            if isinstance(action.message, Work):
                self._hold(action.to not in self._hubs, step, f"{action.to} is a hub, and was lent a lease")
                least = self._plans[step.job].workers_least
                told = f"{action.to} was lent a lease of {step.job} while {len(workers)} of {least} workers were there"
                self._hold(len(workers) >= least, step, told)

    def mark(self, mark: Mark) -> None:
        pass

    def _hold(self, holds: bool, step: Step, what: str) -> None:
        if not holds:
            raise Violation(f"at {step.at_s:.3f} s: {what}")
