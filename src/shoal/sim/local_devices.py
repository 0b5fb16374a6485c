"""Simulated devices that each train on examples of their own: those of this machine, divided among them.

The deployed trainer trains for one device after the other, and each has its rows, its own part of the model and, if the
plan keeps it, the state of its optimiser. What a task keeps elsewhere is the same for all devices: attributes of its
object, and buffers that no update carries, such as BatchNorm's count of batches.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.data.entries import LABELS
from shoal.data.partition import Partition, hash_of
from shoal.errors import Misuse, ShoalError
from shoal.roles.actions import Train
from shoal.scheduling.batches import Indices, mix
from shoal.sim.jobs import LearningResult, TrainingResult
from shoal.sim.torch_training import NOT_FINITE, TorchTraining
from shoal.trainer.columns import labels_of
from shoal.trainer.importer import is_script
from shoal.trainer.package import ReadyTask
from shoal.trainer.protocol import TrainerError
from shoal.trainer.shards import NO_EXAMPLES, Examples
from shoal.wire.messages import JobSpec

if TYPE_CHECKING:
    from shoal.trainer.device_side import DeviceSide
    from shoal.trainer.local_lease import DeviceLease, DeviceResult


@dataclass(frozen=True, kw_only=True, slots=True)
class DividedSet:
    """Which rows of a task's examples each simulated device has. Device ``w1`` has the first ones."""

    partition: str
    rows: Sequence[Indices]
    sha256: str

    def to_plain(self) -> dict[str, Any]:
        """Return the counts and the hash for a file of results."""
        counts = [len(rows) for rows in self.rows]
        return {
            "partition": self.partition,
            "sha256": self.sha256,
            "devices": len(counts),
            "examples": sum(counts),
            "least": min(counts),
            "median": float(np.median(counts)),
            "most": max(counts),
        }


def divide(ready: ReadyTask, partition: Partition, *, devices: int, seed: int = 0) -> DividedSet:
    """Divide the training examples of a task that was made ready with ``divided=True``."""
    if is_script(ready.entry):
        raise Misuse("a script reads its examples itself, on each device: there is nothing here to divide")
    values = _values_of(Examples(ready.prepared.paths(ready.prepared.train)), partition)
    rows = partition.rows(values, devices, seed=seed)
    return DividedSet(partition=str(partition), rows=rows, sha256=hash_of(rows))


def _values_of(stored: Examples, partition: Partition) -> Any:
    """Return the values of the column that decides."""
    if not partition.column:
        return np.zeros(len(stored), np.uint8)
    if partition.column == LABELS[0]:
        labels = labels_of({name: column for name in LABELS if (column := stored.column(name)) is not None})
        if labels is None:
            raise Misuse(
                f"{partition} goes by classes, and the examples have no column y, label or labels with one whole number"
                f" a row; they have {', '.join(stored.columns)}"
            )
        return labels
    values = stored.column(partition.column)
    if values is None:
        raise Misuse(
            f"{partition}: the examples have no column {partition.column!r}; they have {', '.join(stored.columns)}"
        )
    return values


def without_examples(ready: ReadyTask) -> ReadyTask:
    """Return the task as a cluster gets it, where only devices have examples to train on."""
    return dataclasses.replace(ready, prepared=dataclasses.replace(ready.prepared, train=NO_EXAMPLES))


@dataclass(slots=True)
class _Promised:
    """A lease that is trained when its result is due."""

    model: np.ndarray
    lease: DeviceLease
    key: tuple[int, float, int]
    found: DeviceResult | None = None
    error: ShoalError | None = None


