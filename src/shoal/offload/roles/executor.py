"""The executor: multiplies matrices for its broker, within its limits."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shoal.errors import PeerViolation
from shoal.offload.kinds import check_inputs, digest_of, result_bytes, right_bytes
from shoal.roles.actions import Multiply
from shoal.roles.events import Connected, Disconnected, Event, Multiplied, MultiplyFailed, Received
from shoal.roles.machine import Machine
from shoal.wire.messages import (
    Lend,
    Measure,
    NeedOperand,
    RightOperand,
    Tensors,
    TileResult,
    TileTask,
    clip,
    with_tensors,
)

#: Tasks that may wait here. A broker sends a few ahead, so that the executor never waits for one.
QUEUE_MAX = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """The memory that a device can spare."""

    #: The tensors of one task, and its result.
    task_max_bytes: int
    #: All right sides that it keeps, together.
    rights_max_bytes: int


@dataclass(frozen=True, slots=True)
class _Running:
    number: int
    ask: TileTask | Measure


class Executor(Machine):
    def __init__(self, *, broker: str, means: Means) -> None:
        super().__init__()
        self._broker = broker
        self._means = means
        #: Digest -> a right side, the last used one at the end.
        self._rights: OrderedDict[str, np.ndarray] = OrderedDict()
        self._queue: deque[TileTask | Measure] = deque()
        #: Tasks whose right side is on its way.
        self._waiting: list[TileTask] = []
        self._running: _Running | None = None
        #: Each multiplication has a number of its own: a broker that restarts numbers its tasks from 1 again.
        self._numbers = 0

    def on_event(self, event: Event) -> None:
        match event:
            case Received(message=Measure() as measure):
                self._enqueue(measure)
            case Received(message=TileTask() as task):
                self._on_task(task)
            case Received(message=RightOperand() as right):
                self._on_right(right)
            case Multiplied() if self._running is not None and self._running.number == event.number:
                self._on_multiplied(self._running.ask, event)
            case MultiplyFailed() if self._running is not None and self._running.number == event.number:
                self._on_failed(self._running.ask, event.reason)
            case Connected() | Disconnected():
                # The broker gives the old session's tasks to others; in the next session numbers mean other tasks.
                self._queue.clear()
                self._waiting.clear()
                if self._running is not None:
                    self._running = _Running(self._running.number, _NOBODY)
            case _:
                pass

    # Tasks ----------------------------------------------------------------------------------------------

    def _on_task(self, task: TileTask) -> None:
        why_not = self._why_not(task)
        if why_not is not None:
            self._refuse(task, why_not)
            return
        # The transport reuses the memory of a message for the next one.
        task = _owned(task)
        if task.right and task.right not in self._rights:
            is_asked = any(other.right == task.right for other in self._waiting)
            self._waiting.append(task)
            if not is_asked:
                self.send(self._broker, NeedOperand(right=task.right))
            return
        self._enqueue(task)

    def _why_not(self, task: TileTask) -> str | None:
        """Why this device does not take a task; None if it does."""
        try:
            check_inputs(
                task.kind,
                task.tensors,
                rows=task.rows,
                inner=task.inner,
                columns=task.columns,
                named=bool(task.right),
            )
        except PeerViolation as violation:
            return violation.reason
        means = self._means
        size = max(_bytes_of(task.tensors), result_bytes(task.kind, task.rows, task.columns))
        if size > means.task_max_bytes:
            return f"it takes {size:,} bytes, at most {means.task_max_bytes:,} here: cut lower tiles"
        right = right_bytes(task.kind, task.inner, task.columns)
        if right > means.rights_max_bytes:
            return f"its right side has {right:,} bytes, at most {means.rights_max_bytes:,} are kept here"
        if len(self._queue) + len(self._waiting) >= QUEUE_MAX:
            return f"{QUEUE_MAX} tasks wait here already"
        return None

    def _on_right(self, right: RightOperand) -> None:
        ready = [task for task in self._waiting if task.right == right.right]
        self._waiting = [task for task in self._waiting if task.right != right.right]
        array = right.tensors.get("right")
        if array is None or digest_of(array) != right.right:
            # A product with it would be wrong, and the client would take this device for a liar.
            reason = "the right side that came is not the one that was named"
            self.record("task.refused", reason)
            self._refuse_all(ready, reason)
            return
        if array.nbytes > self._means.rights_max_bytes:
            reason = f"a right side of {array.nbytes:,} bytes, at most {self._means.rights_max_bytes:,} are kept here"
            self._refuse_all(ready, reason)
            return
        self._rights[right.right] = np.array(array)
        self._rights.move_to_end(right.right)
        while sum(kept.nbytes for kept in self._rights.values()) > self._means.rights_max_bytes:
            self._rights.popitem(last=False)
        for task in ready:
            self._enqueue(task)

    def _enqueue(self, ask: TileTask | Measure) -> None:
        self._queue.append(ask)
        self._start_next()

    def _start_next(self) -> None:
        """Start the next multiplication, if none runs: two at a time would only take turns."""
        while self._running is None and self._queue:
            ask = self._queue.popleft()
            tensors: Tensors = {}
            if isinstance(ask, TileTask):
                tensors = ask.tensors
                if ask.right and ask.right not in self._rights:
                    # It was here when the task came, and made room for another since.
                    self._waiting.append(ask)
                    self.send(self._broker, NeedOperand(right=ask.right))
                    continue
                if ask.right:
                    self._rights.move_to_end(ask.right)
                    tensors = {**tensors, "right": self._rights[ask.right]}
            self._numbers += 1
            self._running = _Running(self._numbers, ask)
            self.act(
                Multiply(
                    number=self._numbers,
                    kind=ask.kind if isinstance(ask, TileTask) else "measure",
                    rows=ask.rows,
                    inner=ask.inner,
                    columns=ask.columns,
                    tensors=tensors,
                )
            )

    # Results --------------------------------------------------------------------------------------------

    def _on_multiplied(self, ask: TileTask | Measure, event: Multiplied) -> None:
        self._running = None
        if isinstance(ask, TileTask):
            self.send(self._broker, TileResult(task=ask.task, seconds=event.seconds, tensors=event.tensors))
        elif ask is not _NOBODY:
            lend = Lend(
                number=ask.number,
                seconds=event.seconds,
                task_max_bytes=self._means.task_max_bytes,
                rights_max_bytes=self._means.rights_max_bytes,
            )
            self.send(self._broker, lend)
        self._start_next()

    def _on_failed(self, ask: TileTask | Measure, reason: str) -> None:
        self._running = None
        self.record("task.failed", reason)
        # A measure stays unanswered: the broker gives no tasks to a device that cannot multiply.
        if isinstance(ask, TileTask):
            self._refuse(ask, reason)
        self._start_next()

    def _refuse(self, task: TileTask, reason: str) -> None:
        self.send(self._broker, TileResult(task=task.task, reason=clip(reason)))

    def _refuse_all(self, tasks: Iterable[TileTask], reason: str) -> None:
        for task in tasks:
            self._refuse(task, reason)


#: Stands for a multiplication whose broker is lost: it cannot be stopped, and its result is discarded.
_NOBODY = Measure(number=0, rows=1, inner=1, columns=1)


def _bytes_of(tensors: Tensors) -> int:
    return sum(array.nbytes for array in tensors.values())


def _owned(task: TileTask) -> TileTask:
    owned: TileTask = with_tensors(task, {name: np.array(array) for name, array in task.tensors.items()})
    return owned
