"""A trainer whose every batch draws the model towards one point, with noise of the batch's own. Light; no torch.

Run in place of the real one with ``--child-module pull_trainer``. An evaluation counts the values that are there.
"""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from shoal.trainer import child_loop
from shoal.trainer.protocol import EvalResult, TaskLoaded, TrainerSettings, TrainResult, judged
from shoal.trainer.shared import SharedVectors

RATE = 0.05
NOISE = 0.2
#: A value this close to its place counts as right.
CLOSE = 0.2


class PullTrainer:
    def __init__(self, settings: TrainerSettings, shared: SharedVectors) -> None:
        self._settings = settings
        self._shared = shared
        self._point = np.sin(np.arange(shared.model.size)).astype(np.float32)

    def loaded(self) -> TaskLoaded:
        return TaskLoaded(train_examples=self._settings.batch_size, test_examples=0, seconds=0.0, engine="pull")

    def train(self, epoch: int, batches: list[int], *, rate: float = 0.0, version: int = 0) -> TrainResult:
        began_s = time.monotonic()
        noise = np.random.default_rng([epoch, *batches]).normal(0, NOISE, self._point.size)
        self._shared.update[:] = RATE * (self._point + noise - self._shared.model)
        examples = len(batches) * self._settings.batch_size
        return TrainResult(examples=examples, loss_sum=1.0 * examples, seconds=time.monotonic() - began_s, finite=True)

    def learn(self, epoch: int, lease: int, examples: int, *, rate: float = 0.0, version: int = 0) -> TrainResult:
        """As if this device had one batch of its own."""
        return dataclasses.replace(self.train(epoch, [lease]), held=self._settings.batch_size)

    def evaluate(self, start: int, stop: int) -> EvalResult:
        right = float((np.abs(self._shared.model - self._point) < CLOSE).mean())
        return judged(examples=stop - start, loss_sum=0.0, correct=int(right * (stop - start)), seconds=0.0)


if __name__ == "__main__":
    child_loop.main(PullTrainer)
