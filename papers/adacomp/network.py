"""The paper's network on one flat vector: first values, gradients, accuracy. Knows torch, not workers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from papers.adacomp.digits import Digits
from shoal.learning.layout import Layout

#: conv 3x3x32, pool 2, conv 3x3x32, pool 2, full 128, full 10: 211,690 values, as the paper counts them.
LAYOUT = Layout.of(
    (name, shape, "parameter")
    for name, shape in (
        ("conv1.weight", (32, 1, 3, 3)),
        ("conv1.bias", (32,)),
        ("conv2.weight", (32, 32, 3, 3)),
        ("conv2.bias", (32,)),
        ("full1.weight", (128, 1568)),
        ("full1.bias", (128,)),
        ("full2.weight", (10, 128)),
        ("full2.bias", (10,)),
    )
)

#: Truncated normal and constant biases: not in the paper's text, in its published code.
WEIGHTS_DEVIATION = 0.1
BIAS = 0.1

#: Images evaluated together: more do not fit a core's caches and take longer.
_TOGETHER = 50


def first_model(seed: int) -> np.ndarray:
    """Weights from a normal distribution cut at two deviations, biases all the same."""
    chance = np.random.default_rng([seed, 0])
    flat = np.full(LAYOUT.size, BIAS, dtype=np.float32)
    for name, view in LAYOUT.views(flat).items():
        if name.endswith("weight"):
            drawn = chance.standard_normal(view.shape)
            while (beyond := np.abs(drawn) > 2).any():
                drawn[beyond] = chance.standard_normal(int(beyond.sum()))
            view[...] = WEIGHTS_DEVIATION * drawn
    return flat


class Network:
    """Learns on one set of images and is examined on another; holds no model between calls."""

    def __init__(self, train: Digits, test: Digits) -> None:
        self._train = torch.from_numpy(train.images), torch.from_numpy(train.labels)
        self._test = _channels_last(torch.from_numpy(test.images)), torch.from_numpy(test.labels)

    def gradient(self, model: np.ndarray, examples: np.ndarray) -> np.ndarray:
        """Of the mean cross entropy over these examples; flat, float32."""
        parameters = [tensor.requires_grad_() for tensor in _tensors(model)]
        chosen = torch.from_numpy(examples)
        images, labels = _channels_last(self._train[0][chosen]), self._train[1][chosen]
        loss = functional.cross_entropy(_scores(parameters, images), labels)
        gradients = torch.autograd.grad(loss, parameters)
        flat: np.ndarray = torch.cat([gradient.reshape(-1) for gradient in gradients]).numpy()
        return flat

    def accuracy(self, model: np.ndarray) -> float:
        """The share of test images whose label has the largest score."""
        images, labels = self._test
        parameters = _tensors(model)
        right = 0
        with torch.no_grad():
            for start in range(0, len(labels), _TOGETHER):
                scores = _scores(parameters, images[start : start + _TOGETHER])
                right += int((scores.argmax(1) == labels[start : start + _TOGETHER]).sum())
        return right / len(labels)


def _channels_last(images: Tensor) -> Tensor:
    """With one channel both orders are the same bytes; strides decide which one a convolution takes it for.

    With the channels last, torch pools many at a time: a gradient of ten images takes half as long.
    """
    return images.as_strided(images.shape, (28 * 28, 1, 28, 1))


def _tensors(model: np.ndarray) -> list[Tensor]:
    """Views: nothing is copied, and nobody writes to a version."""
    return [torch.from_numpy(view) for view in LAYOUT.views(model).values()]


def _scores(parameters: list[Tensor], images: Tensor) -> Tensor:
    first, first_bias, second, second_bias, full, full_bias, last, last_bias = parameters
    held = _pooled(functional.conv2d(images, first, first_bias, padding=1))
    second = second.contiguous(memory_format=torch.channels_last)
    held = _pooled(functional.conv2d(held, second, second_bias, padding=1))
    held = functional.relu(functional.linear(held.flatten(1), full, full_bias))
    return functional.linear(held, last, last_bias)


def _pooled(held: Tensor) -> Tensor:
    """The largest of each 2 x 2, nothing below zero: the order does not matter, and after pooling there are fewer."""
    return functional.relu(functional.max_pool2d(held.contiguous(memory_format=torch.channels_last), 2))
