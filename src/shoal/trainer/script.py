"""A script's own training loop as a trainer: it runs in a thread, and waits in ``shoal.worker`` for leases.

The agent asks for a lease; the version goes into the script's model; the script trains, and asks for the next lease;
what changed goes into shared memory, and the agent has its answer. Imports torch.
"""

from __future__ import annotations

import math
import os
import queue
import random  # noqa: TID251 - seeded for scripts that draw from it
import runpy
import secrets
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal import loop
from shoal.data.local import LOCAL_VARIABLE, PART_VARIABLE
from shoal.errors import Misuse
from shoal.learning.metrics import MetricSum
from shoal.loop import Evaluate, LoopLease
from shoal.task import Task
from shoal.trainer.alone import judged
from shoal.trainer.base import load_base
from shoal.trainer.flat import read_into, write_from
from shoal.trainer.frozen_guard import FrozenGuard
from shoal.trainer.importer import file_of
from shoal.trainer.placement import Placed, place, placed_again, to_training
from shoal.trainer.protocol import EvalResult, TaskLoaded, TrainerSettings, TrainResult
from shoal.trainer.shared import SharedVectors

#: A lease of a loop ends at this part of its deadline: the update has to travel.
DUE_PART = 0.75


def run_script(bundle_dir: Path, entry: str, arguments: dict[str, Any]) -> None:
    """Run the script as Python would, with its arguments."""
    file = bundle_dir / file_of(entry)
    if not file.is_file():
        raise Misuse(f"the bundle holds no {file.name}")
    words = arguments.get("argv", [])
    if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
        raise Misuse("a script's arguments are a list of texts")
    sys.argv = [str(file), *words]
    sys.path.insert(0, str(file.parent))
    runpy.run_path(str(file), run_name="__main__")


def checked_model(model: object, optimizer: object) -> nn.Module:
    """Return the model that a script gave to ``shoal.worker``, or raise Misuse if the arguments do not fit."""
    if not isinstance(model, nn.Module):
        raise Misuse(f"shoal.worker got {type(model).__name__} as the model; it takes a torch module")
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise Misuse(f"shoal.worker got {type(optimizer).__name__} as the optimizer; it takes one of torch, or none")
    return model


class ScriptTrainer:
    """The agent's side. All but ``_run`` and what the script calls happens while the script waits."""

    def __init__(self, settings: TrainerSettings, shared: SharedVectors) -> None:
        began_s = time.monotonic()
        self._settings = settings
        self._shared = shared
        self._due_in_s = math.inf
        self._before = np.empty(settings.layout.size, np.float32)
        self._count = 0
        #: How many examples the script's last lease saw in a loader.
        self._held = 0
        self._over: BaseException | None = None
        self._script = _Script(settings)
        if settings.local_folder:
            os.environ[LOCAL_VARIABLE] = settings.local_folder
        if settings.local_part:
            os.environ[PART_VARIABLE] = settings.local_part
        loop.connect(self._script)
        # A daemon: the process ends when the agent says so, wherever the script is.
        threading.Thread(target=self._run, name="script", daemon=True).start()
        self._heard()
        self._load_s = time.monotonic() - began_s

    def loaded(self) -> TaskLoaded:
        script = file_of(self._settings.entry)
        return TaskLoaded(
            # Only the script knows how many there are, until it goes through a loader.
            train_examples=max(1, self._held),
            test_examples=0,
            seconds=self._load_s,
            engine=f"torch {torch.__version__}, the loop of {script}",
        )

    def due_in(self, deadline_s: float) -> None:
        """Set when the next lease is due."""
        self._due_in_s = deadline_s * DUE_PART if deadline_s > 0 else math.inf

    def learn(self, epoch: int, lease: int, examples: int, *, rate: float = 0.0, version: int = 0) -> TrainResult:
        """Have the script train one lease, and leave what changed in the update region."""
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        if self._over is not None:
            raise self._over
        layout, model = self._settings.layout, self._script.model
        write_from(self._shared.model, model, layout)
        # As the model holds the values, possibly rounded: an update is the change from these.
        read_into(self._before, model, layout)
        to_training(model, self._script.placed)
        factor = rate / self._settings.learning_rate if rate else 1.0
        self._count += 1
        lent = LoopLease(number=self._count, version=version, epoch=epoch, examples=examples, due_in_s=self._due_in_s)
        self._script.scale_rates(factor)
        self._script.asked.put(lent)
        done = self._heard()
        self._script.scale_rates(1 / factor)
        assert done is lent
        self._script.guard.check(file_of(self._settings.entry))
        read_into(self._shared.update, model, layout)
        np.subtract(self._shared.update, self._before, out=self._shared.update)
        count = min(done.examples, examples)
        self._held = max(done.held, done.examples)
        loss_sum = (done.loss or 0.0) * count
        return TrainResult(
            examples=count,
            loss_sum=loss_sum,
            finite=math.isfinite(loss_sum) and bool(np.isfinite(self._shared.update).all()),
            seconds=time.monotonic() - began_s,
            held=self._held,
            cpu_s=time.process_time() - began_cpu_s,
            logged=done.logged.others(),
            **self._judged(examples),
        )

    def train(self, epoch: int, batches: list[int], *, rate: float = 0.0, version: int = 0) -> TrainResult:
        raise Misuse("a script reads its own data: its plan has data = 'local'")

    def evaluate(self, start: int, stop: int) -> EvalResult:
        raise Misuse("a script has no held-out examples that are shared: it measures itself by evaluate=")

    def _judged(self, examples: int) -> dict[str, Any]:
        """Return the version's results on the script's own held-out data, in the form of results on new examples."""
        metrics = self._script.judged
        if not metrics:
            return {}
        weight = max((metric.sums[1] for metric in metrics if metric.kind == "mean"), default=1.0)
        return {"fresh": max(1, min(math.ceil(weight), examples)), "fresh_metrics": metrics}

    def _heard(self) -> LoopLease | None:
        """Wait for the script's next report. Raise its error if it failed."""
        said = self._script.told.get()
        if isinstance(said, BaseException):
            self._over = said
            raise said
        return said

    def _run(self) -> None:
        settings, script = self._settings, self._script
        torch.set_num_threads(settings.torch_threads)
        seed_all(settings.seed)
        try:
            run_script(Path(settings.bundle_dir), settings.entry, settings.arguments)
        except BaseException as error:
            if not (isinstance(error, SystemExit) and not error.code):
                script.told.put(error)
                return
        name = file_of(settings.entry)
        ended = f"{name} ended after {self._count} lease(s), and its loop must continue until the job ends"
        unused = f"{name} ended without a call of shoal.worker: see docs/loops.md"
        script.told.put(Misuse(ended if script.is_attached else unused))


