"""A device's answers to a question, in the tensors of a model. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from shoal.errors import Misuse
from shoal.learning.answers import ANSWERS, PARTS, PARTS_OF_A_FIGURE, in_parts
from shoal.task import Task
from shoal.trainer.judging import metrics_of
from shoal.trainer.lease import TaskLease


def answer_sheet(figures: Mapping[str, tuple[int, ...]], *, is_in_parts: bool) -> nn.Module:
    """Return a model with a tensor per figure, all zero. Figures may be in parts that fit the words of a sealed sum."""
    shapes = {name: (PARTS_OF_A_FIGURE, *shape) if is_in_parts else shape for name, shape in figures.items()}
    sheet = nn.Module()
    tensors = nn.ParameterDict({name: torch.zeros(shape) for name, shape in shapes.items()})
    sheet.add_module(PARTS if is_in_parts else ANSWERS, tensors)
    return sheet


def write_figures(
    title: str,
    model: nn.Module,
    figures: Mapping[str, tuple[int, ...]],
    counted: Mapping[str, Any],
    *,
    is_in_parts: bool,
) -> None:
    """Add what was counted here to the figures."""
    if set(counted) != set(figures):
        raise Misuse(f"{title}.count returned {', '.join(sorted(counted))}; its figures are {', '.join(figures)}")
    for name, value in counted.items():
        if (shape := np.shape(value)) != tuple(figures[name]):
            raise Misuse(f"{title}.count returned {name} with the shape {shape}, not {tuple(figures[name])}")
    if is_in_parts:
        _add(model.get_submodule(PARTS), {name: in_parts(value) for name, value in counted.items()})
    else:
        _add(model.get_submodule(ANSWERS), counted)


def _add(sheet: nn.Module, values: Mapping[str, Any]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            sheet.get_parameter(name).add_(torch.from_numpy(np.array(value, dtype=np.float32)))


def with_answers(model: nn.Module, *, rows: int) -> nn.Module:
    """Give a model a tensor for its metrics: a sum and its weight in each row."""
    model.register_parameter(ANSWERS, nn.Parameter(torch.zeros(rows, 2)))
    return model


def write_metrics(
    task: Task, model: nn.Module, batches: Iterator[Any], lease: TaskLease, metrics: Sequence[str]
) -> None:
    """Evaluate the model on the batches of a lease, and add the sums to its answers."""
    sums, examples = np.zeros((len(metrics) + 1, 2)), 0
    model.eval()
    with torch.no_grad():
        for batch in batches:
            count = _rows_of(batch)
            found = {metric.name: metric for metric in metrics_of(task, model, batch, lease, examples=count)}
            for row, name in enumerate(metrics):
                metric = found.get(name)
                if metric is None or metric.kind != "mean":
                    means = ", ".join(each.name for each in found.values() if each.kind == "mean")
                    raise Misuse(f"{type(task).__name__} has no mean {name!r} of a batch; it has {means or 'none'}")
                sums[row] += metric.sums
            examples += count
        sums[-1] = examples, 1.0
        model.get_parameter(ANSWERS).add_(torch.from_numpy(sums.astype(np.float32)))
    lease.log("loss", 0.0, 1.0)


def _rows_of(batch: Any) -> int:
    """Return how many examples a batch has."""
    while isinstance(batch, Mapping | tuple | list) and batch:
        batch = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    return len(batch)
