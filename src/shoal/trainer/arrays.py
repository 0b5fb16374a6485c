"""What a task gives as its examples, as a pair of arrays. Knows no files and no splits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from shoal.errors import Misuse
from shoal.trainer.shards import Array

_PROGRESS_EVERY = 4096


def materialise(examples: Any, *, report: Callable[[int], None] = lambda done: None) -> tuple[Array, Array]:
    """A pair of arrays from what ``Task.examples`` gave: a pair of arrays or tensors, or a Dataset of pairs."""
    if isinstance(examples, tuple | list):
        if len(examples) != 2:
            raise Misuse(f"examples() gave {len(examples)} things; it gives the pair (x, y)")
        return _array(examples[0], "x"), _array(examples[1], "y")
    indexable = hasattr(examples, "__getitem__") and hasattr(examples, "__len__")
    if not indexable or isinstance(examples, np.ndarray | torch.Tensor):
        raise Misuse(f"examples() gave {type(examples).__name__}; it gives a pair (x, y) or a Dataset with a length")
    return _stack(examples, report)


def _stack(dataset: Any, report: Callable[[int], None]) -> tuple[Array, Array]:
    count = len(dataset)
    if not count:
        return np.zeros((0, 1), np.float32), np.zeros(0, np.int64)
    columns: list[Array] = []
    for index in range(count):
        row = dataset[index]
        if not isinstance(row, tuple | list) or len(row) != 2:
            raise Misuse(f"item {index} of the dataset is not a pair (x, y)")
        pair = (_array(row[0], "x"), _array(row[1], "y"))
        if not columns:
            columns = [np.empty((count, *value.shape), value.dtype) for value in pair]
        for column, value, name in zip(columns, pair, "xy", strict=True):
            if value.shape != column.shape[1:]:
                raise Misuse(f"item {index} of the dataset has {name} of shape {value.shape}, not {column.shape[1:]}")
            column[index] = value
        if (index + 1) % _PROGRESS_EVERY == 0:
            report(index + 1)
    return columns[0], columns[1]


def _array(value: Any, name: str) -> Array:
    array: Array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.dtype == object:
        raise Misuse(f"{name} is not an array of numbers: make every example the same shape")
    # Twice the bytes on every link, for digits that float32 models do not read.
    return array.astype(np.float32) if array.dtype == np.float64 else array
