"""Calls a task's methods and checks what they give: the loss of a batch, and named sums. Imports torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shoal.errors import Misuse
from shoal.learning.metrics import MetricSum
from shoal.metrics import mean, named
from shoal.task import Task, class_dimension
from shoal.trainer.lease import TaskLease


def loss_of(task: Task, model: nn.Module, batch: Any, lease: TaskLease) -> Tensor:
    """Return the loss of a batch, from the task's ``step``."""
    if task._overrides("step"):
        return _checked_loss(task, "step", task.step(model, batch, lease))
    x, y = pair_of(task, batch)
    return _checked_loss(task, "loss", task.step(model, (x, y), lease))


def pair_of(task: Task, batch: Any) -> tuple[Any, Any]:
    """Return inputs and labels, as the default ``step`` and ``metrics`` take them."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    found = f"the columns {', '.join(map(str, batch))}" if isinstance(batch, dict) else f"a {type(batch).__name__}"
    raise Misuse(f"these examples have {found}, not x and y: define step(self, model, batch, lease), or collate")


def metrics_of(task: Task, model: nn.Module, batch: Any, lease: TaskLease, *, examples: int) -> tuple[MetricSum, ...]:
    """Return named sums over one batch: the task's own and the loss, or by default the loss and the accuracy."""
    if task._overrides("metrics"):
        found = task.metrics(model, batch)
        if isinstance(found, dict) and "loss" not in found and _has_step(task):
            found = {"loss": _mean_loss(loss_of(task, model, batch, lease), examples), **found}
        return named(found, where=f"{type(task).__name__}.metrics")
    if not _has_step(task):
        return named(_figures_of_loop(task, model, batch, examples), where=f"{type(task).__name__}.correct")
    if task._overrides("step"):
        return named({"loss": _mean_loss(loss_of(task, model, batch, lease), examples)})
    x, y = pair_of(task, batch)
    output = model(x)
    loss = _checked_loss(task, "loss", task.loss(output, y))
    return named({"loss": _mean_loss(loss, examples), **_accuracy(task, output, y)})


def _figures_of_loop(task: Task, model: nn.Module, batch: Any, examples: int) -> dict[str, Any]:
    """Return the accuracy and the loss of a task with its own training loop, if its examples are inputs and classes
    and its model gives one output per class. A model that its loop calls in another way has no such figures."""
    if not (isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor)):
        return {}
    x, y = batch
    try:
        output = model(x)
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return {}
    accuracy = _accuracy(task, output, y)
    if not accuracy:
        return {}
    return {"loss": _mean_loss(_checked_loss(task, "loss", task.loss(output, y)), examples), **accuracy}


def _has_step(task: Task) -> bool:
    """Whether the task can give a loss. A task with its own training loop may not."""
    return task._overrides("step") or not task._overrides("train")


def _mean_loss(loss: Tensor, examples: int) -> Any:
    return mean(loss.item() * examples, examples)


def _accuracy(task: Task, output: Any, y: Any) -> dict[str, Any]:
    """Return how many examples are right, if y holds class numbers or the task counts them itself."""
    if not isinstance(y, Tensor):
        return {}
    counts_itself = task._overrides("correct")
    is_whole = not y.is_floating_point() and isinstance(output, Tensor)
    is_classes = is_whole and class_dimension(output.shape, y.shape) is not None
    if not counts_itself and not is_classes:
        return {}
    correct = int(task.correct(output, y))
    # Each position of a sequence or an image may be counted.
    most = len(y) if 0 <= correct <= len(y) and (counts_itself or y.dim() == 1) else y.numel()
    if not 0 <= correct <= most:
        raise Misuse(f"{type(task).__name__}.correct gave {correct} of {most} examples; it must count examples")
    return {"accuracy": mean(correct, most)}


def _checked_loss(task: Task, hook: str, loss: object) -> Tensor:
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        shape = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise Misuse(f"{type(task).__name__}.{hook} gave {shape}; it must give one number, the batch's mean")
    return loss
