"""One evaluation of a version on held-out data, leased out in chunks like any batch. Pure state."""

from __future__ import annotations

import math

from shoal.wire.messages import Evaluated, EvaluationView
from shoal.workload.ledger import Lease, Ledger

#: Held-out examples a worker evaluates on one lease.
EXAM_CHUNK = 1000


def chunk_range(chunk: int, *, examples: int) -> tuple[int, int]:
    """The held-out examples of a chunk: [start, stop)."""
    start = chunk * EXAM_CHUNK
    return start, min(start + EXAM_CHUNK, examples)


class Exam:
    def __init__(self, *, version: int, epoch: int, examples: int) -> None:
        self.version = version
        self._epoch = epoch
        self._examples = examples
        self.ledger = Ledger(batches=math.ceil(examples / EXAM_CHUNK), epoch=epoch)
        self._counted = 0
        self._loss_sum = 0.0
        self._correct = 0

    @property
    def finished(self) -> bool:
        return self.ledger.finished

    def problem(self, result: Evaluated, lease: Lease) -> str | None:
        """Why a result is impossible; None: it is possible."""
        ranges = [chunk_range(chunk, examples=self._examples) for chunk in lease.batches]
        expected = sum(stop - start for start, stop in ranges)
        if result.version != self.version:
            return f"evaluated version {result.version}, not {self.version}"
        if result.examples != expected or not 0 <= result.correct <= expected:
            return f"{result.correct} right of {result.examples} examples; the lease holds {expected}"
        if not math.isfinite(result.loss_sum):
            return "a loss that is not finite: try a lower learning rate"
        return None

    def add(self, result: Evaluated, lease: Lease) -> None:
        self.ledger.merge(lease)
        self.ledger.apply(self.version)
        self._counted += result.examples
        self._loss_sum += result.loss_sum
        self._correct += result.correct

    def view(self, *, seconds: float) -> EvaluationView:
        return EvaluationView(
            version=self.version,
            epoch=self._epoch,
            accuracy=self._correct / self._counted,
            loss=self._loss_sum / self._counted,
            examples=self._counted,
            seconds=seconds,
        )
