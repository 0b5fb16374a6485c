"""The confined process that runs the algorithm of a job for its leader. Run as ``python -m
shoal.trainer.algorithm_child``.

Algorithms work with numpy. PyTorch cannot be imported here, on no node: a leading device may lack it, and a job must
not fail only once such a device leads it.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import BinaryIO

from shoal.errors import Misuse
from shoal.learning.algorithm import hooks_of
from shoal.learning.algorithm_call import answered
from shoal.learning.algorithm_name import HOOKS
from shoal.learning.layout import Layout
from shoal.trainer import child_loop
from shoal.trainer.algorithm_wire import read_question, write_answer
from shoal.trainer.channel import Message
from shoal.trainer.importer import make_algorithm
from shoal.trainer.protocol import EvalResult, TaskLoaded, TrainerSettings, TrainResult
from shoal.trainer.shared import SharedVectors


class AlgorithmRunner:
    def __init__(self, settings: TrainerSettings) -> None:
        began_s = time.monotonic()
        sys.modules["torch"] = None  # type: ignore[assignment]
        try:
            self._algorithm = make_algorithm(Path(settings.bundle_dir), settings.entry)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "torch":
                raise
            file = settings.entry.partition(":")[0]
            raise Misuse(
                f"{file}.py imports PyTorch, which a leading device may lack: put the algorithm into a file of its own"
                " that imports numpy and shoal"
            ) from None
        self._layout = Layout.from_json(settings.arguments["layout"])
        self._seconds = time.monotonic() - began_s

    def loaded(self) -> TaskLoaded:
        hooks = hooks_of(self._algorithm)
        engine = " ".join(["algorithm", *(hook for hook in HOOKS if hook in hooks)])
        return TaskLoaded(train_examples=0, test_examples=0, seconds=self._seconds, engine=engine)

    def consult(self, message: Message, memory: BinaryIO) -> Message:
        fd = memory.fileno()
        question, state = read_question(message, fd, self._layout)
        return write_answer(answered(self._algorithm, self._layout, question, state), fd, int(message["answer_at"]))

    def train(self, epoch: int, batches: list[int], *, rate: float = 0.0, version: int = 0) -> TrainResult:
        raise Misuse("an algorithm's process does not train")

    def evaluate(self, start: int, stop: int) -> EvalResult:
        raise Misuse("an algorithm's process does not evaluate")


def build(settings: TrainerSettings, shared: SharedVectors) -> child_loop.Trainer:
    return AlgorithmRunner(settings)


if __name__ == "__main__":
    child_loop.main(build)
