"""One batch of a task, tried before anything is sent: a step, its gradient, an evaluation. Imports torch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from shoal.errors import Misuse
from shoal.plan import Plan
from shoal.task import Task
from shoal.trainer.arrays import rows_to_torch
from shoal.trainer.frozen_guard import FrozenGuard
from shoal.trainer.judging import loss_of, metrics_of
from shoal.trainer.lease import TaskLease
from shoal.trainer.placement import Placed, to_training
from shoal.trainer.shards import Examples
from shoal.trainer.steps import seeded

_T = TypeVar("_T")


def try_batch(
    task: Task, model: nn.Module, placed: Placed, *, train: Examples, test: Examples, batch_size: int, seed: int
) -> None:
    """Take one step of training and one of evaluation, as devices will. An error here would occur on each of them."""
    seeded(seed)
    to_training(model, placed)
    lease = lease_of(task, placed)
    guard = FrozenGuard(model, placed.frozen, whole=True)
    batch, count = _batch(task, train, batch_size, training=True)
    if task._overrides("train"):
        taken = iter([batch])
        task.train(model, taken, lease)
        if next(taken, None) is not None:
            raise Misuse(f"{_place(task, 'train')} took none of its batches; it must train on all of them")
    else:
        _try_step(task, model, batch, lease)
    model.eval()
    with torch.no_grad():
        batch, count = _batch(task, test, batch_size, training=False)
        hook = "metrics" if task._overrides("metrics") else "correct"
        _checked(task, hook, lambda: metrics_of(task, model, batch, lease, examples=count))
    guard.check(type(task).__name__)


def lease_of(task: Task, placed: Placed) -> TaskLease:
    """Return a lease to try the task's code with: of the first version, on the CPU."""
    values = {name: tensor.detach().float().numpy() for name, (tensor, _) in placed.shared.items()}
    rate = (task.plan or Plan()).learning_rate
    return TaskLease(version=0, epoch=0, rate=rate, device=torch.device("cpu"), values=values)


def _try_step(task: Task, model: nn.Module, batch: Any, lease: TaskLease) -> None:
    hook = "step" if task._overrides("step") else "loss"
    loss = _checked(task, hook, lambda: loss_of(task, model, batch, lease))
    if not math.isfinite(loss.item()):
        raise Misuse(
            f"{_place(task, hook)} gave {loss.item()} for the first batch: look for values that are not finite"
        )
    if not loss.requires_grad:
        raise Misuse(f"{_place(task, hook)} gave a number that does not depend on the model's parameters")
    loss.backward()  # type: ignore[no-untyped-call]


def _batch(task: Task, examples: Examples, batch_size: int, *, training: bool) -> tuple[Any, int]:
    count = min(len(examples), batch_size)
    return task.collate(rows_to_torch(examples.take(np.arange(count))), training=training), count


def _checked(task: Task, hook: str, ask: Callable[[], _T]) -> _T:
    try:
        return ask()
    except Misuse as error:
        raise Misuse(f"{error} ({_place(task, hook)})") from None


def _place(task: Task, hook: str) -> str:
    """Return where a task's method is written, such as ``Digits.loss (task.py:17)``."""
    method = inspect.unwrap(getattr(task, hook))
    code = getattr(method, "__code__", None)
    named = f"{type(task).__name__}.{hook}"
    return f"{named} ({Path(code.co_filename).name}:{code.co_firstlineno})" if code is not None else named
