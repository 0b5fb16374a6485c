"""Trains a simulated job with PyTorch. Devices and time are modelled elsewhere.

One trainer answers for all simulated devices. With shared examples, an update depends on the model, the seed, the
epoch, the batches and the rate, not on the device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Self

import numpy as np

from shoal.errors import Misuse
from shoal.learning.metrics import merge_all
from shoal.roles.actions import Evaluate, Train
from shoal.sim.jobs import EvaluationResult, LearningResult, TrainingResult, ranges_to_judge
from shoal.trainer import child
from shoal.trainer.bundle import unpack
from shoal.trainer.child_loop import place_of, reason_of
from shoal.trainer.package import ReadyTask, trainer_settings
from shoal.trainer.prepared_job import own_layout
from shoal.trainer.protocol import TrainerError
from shoal.trainer.shared import SharedVectors
from shoal.wire.messages import JobSpec

NOT_FINITE = "training gave values that are not finite: try a lower learning rate"


class TorchTraining:
    """Trains with PyTorch, in this process. Close it, or use it in a ``with``: the task's code is unpacked on disk.

    Uses one thread, like the trainers of devices: another number may give other bits, and a trace would depend on the
    machine it was made on. If the task's code fails, it fails on every device: a ``TrainerError`` says where.
    """

    def __init__(self, ready: ReadyTask, spec: JobSpec, *, torch_threads: int = 1) -> None:
        own = own_layout(Path(ready.prepared.model))
        self._shared = SharedVectors.create(ready.prepared.layout.size, own.size if own is not None else 0)
        self._bundle_dir = Path(tempfile.mkdtemp(prefix="shoal-simulate-")).resolve()
        # Also at the end of the process, if nobody closes it.
        self._clean_up = weakref.finalize(self, _clean_up, self._bundle_dir, self._shared)
        # A simulation trains many devices' leases here: compiling would dwarf all of them.
        plan = dataclasses.replace(spec.plan, compile=False)
        is_local = plan.data == "local"
        settings = trainer_settings(
            ready, plan, bundle_dir=str(self._bundle_dir), torch_threads=torch_threads, is_local=is_local
        )
        try:
            unpack(ready.bundle, self._bundle_dir)
            with self._telling_where():
                self._trainer = child.build(settings, self._shared)
        except BaseException:
            self.close()
            raise

    def train(self, spec: JobSpec, model: np.ndarray, lease: Train) -> TrainingResult:
        self._shared.model[:] = model
        with self._telling_where():
            result = self._trainer.train(lease.epoch, list(lease.batches), rate=lease.rate, version=lease.version)
        if not result.finite:
            raise TrainerError(NOT_FINITE)
        return TrainingResult(result.examples, result.loss_sum, self._update())

    def _update(self) -> np.ndarray:
        """Return a copy: the next device's update overwrites the shared memory while this one is still in use."""
        delta = self._shared.update.copy()
        delta.flags.writeable = False
        return delta

    def learn(self, spec: JobSpec, model: np.ndarray, node: str, lease: Train) -> LearningResult:
        raise Misuse("this training has no devices with examples of their own: see LocalTraining")

    def evaluate(self, spec: JobSpec, model: np.ndarray, lease: Evaluate) -> EvaluationResult:
        self._shared.model[:] = model
        with self._telling_where():
            parts = [self._trainer.evaluate(start, stop) for start, stop in ranges_to_judge(spec, lease)]
        return EvaluationResult(
            examples=sum(part.examples for part in parts),
            metrics=merge_all(part.metrics for part in parts),
        )

    @contextlib.contextmanager
    def _telling_where(self) -> Iterator[None]:
        """Add the place in the task's code to its errors. Shoal's own errors stay as they are."""
        try:
            yield
        except Misuse:
            raise
        except Exception as error:
            raise TrainerError(reason_of(error), place_of(error, str(self._bundle_dir))) from error

    def close(self) -> None:
        """Remove the unpacked code and release the memory. May be called again."""
        self._clean_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _clean_up(bundle_dir: Path, shared: SharedVectors) -> None:
    """Undo the effects of running a task's code here, so that another task with files of the same names can follow."""
    for name, module in list(sys.modules.items()):
        # Not by attribute, which would make a lazy module load its parts.
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if file and Path(file).is_relative_to(bundle_dir):
            del sys.modules[name]
    if str(bundle_dir) in sys.path:
        sys.path.remove(str(bundle_dir))
    shared.close()
    shutil.rmtree(bundle_dir, ignore_errors=True)
