"""Training and evaluation of batches with torch, in this process. Knows no pipe, no process, no peer.

Plain SGD and nothing else: the leader keeps the momentum, so that a worker has no state that dies with it (EDDL §4.4)
and the update of a lease is a function of the model, the seed, the epoch and the batch numbers alone.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from shoal.data.local import LOCAL_VARIABLE
from shoal.errors import Misuse
from shoal.learning.similarity import capped_counts, noisy_counts
from shoal.scheduling.batches import mix
from shoal.task import Task
from shoal.trainer.flat import layout_of, read_into, write_from
from shoal.trainer.importer import make_task
from shoal.trainer.local_examples import LocalExamples
from shoal.trainer.order import BatchOrder, training_set
from shoal.trainer.protocol import EvalResult, TaskLoaded, TrainerSettings, TrainResult
from shoal.trainer.shards import Array, Examples, as_pair, labels_of
from shoal.trainer.shared import SharedVectors
from shoal.wire.limits import LABELS_MAX


def seeded(*numbers: int) -> None:
    """Seed torch's and numpy's global generators, so that dropout and augmentation replay on any device."""
    seed = mix(*numbers)
    torch.manual_seed(seed >> 1)
    np.random.seed(seed & 0xFFFFFFFF)


def build_model(task: Task, seed: int) -> nn.Module:
    """The model every device starts from: same seed, same weights."""
    seeded(seed)
    model = task.model()
    if not isinstance(model, nn.Module):
        raise Misuse(f"{type(task).__name__}.model() returned {type(model).__name__}, not a torch module")
    return model


def _optimiser_of(settings: TrainerSettings, model: nn.Module) -> torch.optim.SGD:
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise Misuse("the model has no parameter that can be trained")
    return torch.optim.SGD(trainable, lr=settings.learning_rate, weight_decay=settings.weight_decay)


def loss_of(task: Task, output: Any, y: Tensor) -> Tensor:
    """The mean loss of a batch, as the task has it."""
    loss = task.loss(output, y)
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise Misuse(f"{type(task).__name__}.loss gave {shape}; it must give one number, the batch's mean")
    return loss


def correct_of(task: Task, output: Any, y: Tensor) -> int:
    """How many of a batch are right, as the task has it."""
    correct = int(task.correct(output, y))
    if not 0 <= correct <= len(y):
        raise Misuse(f"{type(task).__name__}.correct gave {correct} of {len(y)} examples; it must count examples")
    return correct


class TorchTrainer:
    """One task, loaded: trains leases and evaluates ranges against the model in shared memory."""

    def __init__(self, settings: TrainerSettings, shared: SharedVectors) -> None:
        began_s = time.monotonic()
        self._settings = settings
        self._shared = shared
        self._task = make_task(Path(settings.bundle_dir), settings.entry, settings.arguments)
        self._model = build_model(self._task, settings.seed)
        self._layout = layout_of(self._model)
        if self._layout != settings.layout:
            difference = self._layout.difference(settings.layout)
            raise Misuse(f"this device builds another model than the job's: {difference}; do its versions differ?")
        self._optimiser = _optimiser_of(settings, self._model)
        if settings.local_folder:
            os.environ[LOCAL_VARIABLE] = settings.local_folder
        self._train = training_set(settings)
        self._batches = BatchOrder(settings, len(self._train))
        self._local = LocalExamples(self._task, seen=settings.local_seen) if settings.is_local else None
        self._test = Examples(settings.test)
        self._load_s = time.monotonic() - began_s

    def loaded(self) -> TaskLoaded:
        return TaskLoaded(
            train_examples=self._local.look() if self._local is not None else len(self._train),
            test_examples=len(self._test),
            seconds=self._load_s,
            engine=f"torch {torch.__version__}",
        )

    def open_shard(self, number: int, file: BinaryIO) -> None:
        self._train.open(number, file)

    def shut_shard(self, number: int) -> None:
        self._train.shut(number)

    def train(self, epoch: int, batches: list[int]) -> TrainResult:
        """Take one SGD step a batch, in order, and leave what changed in the update region."""
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        write_from(self._shared.model, self._model, self._layout)
        self._model.train()
        examples, loss_sum = 0, 0.0
        for batch in batches:
            indices = self._batches.indices(epoch, batch)
            loss = self._step(as_pair(self._train.take(indices)), (epoch, batch))
            examples += len(indices)
            loss_sum += loss * len(indices)
        return TrainResult(
            examples=examples,
            loss_sum=loss_sum,
            finite=self._leave_update(loss_sum),
            seconds=time.monotonic() - began_s,
            cpu_s=time.process_time() - began_cpu_s,
        )

    def learn(self, epoch: int, lease: int, examples: int) -> TrainResult:
        """Judge what is new here, then train on so many of this device's own examples."""
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        local, settings = self._local, self._settings
        if local is None:
            raise Misuse("this job's examples are not the device's own")
        held = local.look()
        if not held:
            raise Misuse(f"{type(self._task).__name__}.examples('train') holds no examples on this device yet")
        write_from(self._shared.model, self._model, self._layout)
        fresh = local.fresh()
        judged = fresh[::-1][:examples]
        fresh_loss_sum, fresh_correct = self._judge(as_pair(local.take(judged))) if len(judged) else (0.0, 0)
        self._model.train()
        chosen = local.chosen(examples, fresh, seed=settings.seed, epoch=epoch, lease=lease)
        counts, loss_sum = np.zeros(0, np.int64), 0.0
        for step, start in enumerate(range(0, len(chosen), settings.batch_size)):
            rows = local.take(chosen[start : start + settings.batch_size])
            x, y = as_pair(rows)
            loss_sum += self._step((x, y), (epoch, lease, step)) * len(y)
            counts = _added(counts, labels_of(rows)) if settings.share_labels else counts
        if settings.labels_epsilon and counts.size:
            # Not seeded: noise that anyone could make again would hide nothing.
            generator = np.random.default_rng()
            counts = noisy_counts(counts, epsilon=settings.labels_epsilon, generator=generator)
            counts = capped_counts(counts, most=len(chosen))
        return TrainResult(
            examples=len(chosen),
            loss_sum=loss_sum,
            finite=self._leave_update(loss_sum),
            seconds=time.monotonic() - began_s,
            held=held,
            fresh=len(judged),
            fresh_correct=fresh_correct,
            fresh_loss_sum=fresh_loss_sum,
            labels=tuple(max(0, round(float(count))) for count in counts),
            cpu_s=time.process_time() - began_cpu_s,
        )

    def _leave_update(self, loss_sum: float) -> bool:
        """What changed goes to the update region. False: there are values that are no numbers."""
        update = self._shared.update
        read_into(update, self._model, self._layout)
        np.subtract(update, self._shared.model, out=update)
        return math.isfinite(loss_sum) and bool(np.isfinite(update).all())

    def _judge(self, examples: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> tuple[float, int]:
        """The sum of losses, and how many are right."""
        x, y = examples
        self._model.eval()
        loss_sum, correct, size = 0.0, 0, self._settings.batch_size
        with torch.no_grad():
            for start in range(0, len(y), size):
                inputs, labels = self._inputs(x[start : start + size], y[start : start + size])
                output = self._model(inputs)
                loss_sum += loss_of(self._task, output, labels).item() * len(labels)
                correct += correct_of(self._task, output, labels)
        return loss_sum, correct

    def evaluate(self, start: int, stop: int) -> EvalResult:
        """Judge held-out examples ``start`` to ``stop`` (not included)."""
        began_s = time.monotonic()
        if not 0 <= start < stop <= len(self._test):
            raise Misuse(f"there are {len(self._test)} held-out examples; {start} to {stop} is not a range of them")
        write_from(self._shared.model, self._model, self._layout)
        loss_sum, correct = 0.0, 0
        for low in range(start, stop, self._settings.batch_size):
            high = min(low + self._settings.batch_size, stop)
            loss, right = self._judge(as_pair(self._test.slice(low, high)))
            loss_sum += loss
            correct += right
        seconds = time.monotonic() - began_s
        return EvalResult(examples=stop - start, loss_sum=loss_sum, correct=correct, seconds=seconds)

    def _step(self, examples: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], at: tuple[int, ...]) -> float:
        """One step of SGD, and its loss."""
        seeded(self._settings.seed, *at)
        x, y = self._inputs(*examples)
        self._optimiser.zero_grad()
        loss = loss_of(self._task, self._model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        return loss.item()

    def _inputs(self, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[Any, Tensor]:
        return self._task.batch(torch.from_numpy(x), torch.from_numpy(y))


def _added(counts: Array, y: Array | None) -> Array:
    """Counts of labels, and those of some more examples. What is no class has none."""
    if y is None or not len(y) or not 0 <= y.min() <= y.max() < LABELS_MAX:
        return counts
    more = np.bincount(y.astype(np.int64), minlength=counts.size)
    more[: counts.size] += counts
    return more
