"""Training and evaluation of batches by captured graphs, in this process. Imports onnxruntime, and no torch.

Makes the same promise as ``trainer.steps``: the update of a lease depends only on the model, the seed, the epoch, the
batch numbers and the rate, unless the plan keeps the optimiser's state.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnxruntime

from shoal.errors import Misuse
from shoal.learning.metrics import MetricSum, merge_all
from shoal.scheduling.batches import mix
from shoal.trainer.launch import opened
from shoal.trainer.order import BatchOrder, training_set
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
        if settings.is_local or settings.own is not None:
            raise Misuse("a device without PyTorch trains only on shared examples")
        self._settings = settings
        self._shared = shared
        self._graphs = Graphs.read(Path(settings.graphs))
        self._base = _base(settings.base) if settings.base else {}
        self._parameters = settings.layout.parameters_size
        graph = GraphRun(self._graphs.train, threads=settings.torch_threads, fixed=self._base)
        self._step = StepRun(graph, self._graphs.states)
        self._step.begin(self._parameters)
        #: Made at its first use: a device may never evaluate.
        self._evaluation: GraphRun | None = None
        self._prove()
        self._train = training_set(settings)
        self._order = BatchOrder(settings, len(self._train))
        self._test = Examples(settings.test)
        self._load_s = time.monotonic() - began_s

    def loaded(self) -> TaskLoaded:
        threads = self._settings.torch_threads
        return TaskLoaded(
            train_examples=len(self._train),
            test_examples=len(self._test),
            seconds=self._load_s,
            engine=f"onnxruntime {onnxruntime.__version__}, {threads} thread{'' if threads == 1 else 's'}",
        )

    def open_shard(self, number: int, file: BinaryIO) -> None:
        self._train.open(number, file)

    def shut_shard(self, number: int) -> None:
        self._train.shut(number)

    def _prove(self) -> None:
        """Take the one step whose result is known, from the job's first model. Raises Misuse if the result differs."""
        proof = self._graphs.proof
        first = self._first()
        examples = len(next(iter(proof.columns.values())))
        draws = draw_all(self._graphs.draws, examples, proof.seed)
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
        self._step.begin(self._parameters)

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
        settings, graphs = self._settings, self._graphs
        if settings.inner_state == "fresh":
            self._step.begin(self._parameters)
        rate = graphs.rate * (rate / settings.learning_rate if rate else 1.0)
        scale = STEP_SCALE if len(batches) == 1 and not graphs.states else 1.0
        vector, loss_sum, examples = self._shared.model.copy(), 0.0, 0
        for batch in batches:
            rows = self._train.take(self._order.indices(epoch, batch))
            count = _count(rows)
            draws = draw_all(graphs.draws, count, mix(settings.seed, epoch, batch))
            decay = graphs.weight_decay
            vector, loss = self._step.step(vector, rows, rate=rate * scale, weight_decay=decay, draws=draws)
            loss_sum, examples = loss_sum + loss * count, examples + count
        np.subtract(vector, self._shared.model, out=self._shared.update)
        # Buffers, which come last, do not depend on the rate.
        self._shared.update[: self._parameters] /= np.float32(scale)
        return TrainResult(
            examples=examples,
            loss_sum=loss_sum,
            finite=math.isfinite(loss_sum) and bool(np.isfinite(self._shared.update).all()),
            seconds=time.monotonic() - began_s,
            cpu_s=time.process_time() - began_cpu_s,
        )

    def evaluate(self, start: int, stop: int) -> EvalResult:
        """Evaluate held-out examples ``start`` to ``stop`` (not included)."""
        began_s = time.monotonic()
        if not 0 <= start < stop <= len(self._test):
            raise Misuse(f"there are {len(self._test)} held-out examples; {start} to {stop} is not a range of them")
        if self._evaluation is None:
            threads = self._settings.torch_threads
            self._evaluation = GraphRun(self._graphs.evaluate, threads=threads, fixed=self._base)
        size = self._settings.batch_size
        parts = [self._judged(low, min(low + size, stop)) for low in range(start, stop, size)]
        return EvalResult(examples=stop - start, metrics=merge_all(parts), seconds=time.monotonic() - began_s)

    def _judged(self, low: int, high: int) -> tuple[MetricSum, ...]:
        assert self._evaluation is not None
        draws = draw_all(self._graphs.evaluation_draws, high - low, mix(self._settings.seed, _EVALUATION, low))
        given = {"vector": self._shared.model, **columns_of(self._test.slice(low, high)), **draws}
        return metric_sums(self._graphs.metrics, sums_of(self._evaluation.run(given)))


def _count(rows: Any) -> int:
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
