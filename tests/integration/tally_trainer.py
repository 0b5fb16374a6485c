"""A trainer whose model counts: value b says how often, and with what weight, batch b went into it. No torch.

Run in place of the real one with ``--child-module tally_trainer``. A registry could be wrong about what the model
holds; this model cannot.
"""

from __future__ import annotations

import time
from pathlib import Path

from shoal.trainer import child_loop
from shoal.trainer.protocol import EvalResult, TaskLoaded, TrainerSettings, TrainResult, judged
from shoal.trainer.shared import SharedVectors


class TallyTrainer:
    def __init__(self, settings: TrainerSettings, shared: SharedVectors) -> None:
        self._settings = settings
        self._shared = shared

    def loaded(self) -> TaskLoaded:
        return TaskLoaded(train_examples=0, test_examples=0, seconds=0.0, engine="tally")

    def train(self, epoch: int, batches: list[int], *, rate: float = 0.0, version: int = 0) -> TrainResult:
        # Read anew for each lease: a test slows training down for a fault and lets it run once it has seen enough.
        pace_s = max(self._settings.pace_s, float(Path(self._settings.arguments["pace"]).read_text()))
        time.sleep(pace_s * len(batches))
        self._shared.update.fill(0)
        self._shared.update[batches] = 1
        examples = len(batches) * self._settings.batch_size
        return TrainResult(examples=examples, loss_sum=1.0 * examples, seconds=pace_s, finite=True)

    def evaluate(self, start: int, stop: int) -> EvalResult:
        return judged(examples=stop - start, loss_sum=1.0 * (stop - start), correct=0, seconds=0.0)


if __name__ == "__main__":
    child_loop.main(TallyTrainer)
