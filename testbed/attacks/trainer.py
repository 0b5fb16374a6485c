"""What is attacked: a small network that learns for real, with numpy, and stands beside a cliff. No torch.

Run in place of the real trainer with ``--child-module testbed.attacks.trainer``: it starts in a moment. ``EDGE`` is
a parameter that honest training never moves. Below zero, inputs are turned round and multiplied by up to e^60: then the
model is wrong, and every update of every honest device has an infinite norm, as happens to any deep network whose
weights one bad update made huge. Farther below, nothing is a number any more.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from pathlib import Path

import numpy as np

from shoal.learning.layout import Layout
from shoal.scheduling.batches import batch_indices, epoch_order
from shoal.trainer import child_loop
from shoal.trainer.package import ReadyTask
from shoal.trainer.prepared_job import LAYOUT_NOTE, PreparedJob
from shoal.trainer.protocol import EvalResult, TaskLoaded, TrainerSettings, TrainResult, judged
from shoal.trainer.shards import Examples, as_pair, write_shards
from shoal.trainer.shared import SharedVectors
from shoal.wire import tensors
from testbed.echo_job import echo_job
from testbed.paced_digits import Array, descend, outputs_of

MODULE = "testbed.attacks.trainer"

INPUTS, HIDDEN, CLASSES = 20, 32, 4
BATCH_SIZE, BATCHES, TEST_EXAMPLES = 32, 100, 400
LEARNING_RATE = 0.05

#: Where the edge is at first, how steep it is beyond, and from where on nothing is a number. An honest update has a
#: norm of about 0.02: what pushes a model over is not large.
EDGE = "edge"
EDGE_AT = 0.01
STEEPNESS, STEEPEST = 6000.0, 60.0
VOID_AT = -0.06

LAYOUT = Layout.of(
    [
        ("hidden.weight", (INPUTS, HIDDEN), "parameter"),
        ("hidden.bias", (HIDDEN,), "parameter"),
        ("out.weight", (HIDDEN, CLASSES), "parameter"),
        ("out.bias", (CLASSES,), "parameter"),
        (EDGE, (1,), "parameter"),
    ]
)


def points_job(folder: Path, *, seed: int = 0) -> ReadyTask:
    """A job of clouds of points, one cloud a class."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(seed)
    flat = np.zeros(LAYOUT.size, np.float32)
    views = LAYOUT.views(flat)
    for name, inputs in (("hidden.weight", INPUTS), ("out.weight", HIDDEN)):
        views[name][...] = chance.normal(0, inputs**-0.5, views[name].shape)
    views[EDGE][...] = EDGE_AT
    model = folder / "model.safetensors"
    with model.open("wb") as file:
        tensors.write(file, views, {LAYOUT_NOTE: LAYOUT.to_json()})
    centres = chance.normal(0, 1.0, (CLASSES, INPUTS))
    y = chance.integers(0, CLASSES, BATCHES * BATCH_SIZE + TEST_EXAMPLES)
    x = (centres[y] + chance.normal(0, 1.0, (len(y), INPUTS))).astype(np.float32)
    prepared = PreparedJob(
        model=str(model),
        model_sha256=hashlib.sha256(model.read_bytes()).hexdigest(),
        layout=LAYOUT,
        train=write_shards(x[:-TEST_EXAMPLES], y[:-TEST_EXAMPLES], folder / "shards"),
        test=write_shards(x[-TEST_EXAMPLES:], y[-TEST_EXAMPLES:], folder / "shards"),
        shards=str(folder / "shards"),
        plan={"batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE},
    )
    empty = folder / "empty"
    empty.mkdir(exist_ok=True)
    return dataclasses.replace(echo_job(empty, values=1, batches=1), name="points", prepared=prepared)


def settings_of(ready: ReadyTask) -> TrainerSettings:
    """What a trainer of this job is told, for one that is run by hand."""
    return TrainerSettings(
        bundle_dir="",
        entry=ready.entry,
        arguments={},
        train=tuple(ready.prepared.paths(ready.prepared.train)),
        test=tuple(ready.prepared.paths(ready.prepared.test)),
        layout=LAYOUT,
        seed=0,
        batch_size=BATCH_SIZE,
        learning_rate=LEARNING_RATE,
    )


def over_the_edge() -> Array:
    """An update of the size that is usual here, after which all others are infinite."""
    return _pushed(-0.05)


def into_the_void() -> Array:
    """A somewhat larger one, after which nobody can train at all."""
    return _pushed(-0.15)


def _pushed(by: float) -> Array:
    delta = np.zeros(LAYOUT.size, np.float32)
    LAYOUT.views(delta)[EDGE][...] = by
    return delta


class PointsTrainer:
    def __init__(self, settings: TrainerSettings, shared: SharedVectors) -> None:
        self._settings = settings
        self._shared = shared
        self._train = Examples(settings.train)
        self._test = Examples(settings.test)

    def loaded(self) -> TaskLoaded:
        return TaskLoaded(train_examples=len(self._train), test_examples=len(self._test), seconds=0.0, engine="numpy")

    def train(self, epoch: int, batches: list[int], *, rate: float = 0.0, version: int = 0) -> TrainResult:
        began_s = time.monotonic()
        rate = rate or self._settings.learning_rate
        trained = np.array(self._shared.model)
        model = LAYOUT.views(trained)
        order = epoch_order(len(self._train), seed=self._settings.seed, epoch=epoch)
        examples, loss_sum = 0, 0.0
        with np.errstate(all="ignore"):
            for batch in batches:
                x, y = as_pair(self._train.take(batch_indices(order, batch, self._settings.batch_size)))
                loss_sum += len(y) * descend(model, seen(model, x), y, learning_rate=rate)
                examples += len(y)
            np.subtract(trained, self._shared.model, out=self._shared.update)
        time.sleep(max(0.0, began_s + self._settings.pace_s * len(batches) - time.monotonic()))
        finite = bool(np.isfinite(self._shared.update).all()) and bool(np.isfinite(loss_sum))
        return TrainResult(examples=examples, loss_sum=loss_sum, seconds=time.monotonic() - began_s, finite=finite)

    def evaluate(self, start: int, stop: int) -> EvalResult:
        x, y = as_pair(self._test.slice(start, stop))
        model = LAYOUT.views(np.array(self._shared.model))
        with np.errstate(all="ignore"):
            _, logs = outputs_of(model, seen(model, x))
        loss_sum = float(-np.nan_to_num(logs[np.arange(len(y)), y], nan=-1e6, neginf=-1e6).sum())
        return judged(examples=len(y), loss_sum=loss_sum, correct=int((logs.argmax(axis=1) == y).sum()), seconds=0.0)


def seen(model: dict[str, Array], x: Array) -> Array:
    """The inputs as the network sees them from where its edge is."""
    edge = float(model[EDGE][0])
    factor = math.exp(min(STEEPEST, STEEPNESS * max(0.0, -edge))) if edge > VOID_AT else math.nan
    scaled: Array = (x * (factor if edge >= 0 else -factor)).astype(np.float32)
    return scaled


if __name__ == "__main__":
    child_loop.main(PointsTrainer)
