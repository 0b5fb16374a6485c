"""The real trainer, which also writes each update that it makes into its device's folder, for a test to compare. Run
with ``--child-module dumping_trainer``."""

from __future__ import annotations

import json
from typing import Any

import shoal
from shoal.trainer import child_loop
from shoal.trainer.child import build
from shoal.trainer.protocol import TrainerSettings, TrainResult
from shoal.trainer.shared import SharedVectors

FILE = "updates"


def dumping(settings: TrainerSettings, shared: SharedVectors) -> Any:
    trainer: Any = build(settings, shared)
    learn = trainer.learn

    def noted(*arguments: Any, **named: Any) -> TrainResult:
        result: TrainResult = learn(*arguments, **named)
        with (shoal.data.local_folder() / FILE).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps([float(value) for value in shared.update]) + "\n")
        return result

    trainer.learn = noted
    return trainer


if __name__ == "__main__":
    child_loop.main(dumping)
