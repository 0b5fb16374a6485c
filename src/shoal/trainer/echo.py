"""A trainer that does not train: same protocol, a fixed update. It serves to measure all but the training; no torch."""

from __future__ import annotations

import dataclasses
import time

from shoal.trainer import child_loop
from shoal.trainer.protocol import EvalResult, TaskLoaded, TrainerSettings, TrainResult, judged
from shoal.trainer.shared import SharedVectors

#: Every value of every update. A power of two, so that sums and means of updates are exact.
UPDATE_VALUE = 2.0**-20


class EchoTrainer:
    """Answers with the same small vector, after ``pace_s`` per batch. Opens neither the task nor its data."""

    def __init__(self, settings: TrainerSettings, shared: SharedVectors) -> None:
        self._settings = settings
        # Once is enough: nothing else writes there, and the update is the same for every lease.
        shared.update.fill(UPDATE_VALUE)

    def loaded(self) -> TaskLoaded:
        # It reports one batch, which matters only in jobs that train on local examples.
        return TaskLoaded(train_examples=self._settings.batch_size, test_examples=0, seconds=0.0, engine="echo")

    def train(self, epoch: int, batches: list[int], *, rate: float = 0.0, version: int = 0) -> TrainResult:
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        time.sleep(self._settings.pace_s * len(batches))
        examples = len(batches) * self._settings.batch_size
        return TrainResult(
            examples=examples,
            loss_sum=1.0 * examples,
            seconds=time.monotonic() - began_s,
            finite=True,
            cpu_s=time.process_time() - began_cpu_s,
        )

    def learn(self, epoch: int, lease: int, examples: int, *, rate: float = 0.0, version: int = 0) -> TrainResult:
        """Answer as if this device had one batch of local examples."""
        return dataclasses.replace(self.train(epoch, [lease]), held=self._settings.batch_size)

    def evaluate(self, start: int, stop: int) -> EvalResult:
        return judged(examples=stop - start, loss_sum=1.0 * (stop - start), correct=0, seconds=0.0)


if __name__ == "__main__":
    child_loop.main(EchoTrainer)
