"""A robust plan whose updates lie in parts gives the result that complete updates would give.

It looks at what a leader tells the aggregators of a shard, and works out from the pieces themselves, put together, what
the version should be made of (``trust_oracle``). Knows no products.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dst.sum_oracle import SumOracle
from dst.trust_oracle import nearest_to, outvoted
from shoal.roles.actions import Send
from shoal.sim.invariants import Violation
from shoal.sim.observe import Mark, Step
from shoal.wire.messages import JobSpec, Reduce

#: Products are of float32 numbers: what follows from them is off by a share of the longest update.
TOLERANCE = 5e-4


class PartsOracle:
    """An observer that raises where a leader weighs parts otherwise than it would weigh the whole."""

    def __init__(self, specs: Sequence[JobSpec], sums: SumOracle) -> None:
        self._plans = {spec.job: spec.plan for spec in specs}
        self._sums = sums

    def step(self, step: Step) -> None:
        if step.role != "leader" or self._plans[step.job].believes.rule != "nearest":
            return
        for action in step.actions:
            if isinstance(action, Send) and isinstance(action.message, Reduce) and action.message.last:
                self._weighed(step, action.message)

    def _weighed(self, step: Step, count: Reduce) -> None:
        updates = [self._sums.whole(count.job, count.term, count.formation, lease) for lease in count.leases]
        worth = np.array(count.weights) * np.array(count.scales) / sum(count.weights)
        if abs(worth.sum() - 1) > 1e-6:
            raise Violation(f"at {step.at_s:.3f} s: the weights of version {count.version} are {worth}")
        voices = {str(lease): [(1.0, update)] for lease, update in zip(count.leases, updates, strict=True)}
        found = worth @ np.array(updates)
        expected = nearest_to(found, outvoted(voices, share=self._plans[step.job].believes.share))
        longest = max(float(np.linalg.norm(update)) for update in updates)
        if float(np.linalg.norm(found - expected)) > TOLERANCE * longest:
            raise Violation(
                f"at {step.at_s:.3f} s: parts of version {count.version} are weighed by {worth}, which is not what"
                f" whole updates come to: {found}, {expected}"
            )

    def mark(self, mark: Mark) -> None:
        pass
