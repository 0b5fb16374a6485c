"""LeNet along time as a function of one flat vector: an epoch of SGD, and its accuracy. Needs torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from papers.mdldroid.setting import BATCH, SHAPES

#: A batch of 32 is too small to be worth a second thread.
torch.set_num_threads(1)

_AT_ONCE = 500


def begin(seed: int) -> np.ndarray:
    """Weights uniform with the variance 2/inputs (He), biases 0: the paper does not say how it begins."""
    generator = np.random.default_rng([seed, 17])
    parts = []
    for shape in SHAPES:
        reach = math.sqrt(6 / math.prod(shape[1:])) if len(shape) > 1 else 0.0
        parts.append(generator.uniform(-reach, reach, math.prod(shape)))
    return np.concatenate(parts).astype(np.float32)


def _parts(flat: Any) -> list[Any]:
    return [
        part.view(shape) for part, shape in zip(flat.split([math.prod(shape) for shape in SHAPES]), SHAPES, strict=True)
    ]


def logits(parts: list[Any], values: Any) -> Any:
    conv1, bias1, conv2, bias2, wide, bias3, narrow, bias4 = parts
    hidden = functional.max_pool1d(functional.conv1d(values, conv1, bias1), 2).relu()
    hidden = functional.max_pool1d(functional.conv1d(hidden, conv2, bias2), 2).relu()
    hidden = functional.linear(hidden.flatten(1), wide, bias3).relu()
    return functional.linear(hidden, narrow, bias4)


def trained(model: np.ndarray, values: np.ndarray, labels: np.ndarray, *, order: np.ndarray, rate: float) -> np.ndarray:
    """The model after one pass over the examples in this order, in batches."""
    flat = torch.from_numpy(model.copy())
    parts = [part.requires_grad_() for part in _parts(flat)]
    inputs, wanted = torch.from_numpy(values), torch.from_numpy(labels)
    for start in range(0, len(order), BATCH):
        picked = torch.from_numpy(order[start : start + BATCH])
        loss = functional.cross_entropy(logits(parts, inputs[picked]), wanted[picked])
        found = torch.autograd.grad(loss, parts)
        with torch.no_grad():
            torch._foreach_add_(parts, found, alpha=-rate)
    return np.asarray(flat.detach().numpy())


def accuracy(model: np.ndarray, values: np.ndarray, labels: np.ndarray) -> float:
    """The share that is right. A model that has run away is as good as none."""
    if not np.isfinite(model).all():
        return 0.0
    parts = _parts(torch.from_numpy(model))
    right = 0
    with torch.no_grad():
        for start in range(0, len(labels), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            right += int((logits(parts, torch.from_numpy(values[part])).argmax(1).numpy() == labels[part]).sum())
    return right / len(labels)
