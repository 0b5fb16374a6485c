"""A leading node's side of its algorithm's process: starts it, asks it, ends it. No torch; all waits end."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

from shoal.errors import ShoalError
from shoal.learning.algorithm import AlgorithmState
from shoal.learning.algorithm_call import AlgorithmAnswer, Question
from shoal.learning.algorithm_name import HOOKS, AlgorithmName
from shoal.learning.layout import Layout
from shoal.plan import Plan
from shoal.trainer.algorithm_wire import read_answer, write_question
from shoal.trainer.bundle import unpack
from shoal.trainer.host import TrainerHost
from shoal.trainer.processors import ALGORITHM_MODULE
from shoal.trainer.protocol import TrainerError, TrainerSettings

#: An algorithm that takes longer has failed: the leader does nothing else meanwhile.
ANSWER_TIMEOUT_S = 60.0
#: It imports numpy and the algorithm's file, and no PyTorch.
START_TIMEOUT_S = 60.0
#: A process that died is started again this often per question: it asked for nothing that lasts.
ATTEMPTS = 2


class AlgorithmHost:
    """Runs the algorithm that a plan names, from the code of its job, in one confined process at a time."""

    def __init__(self, plan: Plan, bundle: bytes, layout: Layout) -> None:
        self._plan, self._bundle, self._layout = plan, bundle, layout
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process = TrainerHost(child_module=ALGORITHM_MODULE, start_timeout_s=START_TIMEOUT_S)

    @property
    def pid(self) -> int | None:
        return self._process.pid

    async def hooks(self) -> frozenset[str]:
        """Return the methods that the algorithm has. Raises TrainerError if it cannot be built."""
        return frozenset(await self._start())

    async def ask(self, question: Question, state: AlgorithmState) -> AlgorithmAnswer:
        """Raises ShoalError if there is no answer, or none that can be read."""
        for attempt in range(1, ATTEMPTS + 1):
            began_s = time.monotonic()
            try:
                return await self._ask(question, state)
            except TrainerError as error:
                # What the code itself said, it would say again; and it would hang again.
                took_s = time.monotonic() - began_s
                if attempt == ATTEMPTS or error.traceback or self._process.alive or took_s >= ANSWER_TIMEOUT_S:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def close(self) -> None:
        await self._process.stop()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    async def _ask(self, question: Question, state: AlgorithmState) -> AlgorithmAnswer:
        if not self._process.alive:
            await self._start()
        message, fd = await asyncio.to_thread(write_question, question, state, self._layout)
        try:
            told = await self._process.consult(message, fd, timeout_s=ANSWER_TIMEOUT_S)
            at = int(message["answer_at"])
            return await asyncio.to_thread(read_answer, told, question, fd, at, self._layout)
        except TrainerError:
            raise
        except ShoalError:
            # It breaks the protocol: later answers are not trusted.
            await self._process.kill()
            raise
        finally:
            os.close(fd)

    async def _start(self) -> list[str]:
        await self._process.kill()
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="shoal-algorithm-")
            await asyncio.to_thread(unpack, self._bundle, Path(self._folder.name, "code"))
        settings = TrainerSettings.of_plan(
            self._plan,
            bundle_dir=str(Path(self._folder.name, "code")),
            entry=AlgorithmName.parse(self._plan.algorithm).entry,
            # Its arrays come with each question; the memory that trainers share has the least size.
            arguments={"layout": self._layout.to_json()},
            layout=Layout.of([("none", (1,), "parameter")]),
            train=(),
        )
        engine = (await self._process.start(settings)).engine.split()
        return [hook for hook in HOOKS if hook in engine[1:]]
