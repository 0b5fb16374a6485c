"""MNIST as AdaComp has it: each image to mean 0 and deviation 1, dealt out to workers. Numpy only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.data.digits import mnist


@dataclass(frozen=True, kw_only=True, slots=True)
class Digits:
    #: N x 1 x 28 x 28, float32.
    images: np.ndarray
    labels: np.ndarray


def digits(split: str) -> Digits:
    images, labels = mnist(split)
    return Digits(images=standardised(images), labels=labels)


def standardised(images: np.ndarray) -> np.ndarray:
    """(x - mean) / max(deviation, 1/√N) of each image alone, as the paper's framework does it."""
    flat = images.reshape(len(images), -1).astype(np.float32)
    least = 1 / np.sqrt(flat.shape[1])
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.maximum(flat.std(axis=1, keepdims=True), np.float32(least))
    return flat.reshape(images.shape)


def dealt(examples: int, workers: int, *, used: int, seed: int) -> list[np.ndarray]:
    """Which examples each worker has: ``used`` of all, drawn once, in equal hands."""
    order = np.random.default_rng([seed, 1]).permutation(examples)[:used]
    each = used // workers
    return [order[number * each : (number + 1) * each] for number in range(workers)]
