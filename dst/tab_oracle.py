"""The requests that a manager may send to a device that declares itself a browser's tab. Shares no code with the roles.

A tab has no door: it never leads, sums up or is sent to another manager's door; it works only for jobs that have an
exported training step and that a leader at its manager leads. It has shared examples, or rows of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from shoal.roles.actions import Send
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.wire.messages import Assign, Bind, Dismiss, JobSpec, Message, Route, SetUpAggregator


def suits(spec: JobSpec) -> bool:
    """Whether a tab can do what this job asks of a worker."""
    plan = spec.plan
    if plan.data == "shared":
        is_able = plan.work in ("leased", "fixed") and "private" not in plan.trust
    else:
        # It counts its rows, its time and what leaves it, but measures no energy and draws no noise.
        is_able = not (plan.budget_joules or plan.budget_battery_percent or plan.labels_epsilon)
    is_whole = plan.topology == "star" and plan.codec == "dense" and plan.down == "dense"
    return bool(spec.graphs) and is_able and is_whole and "sealed" not in plan.trust


class TabOracle:
    def __init__(self, specs: Sequence[JobSpec], tabs: Sequence[str]) -> None:
        self._specs = {spec.job: spec for spec in specs}
        self._tabs = frozenset(tabs)
        #: Jobs that a tab was assigned to.
        self.assigned = 0

    def mark(self, mark: Mark) -> None:
        pass

    def step(self, step: Step) -> None:
        if not self._tabs:
            return
        for action in step.actions:
            if isinstance(action, Send) and action.to in self._tabs:
                self._said(step, action.to, action.message)

    def _said(self, step: Step, tab: str, message: Message) -> None:
        what = ""
        match message:
            case Assign(role="worker") if not suits(self._specs[message.job]):
                what = f"was given {message.job}, which no tab can work for"
            case Assign(role="worker") if message.leader_endpoint:
                what = f"was sent to a leader on {message.leader}, which it cannot dial"
            case Assign(role="worker"):
                self.assigned += 1
            case Assign():
                what = f"is to be the {message.role} of {message.job}"
            case Dismiss() if message.endpoint:
                what = "was sent to another manager"
            case SetUpAggregator() | Route() | Bind():
                what = f"was sent {type(message).__name__}"
            case _:
                pass
        if what:
            raise Violation(f"at {step.at_s:.3f} s: {tab} is a tab, and {what}")
