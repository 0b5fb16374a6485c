"""What must hold of a private job, from what leaves its devices and what its leaders draw. Keeps a ledger of its own.

Every update that leaves was counted on its device's disk; none is longer than the plan says, none comes too often or
too soon, and a device never forgets one. No leader draws the noise of another, nor more than its chain is for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.compress.codec import Codec
from shoal.learning.blt_table import TABLE
from shoal.learning.privacy import Privacy
from shoal.roles.actions import Send
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.sim.toy_task import LAYOUT
from shoal.wire.coded import decode, norm_of, sizes_of
from shoal.wire.messages import JobSpec, Ready, Update


def noise_at(privacy: Privacy, normals: Sequence[np.ndarray], place: int) -> np.ndarray:
    """The noise of a version, by the definition of its chain: what the inverse of C makes of fresh noise."""
    count = place + 1
    if len(normals) < count:
        raise Violation(f"version {count} of a chain was made, and noise was drawn {len(normals)} times")
    row = TABLE[min(size for size in TABLE if size >= privacy.versions)]
    lower = np.eye(count)
    for late in range(1, count):
        parts = (weight * decay ** (late - 1) for decay, weight in zip(row.decays, row.weights, strict=True))
        lower += sum(parts) * np.eye(count, k=-late)
    drawn = np.array(normals[:count], dtype=np.float64) * privacy.deviation
    return np.asarray(np.linalg.solve(lower, drawn)[place])


class PrivacyOracle:
    def __init__(self, specs: Sequence[JobSpec]) -> None:
        self._private = {spec.job: (spec.plan, spec.plan.privacy) for spec in specs}
        #: (device, job) -> the (term, lease) of each participation on its disk.
        self._counted: dict[tuple[str, str], set[tuple[int, int]]] = {}
        #: (device, job) -> the (term, lease) of each update that left, and its version.
        self._left: dict[tuple[str, str], dict[tuple[int, int], int]] = {}
        #: (job, term) -> how often noise was drawn; and all of it.
        self._draws: dict[tuple[str, int], int] = {}
        self._drawn: set[bytes] = set()

    def mark(self, mark: Mark) -> None:
        if mark.kind == "counted":
            of = (mark.facts["term"], mark.facts["lease"])
            self._counted.setdefault((mark.node, mark.facts["job"]), set()).add(of)
        elif mark.kind == "noise":
            self._on_noise(mark)

    def _on_noise(self, mark: Mark) -> None:
        _, privacy = self._private[mark.facts["job"]]
        of, drawn = (mark.facts["job"], mark.facts["term"]), mark.facts["normals"].tobytes()
        self._draws[of] = self._draws.get(of, 0) + 1
        if privacy is None or self._draws[of] > privacy.versions:
            raise Violation(f"noise was drawn {self._draws[of]} times under term {of[1]}")
        if drawn in self._drawn:
            raise Violation(f"at {mark.at_s:.3f} s: the noise of a version of term {of[1]} was another's before")
        self._drawn.add(drawn)

    def step(self, step: Step) -> None:
        if step.role != "worker":
            return
        plan, privacy = self._private[step.job]
        if privacy is None:
            return
        for action in step.actions:
            if not isinstance(action, Send):
                continue
            if isinstance(action.message, Update):
                self._on_update(step, action.message, privacy, Codec.parse(plan.codec))
            elif isinstance(action.message, Ready):
                self._on_ready(step, action.message)

    def _on_update(self, step: Step, update: Update, privacy: Privacy, codec: Codec) -> None:
        who, what = (step.node, step.job), f"at {step.at_s:.3f} s: an update of {step.node}"
        lease = (update.term, update.lease)
        if lease not in self._counted.get(who, ()):
            raise Violation(f"{what} leaves, and was not counted")
        length = norm_of(decode(codec, update.tensors, sizes_of(LAYOUT)))
        if length > privacy.clip * (1 + 1e-6):
            raise Violation(f"{what} is {length} long, of {privacy.clip}")
        if update.loss_sum or update.fresh or update.fresh_metrics or update.labels or update.logged:
            raise Violation(f"{what} tells more of its examples than itself")
        left = self._left.setdefault(who, {})
        near = [at for (term, other), at in left.items() if term == update.term and other != update.lease]
        left[lease] = update.version
        if len(left) > privacy.participations:
            raise Violation(f"{what} is its participation {len(left)}, of {privacy.participations}")
        if any(abs(update.version - at) < privacy.apart for at in near):
            raise Violation(f"{what} of version {update.version} is too close to those of {near}")

    def _on_ready(self, step: Step, ready: Ready) -> None:
        left = len(self._left.get((step.node, step.job), ()))
        told = ready.state.participations if ready.state is not None else 0
        if told < left:
            raise Violation(f"at {step.at_s:.3f} s: {step.node} says that it took part {told} times, and did {left}")
