"""Makes a simulated job from a task, with real training if wanted. Devices and time are modelled elsewhere.

One trainer answers for all simulated devices: an update depends on the model, the seed, the epoch, the batches and the
rate, not on the device.
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
from shoal.plan import Plan, Until
from shoal.roles.actions import Evaluate, Train
from shoal.sim.jobs import (
    EvaluationResult,
    LearningResult,
    SimulatedJob,
    SystemOnly,
    Training,
    TrainingResult,
    ranges_to_judge,
)
from shoal.trainer import child
from shoal.trainer.bundle import unpack
from shoal.trainer.child_loop import place_of, reason_of
from shoal.trainer.package import ReadyTask, spec_of, trainer_settings
from shoal.trainer.prepared_job import first_model
from shoal.trainer.protocol import TrainerError
from shoal.trainer.shared import SharedVectors
from shoal.wire.messages import JobSpec


class TorchTraining:
    """Trains with PyTorch, in this process. Close it, or use it in a ``with``: the task's code is unpacked on disk.

    Uses one thread, like the trainers of devices: another number may give other bits, and a trace would depend on the
    machine it was made on. If the task's code fails, it fails on every device: a ``TrainerError`` says where.
    """

    def __init__(self, ready: ReadyTask, spec: JobSpec, *, torch_threads: int = 1) -> None:
        self._shared = SharedVectors.create(ready.prepared.layout.size)
        self._bundle_dir = Path(tempfile.mkdtemp(prefix="shoal-simulate-")).resolve()
        # Also at the end of the process, if nobody closes it.
        self._clean_up = weakref.finalize(self, _clean_up, self._bundle_dir, self._shared)
        # A simulation trains many devices' leases here: compiling would dwarf all of them.
        plan = dataclasses.replace(spec.plan, compile=False)
        settings = trainer_settings(ready, plan, bundle_dir=str(self._bundle_dir), torch_threads=torch_threads)
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
            raise TrainerError("training gave values that are not finite: try a lower learning rate")
        # A copy: the next device's update overwrites the shared memory while this one is still in use.
        delta = self._shared.update.copy()
        delta.flags.writeable = False
        return TrainingResult(result.examples, result.loss_sum, delta)

    def learn(self, spec: JobSpec, model: np.ndarray, node: str, lease: Train) -> LearningResult:
        raise Misuse("devices' own examples are on devices: simulate data = 'local' with --system-only")

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


def _ends_by_learning(until: Until) -> str:
    """Return the first of a job's ends that only training can reach."""
    if until.accuracy is not None:
        return f"an accuracy of {until.accuracy:.0%}"
    return str(until.goals[0]) if until.goals else ""


def simulated_job(
    ready: ReadyTask, plan: Plan, *, train: bool, job: str = "job", torch_threads: int = 1
) -> SimulatedJob:
    """Return the job as a cluster would get it. ``close`` it at the end: real training holds memory and files."""
    if not train and (ends := _ends_by_learning(plan.until)):
        raise Misuse(
            f"{ends} is never reached where nothing is trained: "
            "end the job after a number of epochs or minutes instead, or train for real"
        )
    prepared = ready.prepared
    spec = spec_of(ready, plan, job=job)
    _, model = first_model(Path(prepared.model))
    model.flags.writeable = False
    fetch_bytes = _fetch_bytes(ready)
    training: Training = SystemOnly(prepared.layout.size, plan)
    if train:
        training = TorchTraining(ready, spec, torch_threads=torch_threads)
    return SimulatedJob(
        spec=spec,
        layout=prepared.layout,
        model=model,
        training=training,
        gmacs_per_example=prepared.gmacs_per_example,
        fetch_bytes=fetch_bytes,
    )


def close(job: SimulatedJob) -> None:
    """Release what a job's training holds, whichever training that is."""
    if isinstance(job.training, TorchTraining):
        job.training.close()


def _fetch_bytes(ready: ReadyTask) -> int:
    """Return the bytes of the code, the first model and the examples."""
    prepared = ready.prepared
    shards = (*prepared.train.shards, *prepared.test.shards)
    return len(ready.bundle) + Path(prepared.model).stat().st_size + sum(shard.bytes for shard in shards)


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
