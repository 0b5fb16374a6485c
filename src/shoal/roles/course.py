"""The course of a training: the model, how far it is, and what survives a crash. Pure state; time is an argument.

Model, momentum, version and ledger change here and nowhere else, so that they cannot disagree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from shoal.learning.layout import Layout
from shoal.learning.outer import momentum_step
from shoal.learning.partial import Partial
from shoal.learning.staleness import Lateness
from shoal.roles.formation import Report
from shoal.wire.messages import EvaluationView, JobSpec, Tensors, Update
from shoal.workload.batches import batch_count, examples_in
from shoal.workload.ledger import Applied, Lease, Ledger

#: Evaluations that are carried along; the registry has them all. A checkpoint's header is bounded.
EVALUATIONS_KEPT = 1000

#: What a checkpoint holds besides the model goes by names that begin so.
OURS = "shoal."
VELOCITY = f"{OURS}velocity"


class Course:
    def __init__(self, spec: JobSpec, layout: Layout, model: np.ndarray) -> None:
        self._spec = spec
        self._layout = layout
        self.model = model
        self.velocity = np.zeros(layout.parameters_size, dtype=np.float32)
        self.version = 0
        self.ledger = Ledger(batches=batch_count(spec.train.examples, spec.plan.batch_size))
        self._partial = Partial(layout.size)
        #: Not part of a snapshot: see there.
        self.lateness = Lateness()
        self.evaluations: list[EvaluationView] = []
        #: Mean loss of the batches of the last version.
        self.train_loss: float | None = None
        self._loss_sum = 0.0
        self._started_s = 0.0
        self._elapsed_before_s = 0.0
        #: When recent versions were made, and of how many examples.
        self._steps: deque[tuple[float, int]] = deque(maxlen=64)

    def start(self, now_s: float) -> None:
        self._started_s = now_s

    def elapsed_s(self, now_s: float) -> float:
        """Time spent on this job, over all of its leaders."""
        return self._elapsed_before_s + now_s - self._started_s

    # The model moves -----------------------------------------------------------------------------------

    def examples_in(self, lease: Lease) -> int:
        """How many examples a lease holds: the last batch of an epoch may be short."""
        spec = self._spec
        return examples_in(lease.batches, examples=spec.train.examples, batch_size=spec.plan.batch_size)

    def merge(self, lease: Lease, update: Update, delta: np.ndarray) -> None:
        """Take a checked update into the next version. What is late counts less."""
        self._partial.add(delta, weight=float(update.examples), scale=self.scale_of(lease))
        self.lateness.seen(self.version - lease.version)
        self._loss_sum += update.loss_sum
        self.ledger.merge(lease)

    def scale_of(self, lease: Lease) -> float:
        """What an update of this lease is worth, as late as it is."""
        return self.lateness.weight(self._spec.plan.staleness, self.version - lease.version)

    def merge_sum(self, reports: Iterable[Report], mean: np.ndarray, weight: float) -> None:
        """Take what a sub-leader summed up into the next version: their updates as one."""
        self._partial.add(mean, weight=weight)
        for report in reports:
            self.lateness.seen(self.version - report.lease.version)
            self._loss_sum += report.update.loss_sum
            # Its deadline may be another by now.
            lease = self.ledger.get(report.lease.id)
            assert lease is not None, f"lease {report.lease.id} was summed up and is not lent"
            self.ledger.merge(lease)

    def advance(self, now_s: float) -> list[Applied]:
        """Turn what is merged into the next version; returns its place in the history."""
        self.model, self.velocity = momentum_step(
            self.model,
            self.velocity,
            self._partial.mean(),
            momentum=self._spec.plan.momentum,
            parameters_size=self._layout.parameters_size,
        )
        self.model.flags.writeable = False
        self.version += 1
        examples = int(self._partial.weight)
        self._steps.append((now_s, examples))
        self.train_loss, self._loss_sum = self._loss_sum / examples, 0.0
        self._partial.clear()
        return self.ledger.apply(self.version)

    # How good it is ------------------------------------------------------------------------------------

    def evaluated(self, view: EvaluationView) -> None:
        self.evaluations.append(view)
        del self.evaluations[:-EVALUATIONS_KEPT]

    @property
    def latest(self) -> EvaluationView | None:
        return self.evaluations[-1] if self.evaluations else None

    @property
    def is_evaluated(self) -> bool:
        """The present version is."""
        return self.latest is not None and self.latest.version == self.version

    def rates(self, now_s: float) -> tuple[float, float]:
        """Rounds and examples a second, lately."""
        if len(self._steps) < 2:
            return 0.0, 0.0
        span_s = max(now_s - self._steps[0][0], 1e-9)
        examples = sum(count for _, count in self._steps) - self._steps[0][1]
        return (len(self._steps) - 1) / span_s, examples / span_s

    # What survives -------------------------------------------------------------------------------------

    def snapshot(self, now_s: float) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything a successor needs, as tensors and JSON values. No array of it changes later."""
        tensors = {**self._layout.views(self.model), VELOCITY: self.velocity}
        rows = [{f: getattr(e, f) for f in EvaluationView.__dataclass_fields__} for e in self.evaluations]
        state = {
            "version": self.version,
            "ledger": self.ledger.snapshot(),
            "elapsed_s": self.elapsed_s(now_s),
            "evaluations": rows,
        }
        return tensors, state

    def restore(self, *, tensors: Tensors, state: dict[str, Any]) -> None:
        """Continue from a snapshot."""
        model = np.empty(self._layout.size, dtype=np.float32)
        for name, view in self._layout.views(model).items():
            view[...] = tensors[name]
        model.flags.writeable = False
        self.model = model
        self.velocity = np.array(tensors[VELOCITY], dtype=np.float32)
        self.version = int(state["version"])
        self.ledger = Ledger.restore(state["ledger"])
        self._elapsed_before_s = float(state["elapsed_s"])
        self.evaluations = [EvaluationView(**row) for row in state["evaluations"]]
