"""A trainer as slow as its device: trains the real task with torch, then waits until its device would be done.

Run in place of the real one with ``--child-module testbed.paced``, so that a machine with few cores can stand for many
devices. The model, the losses and the updates are those of the real trainer; only the time is another's. Evaluation is
not padded. Where the machine itself takes longer than the pace, the lease takes that long, and the log says so.

The pace is the agent's ``--pace-s``; if the environment names a directory, the file ``pace`` in it is read again for
each lease, so that a device can become slower or quicker while it works.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from shoal.trainer import child, child_loop
from shoal.trainer.protocol import EvalResult, TaskLoaded, TrainerSettings, TrainResult
from shoal.trainer.shared import SharedVectors

#: The same as that of ``paced_digits``: a cluster can run either.
DEVICE_VARIABLE = "SHOAL_PACED_DEVICE"


def set_pace(directory: Path, pace_s: float) -> None:
    """From its next lease on, the device whose directory this is takes so long a batch."""
    draft = directory / "pace.new"
    draft.write_text(str(pace_s))
    draft.replace(directory / "pace")


class Paced:
    """Any trainer, padded to a pace."""

    def __init__(self, trainer: child_loop.Trainer, *, pace_s: float, directory: Path | None) -> None:
        self._trainer = trainer
        self._pace_s = pace_s
        self._directory = directory

    def loaded(self) -> TaskLoaded:
        loaded = self._trainer.loaded()
        return replace(loaded, engine=f"{loaded.engine}, paced")

    def train(self, epoch: int, batches: list[int], *, rate: float = 0.0, version: int = 0) -> TrainResult:
        began_s = time.monotonic()
        result = self._trainer.train(epoch, batches, rate=rate, version=version)
        wanted_s = self._pace() * len(batches)
        left_s = began_s + wanted_s - time.monotonic()
        if wanted_s and left_s < 0:
            print(f"{-left_s:.3f} s behind a pace of {wanted_s:.3f} s: this machine is too busy", file=sys.stderr)
        time.sleep(max(0.0, left_s))
        return replace(result, seconds=time.monotonic() - began_s)

    def evaluate(self, start: int, stop: int) -> EvalResult:
        return self._trainer.evaluate(start, stop)

    def _pace(self) -> float:
        if self._directory is None:
            return self._pace_s
        try:
            return float((self._directory / "pace").read_text())
        except FileNotFoundError:
            return self._pace_s


def build(settings: TrainerSettings, shared: SharedVectors) -> child_loop.Trainer:
    directory = os.environ.get(DEVICE_VARIABLE)
    trainer = child.build(settings, shared)
    return Paced(trainer, pace_s=settings.pace_s, directory=Path(directory) if directory else None)


if __name__ == "__main__":
    child_loop.main(build)
