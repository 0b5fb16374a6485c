"""A trainer as quick as its device: learns digits for real, with numpy, and pads each batch to a set time. No torch.

Run in place of the real one with ``--child-module testbed.paced_digits``, so that a machine with few cores can
stand for several devices. The model is a network of one hidden layer, and beside it a *tally*: one value a batch, which
says with what weight that batch went into the model. A history could be wrong about the model; the tally cannot.

The agent's environment names a directory, in which ``pace`` holds the seconds a batch takes, ``start`` those that
loading takes, and ``hang`` makes the next lease never return.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from shoal.learning.layout import Layout
from shoal.scheduling.batches import batch_indices, epoch_order
from shoal.trainer import child_loop
from shoal.trainer.protocol import EvalResult, TaskLoaded, TrainerSettings, TrainResult, judged
from shoal.trainer.shards import Examples, as_pair
from shoal.trainer.shared import SharedVectors

DEVICE_VARIABLE = "SHOAL_PACED_DEVICE"
TALLY = "tally"
PIXELS, HIDDEN, CLASSES = 784, 32, 10

Array = np.ndarray[Any, Any]


def layout_for(batches: int) -> Layout:
    """The network and the tally of an epoch of this many batches."""
    return Layout.of(
        [
            ("hidden.weight", (PIXELS, HIDDEN), "parameter"),
            ("hidden.bias", (HIDDEN,), "parameter"),
            ("out.weight", (HIDDEN, CLASSES), "parameter"),
            ("out.bias", (CLASSES,), "parameter"),
            (TALLY, (batches,), "parameter"),
        ]
    )


def first_model(layout: Layout, seed: int) -> Array:
    chance = np.random.default_rng(seed)
    flat = np.zeros(layout.size, np.float32)
    views = layout.views(flat)
    for name, inputs in (("hidden.weight", PIXELS), ("out.weight", HIDDEN)):
        views[name][...] = chance.normal(0, inputs**-0.5, views[name].shape)
    return flat


def outputs_of(model: dict[str, Array], x: Array) -> tuple[Array, Array]:
    """What the hidden layer gives, and the log-probabilities of the classes."""
    hidden = np.maximum(x @ model["hidden.weight"] + model["hidden.bias"], 0)
    logits = hidden @ model["out.weight"] + model["out.bias"]
    logits -= logits.max(axis=1, keepdims=True)
    return hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def descend(model: dict[str, Array], x: Array, y: Array, *, learning_rate: float) -> float:
    """One step of gradient descent, in place; the mean loss before it."""
    hidden, logs = outputs_of(model, x)
    rows = np.arange(len(y))
    slope = np.exp(logs)
    slope[rows, y] -= 1
    slope /= len(y)
    back = (slope @ model["out.weight"].T) * (hidden > 0)
    steps = {
        "out.weight": hidden.T @ slope,
        "out.bias": slope.sum(axis=0),
        "hidden.weight": x.T @ back,
        "hidden.bias": back.sum(axis=0),
    }
    for name, gradient in steps.items():
        model[name] -= learning_rate * gradient
    return float(-logs[rows, y].mean())


class PacedTrainer:
    def __init__(self, settings: TrainerSettings, shared: SharedVectors) -> None:
        self._settings = settings
        self._shared = shared
        self._device = Path(os.environ[DEVICE_VARIABLE])
        self._train = Examples(settings.train)
        self._test = Examples(settings.test)
        self._order: tuple[int, Array] = (-1, np.zeros(0, np.int64))
        time.sleep(self._number("start"))

    def loaded(self) -> TaskLoaded:
        return TaskLoaded(
            train_examples=len(self._train), test_examples=len(self._test), seconds=0.0, engine="numpy, paced"
        )

    def train(self, epoch: int, batches: list[int], *, rate: float = 0.0, version: int = 0) -> TrainResult:
        began_s = time.monotonic()
        self._hang_if_told()
        trained = np.array(self._shared.model)
        model = self._settings.layout.views(trained)
        examples, loss_sum = 0, 0.0
        for batch in batches:
            indices = batch_indices(self._order_of(epoch), batch, self._settings.batch_size)
            x, y = self._inputs(*as_pair(self._train.take(indices)))
            loss_sum += len(y) * descend(model, x, y, learning_rate=rate or self._settings.learning_rate)
            examples += len(y)
        model[TALLY][batches] += 1
        np.subtract(trained, self._shared.model, out=self._shared.update)
        # Read anew for each lease: who started this device may let it run.
        until_s = began_s + self._number("pace") * len(batches)
        time.sleep(max(0.0, until_s - time.monotonic()))
        finite = bool(np.isfinite(self._shared.update).all())
        return TrainResult(examples=examples, loss_sum=loss_sum, seconds=time.monotonic() - began_s, finite=finite)

    def evaluate(self, start: int, stop: int) -> EvalResult:
        began_s = time.monotonic()
        x, y = self._inputs(*as_pair(self._test.slice(start, stop)))
        _, logs = outputs_of(self._settings.layout.views(np.array(self._shared.model)), x)
        return judged(
            examples=len(y),
            loss_sum=float(-logs[np.arange(len(y)), y].sum()),
            correct=int((logs.argmax(axis=1) == y).sum()),
            seconds=time.monotonic() - began_s,
        )

    def _hang_if_told(self) -> None:
        marker = self._device / "hang"
        if marker.exists():
            marker.unlink()
            while True:
                time.sleep(3600)

    def _number(self, name: str) -> float:
        try:
            return float((self._device / name).read_text())
        except FileNotFoundError:
            return 0.0

    def _inputs(self, x: Array, y: Array) -> tuple[Array, Array]:
        return x.reshape(len(x), PIXELS).astype(np.float32) / 255, y

    def _order_of(self, epoch: int) -> Array:
        if self._order[0] != epoch:
            self._order = (epoch, epoch_order(len(self._train), seed=self._settings.seed, epoch=epoch))
        return self._order[1]


if __name__ == "__main__":
    child_loop.main(PacedTrainer)
