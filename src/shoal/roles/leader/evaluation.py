"""Evaluations of versions: on held-out data, leased out in chunks like any batch, or on examples that are new."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shoal.learning.metrics import METRICS_MAX, MetricSum, difference, merge_all, values_problem, weight_problem
from shoal.roles.evaluation_rows import figures_text
from shoal.roles.leader.checkpointing import Durability
from shoal.roles.leader.local_data import Online
from shoal.roles.leader.suspicion import Suspicion
from shoal.roles.leader.training_state import TrainingState
from shoal.roles.machine import Machine
from shoal.scheduling.ledger import Lease, Ledger, Refusal
from shoal.wire.messages import Evaluated, EvaluationView, JobSpec, mean_number, views_of

#: Held-out examples a worker evaluates on one lease, at most.
EVALUATION_CHUNK = 1000

#: The seconds that such a lease should take, and a forward pass as a share of a training step. A detector on a board
#: would need a quarter of an hour for 1,000 examples, all of which would be lost with the board.
CHUNK_S = 10.0
FORWARD_SHARE = 1 / 3


def chunk_range(chunk: int, *, examples: int, size: int = 0) -> tuple[int, int]:
    """Return the held-out examples of a chunk, [start, stop). ``size`` 0 means the largest chunk."""
    size = size or EVALUATION_CHUNK
    start = chunk * size
    return start, min(start + size, examples)


def chunk_ranges(chunks: Sequence[int], *, examples: int, size: int = 0) -> list[tuple[int, int]]:
    """The held-out examples of each chunk of a lease."""
    return [chunk_range(chunk, examples=examples, size=size) for chunk in chunks]


def chunk_size(example_s: float | None, *, batch_size: int) -> int:
    """Return the held-out examples of a chunk if a device trains one in ``example_s``, or the most if unknown."""
    if not example_s:
        return EVALUATION_CHUNK
    batches = math.ceil(CHUNK_S / (FORWARD_SHARE * example_s) / batch_size)
    return min(EVALUATION_CHUNK, batches * batch_size)


class Evaluation:
    """One evaluation of a version on held-out data. Pure state."""

    def __init__(
        self, *, version: int, epoch: int, examples: int, size: int = EVALUATION_CHUNK, of_mean: bool = False
    ) -> None:
        self.version = version
        #: What workers are told to evaluate: the version, or the mean at it.
        self.number = mean_number(version) if of_mean else version
        #: Examples of a chunk.
        self.size = size
        self._epoch = epoch
        self._examples = examples
        self.ledger = Ledger(batches=math.ceil(examples / size), epoch=epoch)
        self._counted = 0
        #: Metric -> its sums so far.
        self._sums: dict[str, MetricSum] = {}

    @property
    def finished(self) -> bool:
        return self.ledger.finished

    def problem(self, result: Evaluated, lease: Lease) -> str | None:
        """Return why a result is impossible, or None if it is possible."""
        ranges = chunk_ranges(lease.batches, examples=self._examples, size=self.size)
        expected = sum(stop - start for start, stop in ranges)
        if result.version != self.number:
            return f"evaluated version {result.version}, not {self.number}"
        if result.examples != expected:
            return f"an evaluation over {result.examples} examples; the lease holds {expected}"
        return (
            values_problem(result.metrics)
            or weight_problem(result.metrics, examples=expected)
            or self._disagreement(result.metrics)
        )

    def _disagreement(self, metrics: Sequence[MetricSum]) -> str | None:
        """Why these do not add up with the other workers' results."""
        for metric in metrics:
            if (mine := self._sums.get(metric.name)) is not None and (why := difference(mine, metric)) is not None:
                return why
        if len({*self._sums, *(metric.name for metric in metrics)}) > METRICS_MAX:
            return f"more than {METRICS_MAX} metrics in one evaluation"
        return None

    def add(self, result: Evaluated, lease: Lease) -> None:
        self.ledger.merge(lease)
        self.ledger.apply(self.version)
        self._counted += result.examples
        self._sums = {each.name: each for each in merge_all((tuple(self._sums.values()), result.metrics))}

    def view(self, *, seconds: float) -> EvaluationView:
        return EvaluationView(
            version=self.version,
            epoch=self._epoch,
            examples=self._counted,
            seconds=seconds,
            metrics=views_of(self._sums.values()),
        )