class _Script:
    """The script's side: what ``shoal.worker`` calls in the script's thread."""

    model: nn.Module
    placed: Placed
    guard: FrozenGuard

    def __init__(self, settings: TrainerSettings) -> None:
        self._settings = settings
        self._optimizer: Any = None
        self._evaluate: Evaluate | None = None
        self.is_attached = False
        self.judged: tuple[MetricSum, ...] = ()
        self.asked: queue.SimpleQueue[LoopLease] = queue.SimpleQueue()
        #: A lease that was trained, None for a script that is ready, or an error.
        self.told: queue.SimpleQueue[LoopLease | BaseException | None] = queue.SimpleQueue()

    def attach(self, model: Any, optimizer: Any, evaluate: Evaluate | None) -> None:
        self.model = checked_model(model, optimizer)
        self.placed = place(Task(), self.model)
        if self.placed.layout != self._settings.layout:
            difference = self.placed.layout.difference(self._settings.layout)
            raise Misuse(f"this device builds another model than the job's: {difference}; do its versions differ?")
        load_base(self.placed.frozen, self._settings.base)
        for module in self.placed.still:
            # Keeps frozen running means even if something calls train() on the model.
            module.register_forward_pre_hook(_stand_still)
        self._optimizer, self._evaluate = optimizer, evaluate
        self.is_attached = True
        self.draw_apart()
        self.told.put(None)

    def draw_apart(self) -> None:
        seed_all(secrets.randbits(62))

    def exchange(self, done: LoopLease | None) -> LoopLease | None:
        if done is not None:
            self.told.put(done)
        lease = self.asked.get()
        # Only now: before its first lease a script may move its model to another device.
        self.placed = placed_again(self.placed, self.model)
        self.guard = FrozenGuard(self.model, self.placed.frozen)
        self.judged = judged(self.model, self._evaluate) if self._evaluate is not None else ()
        return lease

    def scale_rates(self, factor: float) -> None:
        """Multiply the script's own learning rates by the factor of the plan's schedule."""
        if self._optimizer is not None and factor != 1.0:
            for group in self._optimizer.param_groups:
                group["lr"] *= factor


def seed_all(seed: int) -> None:
    """Seed every generator that a script is likely to use, so that the model is built the same on all devices."""
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


def _stand_still(module: nn.Module, inputs: object) -> None:
    module.training = False
