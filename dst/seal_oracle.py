"""What devices may say of sealed updates, from what they do themselves. Shares no code with the roles.

No label is used twice by a device, whatever died in between; no device opens a sum of fewer than the plan says, or
agrees to two sets of members under one label; no update is opened in two sums; and only masked words leave a device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dst.privacy_oracle import smallest_sum
from shoal.roles.actions import Seal, Send
from shoal.roles.events import Received
from shoal.sealing.label import Label
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.wire.messages import Agree, Agreed, JobSpec, Opened, Update


class LabelCount:
    """The labels that devices seal under, and how many of these seals a device made under a label it had used before.
    Watches a simulation by itself, or for the oracle."""

    def __init__(self) -> None:
        self.used = self.twice = 0
        #: (job, term) under which anything was sealed: above one of a job, a leader died or moved in between.
        self.terms: set[tuple[str, int]] = set()
        #: (node, what makes a mask but the model).
        self._labels: set[tuple[str, bytes]] = set()

    def mark(self, mark: Mark) -> None:
        pass

    def step(self, step: Step) -> None:
        for action in step.actions:
            if isinstance(action, Seal):
                self.add(step.node, action.request.label)

    def add(self, node: str, label: Label) -> bool:
        """Whether this device uses this label for the first time."""
        # By the digest that masks are made of, so that a part that is missing there is missed here.
        used = (node, label.digest())
        is_new = used not in self._labels
        self._labels.add(used)
        self.used += 1
        self.twice += not is_new
        self.terms.add((label.job, label.term))
        return is_new


class SealOracle:
    def __init__(self, specs: Sequence[JobSpec]) -> None:
        self._least = {spec.job: smallest_sum(spec.plan) for spec in specs if spec.plan.believes.sealed}
        self._labels = LabelCount()
        #: (node, job, term, group) -> its lease; the set that was agreed to; its update.
        self._leases: dict[tuple[str, str, int, int], int] = {}
        self._agreed: dict[tuple[str, str, int, int], tuple[bytes, bytes, bytes]] = {}
        self._updates: dict[tuple[str, str, int, int], np.ndarray] = {}
        #: (node, job, term, lease) -> the group in which it was opened.
        self._opened: dict[tuple[str, str, int, int], int] = {}

    def mark(self, mark: Mark) -> None:
        pass

    def step(self, step: Step) -> None:
        if step.role != "worker" or step.job not in self._least:
            return
        for action in step.actions:
            if isinstance(action, Seal):
                self._sealed(step, action)
            elif isinstance(action, Send):
                self._said(step, action.message)

    def _sealed(self, step: Step, action: Seal) -> None:
        label = action.request.label
        self._hold(self._labels.add(step.node, label), step, f"label {label.turn} was used before by {step.node}")
        self._hold(
            len(label.members) >= self._least[step.job], step, f"{step.node} sealed among {len(label.members)} devices"
        )
        key = (step.node, step.job, label.term, label.group)
        self._leases[key], self._updates[key] = action.lease, action.request.update

    def _said(self, step: Step, message: object) -> None:
        match message:
            case Update():
                told = self._updates.get((step.node, step.job, message.term, message.group))
                is_masked = set(message.tensors) == {"words", "seals"} and told is not None
                self._hold(is_masked, step, f"{step.node} sent lease {message.lease} without masks")
            case Agreed():
                self._agreed_to(step, message)
            case Opened():
                key = (step.node, step.job, message.term, message.group)
                self._hold(key in self._agreed, step, f"{step.node} opened group {message.group} and had not agreed")
                lease = (step.node, step.job, message.term, self._leases[key])
                before = self._opened.setdefault(lease, message.group)
                self._hold(before == message.group, step, f"{step.node} opened an update in groups {before} and again")
            case _:
                pass

    def _agreed_to(self, step: Step, message: Agreed) -> None:
        asked = step.event.message if isinstance(step.event, Received) else None
        present = asked.present if isinstance(asked, Agree) else b""
        self._hold(
            sum(byte.bit_count() for byte in present) >= self._least[step.job],
            step,
            f"{step.node} agreed to a sum of too few",
        )
        key = (step.node, step.job, message.term, message.group)
        said = (present, message.macs, message.edges)
        self._hold(self._agreed.setdefault(key, said) == said, step, f"{step.node} agreed to two sets")

    @staticmethod
    def _hold(holds: bool, step: Step, what: str) -> None:
        if not holds:
            raise Violation(f"at {step.at_s:.3f} s: {what}")
