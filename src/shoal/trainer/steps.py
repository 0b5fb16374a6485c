"""Training and evaluation of batches with torch, in this process.

The update of a lease depends only on the model, the seed, the epoch, the batch numbers and the rate, unless the plan
keeps the state of the inner optimiser. The leader keeps the momentum, so that no state is lost with a worker (EDDL
§4.4).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import nn

from shoal.data.local import LOCAL_VARIABLE, PART_VARIABLE
from shoal.errors import Misuse
from shoal.learning.metrics import MetricSum, merge_all
from shoal.scheduling.batches import mix
from shoal.task import Task
from shoal.trainer.arrays import rows_to_torch
from shoal.trainer.base import load_base
from shoal.trainer.device import choose, move
from shoal.trainer.device_side import DeviceSide
from shoal.trainer.flat import read_into, write_from
from shoal.trainer.frozen_build import NotOnMeta, build_on_meta
from shoal.trainer.frozen_guard import FrozenGuard
from shoal.trainer.importer import make_task
from shoal.trainer.judging import loss_of, metrics_of
from shoal.trainer.lease import TaskLease
from shoal.trainer.local_examples import examples_here
from shoal.trainer.local_lease import DeviceLease, DeviceResult, OpenLease
from shoal.trainer.optimisers import InnerOptimiser
from shoal.trainer.order import BatchOrder, training_set
from shoal.trainer.own_examples import FolderExamples, OwnExamples
from shoal.trainer.own_lease import LabelCounts, choose_rows, without_values
from shoal.trainer.placement import Placed, place, placed_again, to_training
from shoal.trainer.plain_step import leave_change, take_step
from shoal.trainer.protocol import EvalResult, TaskLoaded, TrainerSettings, TrainResult
from shoal.trainer.shards import Examples
from shoal.trainer.shared import SharedVectors
from shoal.trainer.stacked import ModelStack

#: Leases that are trained both ways to learn whether a stack is worth it, at most and at least.
TRIED, TRIED_LEAST = 8, 4

#: The seed of evaluation: with separate generators, the same model and range give the same results on any device.
_EVALUATION = 0x6576616C


def seeded(*numbers: int) -> None:
    """Seed torch's and numpy's global generators, so that dropout and augmentation replay on any device."""
    seed = mix(*numbers)
    if _has_accelerator():
        torch.manual_seed(seed >> 1)
    else:
        # torch.manual_seed notes a stack for each kind of device that may come to life: most of a small step's time.
        torch.default_generator.manual_seed(seed >> 1)
    np.random.seed(seed & 0xFFFFFFFF)


@functools.cache
def _has_accelerator() -> bool:
    kinds = (torch.cuda, torch.backends.mps, getattr(torch, "xpu", None), getattr(torch, "mtia", None))
    return any(kind is not None and kind.is_available() for kind in kinds)


def build_model(task: Task, seed: int) -> nn.Module:
    """Build the model that every device starts from: the same seed gives the same weights."""
    seeded(seed)
    return _model_of(task)


def _model_of(task: Task) -> nn.Module:
    model = task.model()
    if not isinstance(model, nn.Module):
        raise Misuse(f"{type(task).__name__}.model() returned {type(model).__name__}, not a torch module")
    return model


def _built(task: Task, settings: TrainerSettings) -> tuple[nn.Module, Placed]:
    """Build the model and place its tensors. If the job has a frozen base, none of it is built in memory."""
    if settings.base:
        try:
            seeded(settings.seed)
            return build_on_meta(task, lambda: _model_of(task))
        except NotOnMeta as reason:
            print(f"the frozen base is built in memory before it is mapped: {reason}", file=sys.stderr, flush=True)
    model = build_model(task, settings.seed)
    return model, place(task, model)


class TorchTrainer:
    """One task, loaded: trains leases and evaluates ranges against the model in shared memory."""

    def __init__(self, settings: TrainerSettings, shared: SharedVectors) -> None:
        began_s = time.monotonic()
        self._settings = settings
        self._shared = shared
        self._device = choose(settings.device)
        self._task = make_task(Path(settings.bundle_dir), settings.entry, settings.arguments)
        self._model, self._placed = _built(self._task, settings)
        self._layout = self._placed.layout
        if self._layout != settings.layout:
            difference = self._layout.difference(settings.layout)
            raise Misuse(f"this device builds another model than the job's: {difference}; do its versions differ?")
        if self._placed.own_layout != settings.own:
            raise Misuse("this device builds another own part of the model than the job's; do its versions differ?")
        load_base(self._placed.frozen, settings.base)
        self._model.to(self._device)
        self._placed = placed_again(self._placed, self._model)
        self._guard = FrozenGuard(self._model, self._placed.frozen)
        self._tensors = {name: tensor for name, (tensor, _) in self._placed.shared.items()}
        self._own = {name: tensor for name, (tensor, _) in self._placed.own.items()}
        self._keep_own()
        #: The first model's own part. Held-out examples are evaluated with it, so that all devices agree.
        self._own_first = shared.own_after.copy()
        trainable = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._trainable = trainable
        own = examples_here(self._task, settings) if settings.is_local else None
        self._side = DeviceSide(own, InnerOptimiser(self._task, self._model, trainable, settings))
        #: Called instead of the model.
        self._forward: nn.Module = torch.compile(self._model) if settings.compile else self._model  # type: ignore[assignment]
        #: Whether the model holds rounded values, because some are not float32. An update is the change from these.
        self._is_rounded = any(tensor.dtype != torch.float32 for tensor in self._tensors.values())
        self._before = np.empty(self._layout.size if self._is_rounded else 0, np.float32)
        #: Tensors whose part of the update region already has the one step of the lease (``plain_step``).
        self._stepped: frozenset[str] = frozenset()
        if settings.local_folder:
            os.environ[LOCAL_VARIABLE] = settings.local_folder
        if settings.local_part:
            os.environ[PART_VARIABLE] = settings.local_part
        #: How leases of several devices are trained at once, or None if they are not.
        self._stack = ModelStack.of(self._task, self._model, settings) if self._is_stackable() else None
        #: Sizes of a lease's batches -> whether a stack of such leases gives the same bits in less time.
        self._is_stack_good: dict[tuple[int, ...], bool] = {}
        #: The number of rows of each batch -> the version in which such a lease was last trained by itself as well.
        self._checked: dict[tuple[int, ...], int] = {}
        self._train = training_set(settings)
        self._order = BatchOrder(settings, len(self._train))
        self._test = Examples(settings.test)
        self._load_s = time.monotonic() - began_s

    def _is_stackable(self) -> bool:
        """Whether all that the model has is trained here and shared, in float32."""
        names = {name for name, _ in self._model.named_parameters()}
        is_whole = not self._placed.frozen and self._placed.own_layout is None and names == set(self._tensors)
        return is_whole and not self._is_rounded and self._device.type == "cpu"

    def loaded(self) -> TaskLoaded:
        return TaskLoaded(
            train_examples=self._side.examples.look() if self._side.examples is not None else len(self._train),
            test_examples=len(self._test),
            seconds=self._load_s,
            engine=f"torch {torch.__version__} on {self._device}, {_threads(self._settings.torch_threads)}",
        )

    def side_of(self, examples: OwnExamples, *, noise: Callable[[], np.random.Generator]) -> DeviceSide:
        """Return the side of another device, as it is when its trainer has just started."""
        optimiser = self._side.optimiser
        if self._settings.inner_state == "kept":
            optimiser = InnerOptimiser(self._task, self._model, self._trainable, self._settings)
        return DeviceSide(examples, optimiser, noise)

    def serve(self, side: DeviceSide) -> None:
        """Train for this device from now on."""
        self._side = side

    def open_shard(self, number: int, file: BinaryIO) -> None:
        self._train.open(number, file)

    def shut_shard(self, number: int) -> None:
        self._train.shut(number)

    # Training ------------------------------------------------------------------------------------------------

    def train(self, epoch: int, batches: list[int], *, rate: float = 0.0, version: int = 0) -> TrainResult:
        """Train these batches, in order, and leave what changed in the update region."""
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        lease = self._begin(epoch, rate, version)
        chosen = [self._order.indices(epoch, batch) for batch in batches]
        rows = ((self._train.take(indices), (epoch, batch)) for indices, batch in zip(chosen, batches, strict=True))
        loss_sum = self._run(rows, [len(indices) for indices in chosen], lease)
        return TrainResult(
            examples=sum(len(indices) for indices in chosen),
            loss_sum=loss_sum,
            finite=self._leave_update(loss_sum),
            seconds=time.monotonic() - began_s,
            cpu_s=time.process_time() - began_cpu_s,
            logged=lease.logged.others(),
        )

    def learn(self, epoch: int, lease: int, examples: int, *, rate: float = 0.0, version: int = 0) -> TrainResult:
        """Evaluate the new examples, then train on this many of this device's own examples."""
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        told = self._begin(epoch, rate, version)
        is_folder = isinstance(self._side.examples, FolderExamples)
        with without_values() if is_folder else contextlib.nullcontext():
            result = self._learn(self._opened(told, lease, examples), told)
        return dataclasses.replace(result, seconds=time.monotonic() - began_s, cpu_s=time.process_time() - began_cpu_s)

    @property
    def can_stack(self) -> bool:
        """Whether leases of several devices may be trained at once."""
        return self._stack is not None

    def learn_together(self, leases: Sequence[DeviceLease], *, rate: float, version: int) -> list[DeviceResult]:
        """Train several devices' leases of one version, in stacks where that gives the same bits in less time. Only if
        ``can_stack``."""
        stack = self._stack
        assert stack is not None
        told, opened = self._begin(0, rate, version), []
        for each in leases:
            self.serve(each.side)
            opened.append(self._opened(told, each.lease, each.examples, epoch=each.epoch))
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, lease in enumerate(opened):
            groups.setdefault(lease.sizes, []).append(number)
        found: dict[int, DeviceResult] = {}
        for numbers in groups.values():
            together = [opened[number] for number in numbers]
            results = self._stacked_or_none(stack, together, told)
            found |= dict(zip(numbers, results or self._singly(together, told), strict=True))
        return [found[number] for number in range(len(opened))]

    def _stacked_or_none(
        self, stack: ModelStack, leases: Sequence[OpenLease], told: TaskLease
    ) -> list[DeviceResult] | None:
        """Train leases of one shape in stacks. Return None if that gains nothing or changes a bit.

        The first lease of each shape in a version is trained by itself as well. If its bits differ, such leases are
        not stacked again.
        """
        if not self._gains(leases):
            return None
        try:
            results = self._in_stacks(stack, leases, told)
        except (RuntimeError, TypeError, ValueError):
            # The batches of these leases cannot be stacked.
            self._is_stack_good[leases[0].sizes] = False
            return None
        sizes = leases[0].sizes
        if self._checked.get(sizes) != told.version:
            self._checked[sizes] = told.version
            if not _same(results[:1], self._singly(leases[:1], told)):
                self._is_stack_good[sizes] = False
                return None
        return results

    def _gains(self, leases: Sequence[OpenLease]) -> bool:
        """Whether a stack of such leases is the same and faster. The first leases of each shape are tried both ways, as
        soon as there are enough."""
        sizes = leases[0].sizes
        if len(sizes) < 2:
            # The change of a single step is left without rounding (``plain_step``).
            return False
        if sizes not in self._is_stack_good and len(leases) < TRIED_LEAST:
            return False
        if sizes not in self._is_stack_good:
            assert self._stack is not None
            told, some, began_cpu_s = leases[0].told, leases[:TRIED], time.process_time()
            single = self._singly(some, told)
            between_cpu_s = time.process_time()
            self._is_stack_good[sizes] = False
            try:
                stacked = self._in_stacks(self._stack, some, told)
            except (RuntimeError, TypeError, ValueError):
                return False
            is_faster = time.process_time() - between_cpu_s < between_cpu_s - began_cpu_s
            self._is_stack_good[sizes] = is_faster and _same(single, stacked)
        return self._is_stack_good[sizes]

    def _singly(self, leases: Sequence[OpenLease], told: TaskLease) -> list[DeviceResult]:
        found = []
        for each in leases:
            self.serve(each.side)
            own = self._begin(each.epoch, told.rate, told.version)
            found.append(DeviceResult(self._learn(each, own), self._shared.update.copy()))
        return found

    def _in_stacks(self, stack: ModelStack, leases: Sequence[OpenLease], told: TaskLease) -> list[DeviceResult]:
        groups = stack.groups(leases, self._layout, max(leases[0].sizes))
        return [result for group in groups for result in self._stacked(stack, group, told)]

    def _stacked(self, stack: ModelStack, leases: Sequence[OpenLease], told: TaskLease) -> list[DeviceResult]:
        """Train leases with batches of the same sizes."""
        self._begin(0, told.rate, told.version)
        to_training(self._model, self._placed)
        batches = [self._batches(each.rows()) for each in leases]
        after, losses = stack.train(self._tensors, batches, rate=told.rate)
        updates = np.empty((len(leases), self._layout.size), np.float32)
        for entry in self._layout.entries:
            part = slice(entry.offset, entry.stop)
            values = after[entry.name].reshape(len(leases), -1).numpy()
            np.subtract(values, self._shared.model[part], out=updates[:, part])
        results = []
        for each, update, told_losses in zip(leases, updates, losses, strict=True):
            loss_sum = sum(loss * len(part) for loss, part in zip(told_losses, each.parts, strict=True))
            loss_sum /= self._settings.passes
            is_finite = math.isfinite(loss_sum) and bool(np.isfinite(update).all())
            results.append(DeviceResult(each.result(loss_sum, finite=is_finite), update))
        return results

    def _opened(self, told: TaskLease, lease: int, examples: int, *, epoch: int | None = None) -> OpenLease:
        """Evaluate the new examples of the device, and choose those that a lease trains on."""
        local, settings = self._side.examples, self._settings
        if local is None:
            raise Misuse("this job's examples are not the device's own")
        at = (told.epoch if epoch is None else epoch, lease)
        chosen = choose_rows(local, settings, epoch=at[0], lease=lease, examples=examples)
        if chosen is None:
            raise Misuse(f"{type(self._task).__name__} has no examples on this device yet")
        fresh_metrics = self._judge(((local.take(span), len(span), at) for span in chosen.judged), told)
        return OpenLease(
            side=self._side,
            told=told,
            epoch=at[0],
            lease=lease,
            held=chosen.held,
            judged=sum(map(len, chosen.judged)),
            fresh_metrics=fresh_metrics,
            examples=chosen.examples,
            parts=chosen.parts,
            first_pass=chosen.first_pass,
        )

    def _learn(self, opened: OpenLease, told: TaskLease) -> TrainResult:
        """Train an opened lease."""
        settings, counts = self._settings, LabelCounts(self._settings, first_pass=opened.first_pass)

        def taken() -> Iterator[tuple[Any, tuple[int, ...]]]:
            for rows, at in opened.rows():
                counts.add(rows)
                yield rows, at

        # Report the loss as if the lease had seen each example once.
        loss_sum = self._run(taken(), [len(part) for part in opened.parts], told) / settings.passes
        labels = counts.told(self._side.noise, most=opened.examples)
        finite = self._leave_update(loss_sum)
        return opened.result(loss_sum, finite=finite, labels=labels, logged=told.logged.others())

    def _begin(self, epoch: int, rate: float, version: int) -> TaskLease:
        """Load the version, and return the lease as the task's code sees it."""
        write_from(self._shared.model, self._tensors, self._layout)
        self._give_own(self._shared.own)
        return TaskLease(
            version=version,
            epoch=epoch,
            rate=rate or self._settings.learning_rate,
            device=self._device,
            half=torch.bfloat16 if self._settings.precision == "bfloat16" else None,
            values=self._layout.views(self._shared.model),
        )

    def _run(self, rows: Iterator[tuple[Any, tuple[int, ...]]], counts: list[int], lease: TaskLease) -> float:
        """Train a lease by the task's own loop or the default one. Return the sum of losses over examples."""
        to_training(self._model, self._placed)
        self._stepped = frozenset()
        if self._is_rounded:
            read_into(self._before, self._tensors, self._layout)
        batches = self._batches(rows)
        if not self._task._overrides("train"):
            return self._steps(batches, counts, lease)
        taken = 0

        def counted() -> Iterator[Any]:
            nonlocal taken
            for batch in batches:
                taken += 1
                yield batch

        self._task.train(self._forward, counted(), lease)
        if taken != len(counts):
            name = type(self._task).__name__
            raise Misuse(
                f"{name}.train took {taken} of the lease's {len(counts)} batches; it must train on all of them"
            )
        return (lease.loss or 0.0) * sum(counts)

    def _batches(self, rows: Iterator[tuple[Any, tuple[int, ...]]]) -> Iterator[Any]:
        for taken, at in rows:
            seeded(self._settings.seed, *at)
            yield self._collated(taken, training=True)

    def _steps(self, batches: Iterator[Any], counts: list[int], lease: TaskLease) -> float:
        """Run the default loop: forward, backward, and a step after every window of ``accumulate`` batches."""
        settings, optimiser = self._settings, self._side.optimiser.for_lease(lease.rate)
        loss_sum, last = 0.0, len(counts) - 1
        shares = window_shares(counts, settings.accumulate)
        optimiser.zero_grad()
        for number, (batch, count, share) in enumerate(zip(batches, counts, shares, strict=True)):
            with lease.autocast():
                loss = loss_of(self._task, self._forward, batch, lease)
            (loss * share if share != 1.0 else loss).backward()  # type: ignore[no-untyped-call]
            if (number + 1) % settings.accumulate == 0 or number == last:
                if settings.clip_gradient:
                    nn.utils.clip_grad_norm_(self._trainable, settings.clip_gradient)
                if last < settings.accumulate:
                    self._stepped = take_step(self._shared.update, self._tensors, self._layout, optimiser)
                else:
                    optimiser.step()
                optimiser.zero_grad()
            loss_sum += loss.item() * count
        return loss_sum

    def _leave_update(self, loss_sum: float) -> bool:
        """Write the change to the update region. Return False if the loss or the update is not finite."""
        self._guard.check(type(self._task).__name__)
        update, before = self._shared.update, self._before if self._is_rounded else self._shared.model
        if self._stepped:
            leave_change(update, before, self._tensors, self._layout, stepped=self._stepped)
        else:
            read_into(update, self._tensors, self._layout)
            np.subtract(update, before, out=update)
        self._keep_own()
        own = self._shared.own_after
        return math.isfinite(loss_sum) and bool(np.isfinite(update).all()) and bool(np.isfinite(own).all())

    def _give_own(self, values: np.ndarray[Any, Any]) -> None:
        if self._placed.own_layout is not None:
            write_from(values, self._own, self._placed.own_layout)

    def _keep_own(self) -> None:
        if self._placed.own_layout is not None:
            read_into(self._shared.own_after, self._own, self._placed.own_layout)

    # Evaluation ----------------------------------------------------------------------------------------------

    def evaluate(self, start: int, stop: int) -> EvalResult:
        """Evaluate held-out examples ``start`` to ``stop`` (not included)."""
        began_s = time.monotonic()
        if not 0 <= start < stop <= len(self._test):
            raise Misuse(f"there are {len(self._test)} held-out examples; {start} to {stop} is not a range of them")
        lease = self._begin(0, 0.0, 0)
        self._give_own(self._own_first)
        size = self._settings.batch_size
        spans = [(low, min(low + size, stop)) for low in range(start, stop, size)]
        metrics = self._judge(((self._test.slice(low, high), high - low, (low,)) for low, high in spans), lease)
        self._guard.check(type(self._task).__name__)
        return EvalResult(examples=stop - start, metrics=metrics, seconds=time.monotonic() - began_s)

    def _judge(self, parts: Iterator[tuple[Any, int, tuple[int, ...]]], lease: TaskLease) -> tuple[MetricSum, ...]:
        """Return named sums over parts of a set. Each part is its rows, their number, and its seeds."""
        self._model.eval()
        sums: list[tuple[MetricSum, ...]] = []
        with torch.no_grad():
            for rows, count, at in parts:
                seeded(self._settings.seed, _EVALUATION, *at)
                batch = self._collated(rows, training=False)
                with lease.autocast():
                    sums.append(metrics_of(self._task, self._forward, batch, lease, examples=count))
        return merge_all(sums)

    def _collated(self, rows: Any, *, training: bool) -> Any:
        return move(self._task.collate(rows_to_torch(rows), training=training), self._device)


def window_shares(counts: Sequence[int], accumulate: int) -> list[float]:
    """Return each batch's share in the mean over its window's examples. The last window may have fewer batches."""
    windows = [counts[start : start + accumulate] for start in range(0, len(counts), accumulate)]
    return [count / sum(window) for window in windows for count in window]


def _threads(count: int) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"


def _same(ones: Sequence[DeviceResult], others: Sequence[DeviceResult]) -> bool:
    """Whether two ways of training gave the same bits."""
    return all(
        one.update.tobytes() == other.update.tobytes() and one.result.loss_sum == other.result.loss_sum
        for one, other in zip(ones, others, strict=True)
    )
