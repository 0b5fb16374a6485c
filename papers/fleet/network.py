"""FLeet's CNN for MNIST (Table 1) as a function of one flat vector: its gradient and its accuracy. Needs torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch.func import grad, vmap
from torch.nn import functional

from papers.fleet.setting import CLASSES, PARAMETERS, SHAPES

#: A batch of 100 is too small to be worth a second thread.
torch.set_num_threads(1)

#: Images looked at at once.
_AT_ONCE = 1_000


def begin(seed: int) -> np.ndarray:
    """Weights uniform with the variance 1/inputs (LeCun), biases 0: the paper does not say how it begins."""
    generator = np.random.default_rng([seed, 17])
    parts = []
    for shape in SHAPES:
        reach = math.sqrt(3 / math.prod(shape[1:])) if len(shape) > 1 else 0.0
        parts.append(generator.uniform(-reach, reach, math.prod(shape)))
    return np.concatenate(parts).astype(np.float32)


def logits(flat: Any, images: Any) -> Any:
    parts, start = [], 0
    for shape in SHAPES:
        size = math.prod(shape)
        parts.append(flat[start : start + size].view(shape))
        start += size
    conv1, bias1, conv2, bias2, weight, bias = parts
    hidden = functional.max_pool2d(functional.conv2d(images, conv1, bias1), 3).relu()
    hidden = functional.max_pool2d(functional.conv2d(hidden, conv2, bias2), 2).relu()
    return functional.linear(hidden.flatten(1), weight, bias)


def gradient(
    model: np.ndarray, images: np.ndarray, labels: np.ndarray, *, prior: np.ndarray | None = None
) -> np.ndarray:
    """Of the mean cross-entropy. With a ``prior`` the softmax is weighed by it (``rules.local_prior`` says why)."""
    flat = torch.from_numpy(model).requires_grad_()
    out = logits(flat, scaled(images))
    if prior is not None:
        out = out + torch.from_numpy(np.log(prior).astype(np.float32))
    loss = functional.cross_entropy(out, torch.from_numpy(labels))
    (found,) = torch.autograd.grad(loss, flat)
    return np.asarray(found.numpy())


def gradients_by_example(model: np.ndarray, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """One row an example: what clipping each by itself takes."""

    def loss(flat: Any, image: Any, label: Any) -> Any:
        return functional.cross_entropy(logits(flat, image[None]), label[None])

    rows = vmap(grad(loss), in_dims=(None, 0, 0))(torch.from_numpy(model), scaled(images), torch.from_numpy(labels))
    return np.asarray(rows.numpy())


def accuracy(model: np.ndarray, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """The share that is right, of all and of each class."""
    flat = torch.from_numpy(model)
    right = np.empty(len(labels), dtype=bool)
    with torch.no_grad():
        for start in range(0, len(labels), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            right[part] = logits(flat, scaled(images[part])).argmax(1).numpy() == labels[part]
    of_class = [float(right[labels == label].mean()) for label in range(CLASSES)]
    return float(right.mean()), np.array(of_class)


def scaled(images: np.ndarray) -> Any:
    """Bytes to [0, 1]: the paper's min-max scaling. Channels last, which pools faster."""
    return (torch.from_numpy(images).to(torch.float32) / 255).to(memory_format=torch.channels_last)


assert PARAMETERS == 11_786, "Table 1 gives 11,786 parameters where nothing is padded"