class Evaluations:
    """Decides when a version is evaluated, and collects the results. A part of the leader."""

    def __init__(
        self,
        machine: Machine,
        *,
        spec: JobSpec,
        training: TrainingState,
        durability: Durability,
        suspicion: Suspicion,
        online: Online | None,
    ) -> None:
        self._machine = machine
        self._spec = spec
        self._training = training
        self._durability = durability
        self._suspicion = suspicion
        self._online = online
        #: The seconds that devices recently took to train an example, or None if unknown.
        self._example_s: float | None = None
        #: The evaluation that runs, or None while the job trains.
        self.now: Evaluation | None = None

    def is_due(self, *, is_ending: bool) -> bool:
        """At the end of an epoch whose turn it is, or of the last, unless this version was evaluated already."""
        done, plan = self._training.ledger.epoch, self._spec.plan
        at_boundary = self._training.ledger.applied == 0 and done > 0
        is_last = done == plan.until.epochs or is_ending
        due = done % plan.evaluate_every_epochs == 0 or is_last
        return at_boundary and due and not self._training.is_evaluated and self._spec.test.examples > 0

    def begin(self) -> None:
        """Evaluate the present version."""
        self.now = Evaluation(
            version=self._training.version,
            epoch=self._training.ledger.epoch,
            examples=self._spec.test.examples,
            size=chunk_size(self._example_s, batch_size=self._spec.plan.batch_size),
            of_mean=self._training.mean is not None,
        )

    @property
    def mean(self) -> np.ndarray | None:
        """The exponential mean that workers evaluate now, or None if the job trains or the plan has no mean."""
        return None if self.now is None else self._training.mean

    def on_trained(self, *, examples: int, train_s: float) -> None:
        """A worker trained a lease: its pace decides how many examples an evaluation lease has."""
        if examples > 0 and train_s > 0:
            took_s = train_s / examples
            # The slower ones weigh more: they hold an evaluation up.
            before_s = self._example_s or took_s
            self._example_s = before_s + (0.5 if took_s > before_s else 0.05) * (took_s - before_s)

    def cancel(self) -> None:
        self.now = None

    def find(self, lease: int, node: str) -> Lease | Refusal:
        """The lease of a result, if it is of the evaluation that runs."""
        if self.now is None:
            return Refusal(f"lease {lease} is not of a running evaluation")
        return self.now.ledger.find(lease, node)

    def on_evaluated(self, result: Evaluated, lease: Lease) -> str | None:
        """Count a result. Returns why it is impossible; then its lease is taken back."""
        assert self.now is not None
        problem = self.now.problem(result, lease)
        if problem is not None:
            self.now.ledger.release(lease, fate=f"was refused: {problem}")
            return problem
        self.now.add(result, lease)
        return None

    def conclude(self) -> bool:
        """End the evaluation if every part of it has arrived. Return whether it ended."""
        if self.now is None or not self.now.finished:
            return False
        view = self.now.view(seconds=self._training.elapsed_s)
        self.now = None
        view = self._judge(view)
        on = f"version {view.version:,}, {view.examples:,} held-out examples"
        self._machine.record("job.evaluated", f"epoch {view.epoch}: {figures_text(view.metrics)} ({on})")
        return True

    def judge_by_new_examples(self) -> None:
        """Evaluate an epoch of local data without held-out examples by the model's results on new examples before it
        was trained on them (test, then train)."""
        if self._online is None or self._spec.test.examples:
            return
        seconds, epoch = self._training.elapsed_s, self._training.ledger.epoch
        view = self._online.view(version=self._training.version, epoch=epoch, seconds=seconds)
        if view is None:
            return
        view = self._judge(view)
        on = f"version {view.version:,}, {view.examples:,} new examples before they were trained on"
        self._machine.record("job.evaluated", f"epoch {epoch}: {figures_text(view.metrics)} ({on})")

    def _judge(self, view: EvaluationView) -> EvaluationView:
        if trained := self._training.take_logged():
            view = replace(view, metrics=(*view.metrics, *trained)[:METRICS_MAX])
        self._training.add_evaluation(view)
        self._durability.add_evaluation(view)
        if self._suspicion.is_sound(view):
            self._training.on_found_good()
            self._suspicion.on_found_good()
        return view
