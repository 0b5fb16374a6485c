"""One batch of a task, tried before anything is sent: forward, loss, backward, evaluation. Imports torch."""

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
from shoal.task import Task
from shoal.trainer.shards import Examples
from shoal.trainer.steps import accuracy_of, loss_of, seeded

_T = TypeVar("_T")


def try_batch(task: Task, model: nn.Module, *, train: Examples, test: Examples, batch_size: int, seed: int) -> None:
    """Take one step of training and one of evaluation, as devices will. What fails here would fail on each of them."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise Misuse(f"{_place(task, 'model')} gave a model without a parameter that can be trained")
    seeded(seed)
    model.train()
    output, y = _forward(task, model, train, batch_size)
    loss = _checked(loss_of, task, "loss", output, y)
    if not math.isfinite(loss.item()):
        raise Misuse(
            f"{_place(task, 'loss')} gave {loss.item()} for the first batch: look for values that are not finite"
        )
    if not loss.requires_grad:
        raise Misuse(f"{_place(task, 'loss')} gave a number that does not depend on the model's parameters")
    loss.backward()  # type: ignore[no-untyped-call]
    model.eval()
    with torch.no_grad():
        output, y = _forward(task, model, test, batch_size)
        _checked(loss_of, task, "loss", output, y)
        _checked(accuracy_of, task, "correct", output, y)


def _forward(task: Task, model: nn.Module, examples: Examples, batch_size: int) -> tuple[Any, torch.Tensor]:
    x, y = examples.take(np.arange(min(len(examples), batch_size)))
    inputs, labels = task.batch(torch.from_numpy(x), torch.from_numpy(y))
    return model(inputs), labels


def _checked(ask: Callable[[Task, Any, torch.Tensor], _T], task: Task, hook: str, output: Any, y: torch.Tensor) -> _T:
    try:
        return ask(task, output, y)
    except Misuse as error:
        raise Misuse(f"{error} ({_place(task, hook)})") from None


def _place(task: Task, hook: str) -> str:
    """Where a task's method is written, such as ``Digits.loss (task.py:17)``."""
    method = inspect.unwrap(getattr(task, hook))
    code = getattr(method, "__code__", None)
    named = f"{type(task).__name__}.{hook}"
    return f"{named} ({Path(code.co_filename).name}:{code.co_firstlineno})" if code is not None else named
