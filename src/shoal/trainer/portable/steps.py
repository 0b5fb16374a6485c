"""Training and evaluation of batches by captured graphs, in this process. Imports onnxruntime, and no torch.

Makes the same promise as ``trainer.steps``: the update of a lease depends only on the model, the seed, the epoch, the
batch numbers and the rate, unless the plan keeps the optimiser's state. A device's own rows come from its folder.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnxruntime

from shoal.data.local import LOCAL_VARIABLE
from shoal.errors import Misuse
from shoal.learning.metrics import MetricSum, merge_all
from shoal.scheduling.batches import mix
from shoal.trainer.columns import Rows
from shoal.trainer.launch import opened
from shoal.trainer.order import BatchOrder, training_set
from shoal.trainer.own_examples import FolderExamples
from shoal.trainer.own_lease import LabelCounts, choose_rows, without_values
from shoal.trainer.portable.draws import draw_all
from shoal.trainer.portable.graphs_file import Graphs, metric_sums
from shoal.trainer.portable.run import GraphRun, StepRun, columns_of, sums_of
from shoal.trainer.protocol import EvalResult, TaskLoaded, TrainerSettings, TrainResult
from shoal.trainer.shards import Examples
from shoal.trainer.shared import SharedVectors
from shoal.wire import tensors

#: The seed of evaluation, which has separate random numbers, as in ``trainer.steps``.
_EVALUATION = 0x6576616C
#: How far a device's update may be from PyTorch's, as a part of its length. A wrong kernel is off by about 1.
PROOF_ERROR = 1e-2
#: A lease of one plain step is made this many times as long, and its update divided by the same number. The rounding
#: of the weights is then negligible, so that the leader gets the gradient (``trainer.plain_step``). A power of two adds
#: no rounding, and gradients below 1e28 stay finite.
STEP_SCALE = 2.0**32


class OnnxTrainer:
    """One task's graphs, loaded and proven: trains leases and evaluates ranges against the model in shared memory."""

    def __init__(self, settings: TrainerSettings, shared: SharedVectors) -> None:
        began_s = time.monotonic()
        if not settings.graphs:
            raise Misuse("this device has no PyTorch, and the job has no graphs: submit it with --portable")
        self._settings = settings
        self._shared = shared
        self._graphs = Graphs.read(Path(settings.graphs))
        self._base = _base(settings.base) if settings.base else {}
        if settings.own_size != self._graphs.own.size:
            raise Misuse("the job's graphs have another own part of the model than its first model")
        self._own_parameters = settings.own.parameters_size if settings.own is not None else 0
        self._parameters = settings.layout.parameters_size
        graph = GraphRun(self._graphs.train, threads=settings.torch_threads, fixed=self._base)
        self._step = StepRun(graph, self._graphs.states)
        self._begin_optimiser()
        #: Made at its first use: a device may never evaluate.
        self._evaluation: GraphRun | None = None
        self._prove()
        self._train = training_set(settings)
        self._order = BatchOrder(settings, len(self._train))
        self._test = Examples(settings.test)
        self._rows = self._folder() if settings.is_local else None
        shared.own_after[:] = self._graphs.own
        self._load_s = time.monotonic() - began_s

    def loaded(self) -> TaskLoaded:
        threads = self._settings.torch_threads
        return TaskLoaded(
            train_examples=self._rows.look() if self._rows is not None else len(self._train),
            test_examples=len(self._test),
            seconds=self._load_s,
            engine=f"onnxruntime {onnxruntime.__version__}, {threads} thread{'' if threads == 1 else 's'}",
        )

    def open_shard(self, number: int, file: BinaryIO) -> None:
        self._train.open(number, file)

    def shut_shard(self, number: int) -> None:
        self._train.shut(number)

    def _folder(self) -> FolderExamples:
        """Return the device's own rows. Raises Misuse if it has no folder of them, or the job does not declare any."""
        settings, columns = self._settings, self._graphs.columns
        if not columns:
            raise Misuse("the job's graphs do not say what rows devices have: submit it again from a newer release")
        if not settings.local_folder:
            raise Misuse(f"this device has no folder of rows: join it with --data FOLDER, or set {LOCAL_VARIABLE}")
        return FolderExamples(settings.local_folder, columns, seen=settings.local_seen)

    def _begin_optimiser(self) -> None:
        self._step.begin(self._parameters + self._own_parameters)

    def _prove(self) -> None:
        """Take the one step whose result is known, from the job's first model. Raises Misuse if the result differs."""
        proof = self._graphs.proof
        first = self._first()
        examples = len(next(iter(proof.columns.values())))
        draws = draw_all(self._graphs.draws, examples, proof.seed)
        self._step.own = self._graphs.own if self._graphs.own.size else None
        after, loss = self._step.step(
            first, proof.columns, rate=proof.rate, weight_decay=proof.weight_decay, draws=draws
        )
        change = (after - first)[:: max(1, proof.stride)]
        if change.shape != proof.change.shape:
            raise Misuse("the job's graphs belong to another model")
        telling = np.isfinite(proof.change)
        length = float(np.linalg.norm(proof.change[telling]))
        error = float(np.linalg.norm((change - proof.change)[telling])) / max(length, 1e-30)
        if not (error <= PROOF_ERROR and abs(loss - proof.loss) <= PROOF_ERROR * (1 + abs(proof.loss))):
            raise Misuse(
                "this device does not get PyTorch's result for the job's known batch: its update differs by "
                f"{error:.2g} of its length, its loss is {loss:.6g} and not {proof.loss:.6g}. It cannot train this job"
            )
        self._begin_optimiser()

    def _first(self) -> np.ndarray[Any, Any]:
        with opened(Path(self._settings.initial)) as file:
            arrays, _ = tensors.read(file, mmap=True)
        first = np.empty(self._settings.layout.size, np.float32)
        for name, view in self._settings.layout.views(first).items():
            view[...] = arrays[name]
        return first

    def train(self, epoch: int, batches: list[int], *, rate: float = 0.0, version: int = 0) -> TrainResult:
        """Train these batches, in order, and leave what changed in the update region."""
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        seed, numbers = self._settings.seed, [self._order.indices(epoch, batch) for batch in batches]
        rows = ((self._train.take(each), mix(seed, epoch, batch)) for each, batch in zip(numbers, batches, strict=True))
        loss_sum = self._run(rows, batches=len(batches), rate=rate)
        return TrainResult(
            examples=sum(map(len, numbers)),
            loss_sum=loss_sum,
            finite=self._is_finite(loss_sum),
            seconds=time.monotonic() - began_s,
            cpu_s=time.process_time() - began_cpu_s,
        )

    def learn(self, epoch: int, lease: int, examples: int, *, rate: float = 0.0, version: int = 0) -> TrainResult:
        """Evaluate the new rows, then train on this many of this device's own rows."""
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        settings, own = self._settings, self._rows
        if own is None:
            raise Misuse("this job's examples are not the device's own")
        chosen = choose_rows(own, settings, epoch=epoch, lease=lease, examples=examples)
        if chosen is None:
            raise Misuse("this device has no rows of its own yet")
        seed = mix(settings.seed, _EVALUATION, epoch, lease)
        with without_values():
            fresh_metrics = merge_all([self._judged(own.take(span), self._shared.own, seed) for span in chosen.judged])
        labels = LabelCounts(settings, first_pass=chosen.first_pass)

        def taken() -> Iterable[tuple[Rows, int]]:
            for step, part in enumerate(chosen.parts):
                rows = own.take(part)
                labels.add(rows)
                yield rows, mix(settings.seed, epoch, lease, step)

        # Report the loss as if the lease had seen each row once.
        with without_values():
            loss_sum = self._run(taken(), batches=len(chosen.parts), rate=rate) / settings.passes
        return TrainResult(
            examples=chosen.examples,
            loss_sum=loss_sum,
            finite=self._is_finite(loss_sum),
            seconds=time.monotonic() - began_s,
            held=chosen.held,
            fresh=sum(map(len, chosen.judged)),
            fresh_metrics=fresh_metrics,
            # Not seeded: noise that anyone could reproduce would hide nothing.
            labels=labels.told(np.random.default_rng, most=chosen.examples),
            cpu_s=time.process_time() - began_cpu_s,
        )

    def _run(self, rows: Iterable[tuple[Rows, int]], *, batches: int, rate: float) -> float:
        """Take a step for each batch, which comes with its seed. Leave what changed in the update region, and the own
        part as it is then. Return the sum of losses over examples."""
        settings, graphs, shared = self._settings, self._graphs, self._shared
        if settings.inner_state == "fresh":
            self._begin_optimiser()
        rate = graphs.rate * (rate / settings.learning_rate if rate else 1.0)
        scale = STEP_SCALE if batches == 1 and not graphs.states else 1.0
        self._step.own = shared.own.copy() if shared.own.size else None
        vector, loss_sum = shared.model.copy(), 0.0
        for batch, seed in rows:
            draws = draw_all(graphs.draws, _count(batch), seed)
            decay = graphs.weight_decay
            vector, loss = self._step.step(vector, batch, rate=rate * scale, weight_decay=decay, draws=draws)
            loss_sum += loss * _count(batch)
        np.subtract(vector, shared.model, out=shared.update)
        # Buffers, which come last, do not depend on the rate.
        shared.update[: self._parameters] /= np.float32(scale)
        if self._step.own is not None:
            change = self._step.own - shared.own
            change[: self._own_parameters] /= np.float32(scale)
            np.add(shared.own, change, out=shared.own_after)
        return loss_sum

    def _is_finite(self, loss_sum: float) -> bool:
        shared = self._shared
        parts = (shared.update, shared.own_after)
        return math.isfinite(loss_sum) and all(bool(np.isfinite(part).all()) for part in parts)

    def evaluate(self, start: int, stop: int) -> EvalResult:
        """Evaluate held-out examples ``start`` to ``stop`` (not included)."""
        began_s = time.monotonic()
        if not 0 <= start < stop <= len(self._test):
            raise Misuse(f"there are {len(self._test)} held-out examples; {start} to {stop} is not a range of them")
        size, seed = self._settings.batch_size, self._settings.seed
        # With the first own part, so that all devices agree.
        parts = [
            self._judged(self._test.slice(low, min(low + size, stop)), self._graphs.own, mix(seed, _EVALUATION, low))
            for low in range(start, stop, size)
        ]
        return EvalResult(examples=stop - start, metrics=merge_all(parts), seconds=time.monotonic() - began_s)

    def _judged(self, rows: Rows, own: np.ndarray[Any, Any], seed: int) -> tuple[MetricSum, ...]:
        if self._evaluation is None:
            threads = self._settings.torch_threads
            self._evaluation = GraphRun(self._graphs.evaluate, threads=threads, fixed=self._base)
        draws = draw_all(self._graphs.evaluation_draws, _count(rows), seed)
        given = {"vector": self._shared.model, "own": own, **columns_of(rows), **draws}
        return metric_sums(self._graphs.metrics, sums_of(self._evaluation.run(given)))


def _count(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def _base(paths: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Map the frozen base. Return its tensors by their names in graphs; those that no graph reads cost no memory."""
    # Imported here: few jobs have a base, and this also imports what writes files.
    from shoal.trainer.whole_file import TYPES_NOTE

    found: dict[str, np.ndarray[Any, Any]] = {}
    for path in paths:
        with opened(Path(path)) as file:
            arrays, notes = tensors.read(file, mmap=True)
        if json.loads(notes.get(TYPES_NOTE, "{}")):
            raise Misuse("the job's frozen base is of a type that no graph takes")
        found |= {f"base.{name}": array for name, array in arrays.items()}
    return found