class LocalTraining(TorchTraining):
    """Trains each device on its own rows, with PyTorch, in this process."""

    def __init__(self, ready: ReadyTask, spec: JobSpec, divided: DividedSet, *, torch_threads: int = 1) -> None:
        super().__init__(without_examples(ready), spec, torch_threads=torch_threads)
        from shoal.trainer.steps import TorchTrainer

        assert isinstance(self._trainer, TorchTrainer)
        self._torch = self._trainer
        self._stored = Examples(ready.prepared.paths(ready.prepared.train))
        self._divided = divided.rows
        self._sides: dict[str, DeviceSide] = {}
        #: Version, rate and model -> leases that are not trained yet.
        self._promised: dict[tuple[int, float, int], list[_Promised]] = {}
        self._seed = spec.plan.seed
        self._noises = itertools.count()
        own = self._shared.own_after
        #: Before anything is trained, this is the first model's.
        self._first_own = own.copy() if own.size else None

    @property
    def devices(self) -> int:
        return len(self._divided)

    @property
    def first_own(self) -> np.ndarray | None:
        return self._first_own

    def held(self, node: str) -> int:
        return len(self._rows(node))

    def _rows(self, node: str) -> Indices:
        # Devices are w1, w2 and so on.
        return self._divided[int(node[1:]) - 1]

    def begin(self, node: str, *, seen: int) -> None:
        from shoal.trainer.own_examples import RowsOfSet

        examples = RowsOfSet(self._stored, self._rows(node), seen=seen)
        self._sides[node] = self._torch.side_of(examples, noise=self._noise)

    def end(self, node: str) -> None:
        self._sides.pop(node, None)

    def _noise(self) -> np.random.Generator:
        """Noise of label counts that the same simulation draws again."""
        return np.random.default_rng(mix(self._seed, next(self._noises)))

    def promise(self, model: np.ndarray, node: str, lease: Train) -> Callable[[], LearningResult] | None:
        from shoal.trainer.local_lease import DeviceLease

        if not self._torch.can_stack:
            return None
        # Devices of one version have the same array: a simulated link does not copy it.
        promised = _Promised(
            model,
            DeviceLease(side=self._sides[node], epoch=lease.epoch, lease=lease.batches[0], examples=lease.examples),
            (lease.version, lease.rate, id(model)),
        )
        self._promised.setdefault(promised.key, []).append(promised)
        return lambda: self._kept(promised)

    def _kept(self, promised: _Promised) -> LearningResult:
        """Return what was promised. All leases that wait for the same model are trained with the first of them."""
        if promised.found is None and promised.error is None:
            waiting = self._promised.pop(promised.key)
            self._shared.model[:] = promised.model
            version, rate, _ = promised.key
            try:
                with self._telling_where():
                    found = self._torch.learn_together([each.lease for each in waiting], rate=rate, version=version)
            except ShoalError as error:
                # Which of them it was is not known: all of these leases fail.
                for each in waiting:
                    each.error = error
            else:
                for each, made in zip(waiting, found, strict=True):
                    each.found = made
        if promised.error is not None:
            raise promised.error
        assert promised.found is not None
        result, update = promised.found.result, promised.found.update
        if not result.finite:
            raise TrainerError(NOT_FINITE)
        update.flags.writeable = False
        return LearningResult(
            TrainingResult(result.examples, result.loss_sum, update),
            held=result.held,
            fresh=result.fresh,
            fresh_metrics=result.fresh_metrics,
            labels=result.labels,
            logged=result.logged,
        )

    def learn_own(self, model: np.ndarray, node: str, lease: Train, own: np.ndarray | None) -> LearningResult:
        self._torch.serve(self._sides[node])
        self._shared.model[:] = model
        if own is not None:
            self._shared.own[:] = own
        with self._telling_where():
            result = self._torch.learn(
                lease.epoch, lease.batches[0], lease.examples, rate=lease.rate, version=lease.version
            )
        if not result.finite:
            raise TrainerError(NOT_FINITE)
        return LearningResult(
            TrainingResult(result.examples, result.loss_sum, self._update()),
            held=result.held,
            fresh=result.fresh,
            fresh_metrics=result.fresh_metrics,
            labels=result.labels,
            logged=result.logged,
            own=self._shared.own_after.copy() if own is not None else None,
        )
