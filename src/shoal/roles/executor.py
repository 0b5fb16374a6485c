"""The executor: multiplies what its scheduler sends, within its means. Knows no analyst, and not what numbers mean."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from shoal.errors import PeerViolation
from shoal.offload.kinds import check_inputs, digest_of, result_bytes, right_bytes
from shoal.roles.actions import Action, Multiply, Record, Send
from shoal.roles.events import Connected, Disconnected, Event, Multiplied, MultiplyFailed, Received
from shoal.wire.messages import Lend, Measure, NeedRight, Result, Right, Task, Tensors, clip, with_tensors

#: Tasks that may wait here. A scheduler sends a few ahead, so that none is waited for.
QUEUE_MAX = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Means:
    """What a device can spare."""

    #: The tensors of one task, and its result.
    task_max_bytes: int
    #: All right sides that it keeps.
    rights_max_bytes: int


@dataclass(frozen=True, slots=True)
class _Running:
    number: int
    ask: Task | Measure


class Executor:
    def __init__(self, *, scheduler: str, means: Means) -> None:
        self._scheduler = scheduler
        self._means = means
        #: Digest -> a right side, the one that was used last at the end.
        self._rights: OrderedDict[str, np.ndarray] = OrderedDict()
        self._queue: deque[Task | Measure] = deque()
        #: Tasks whose right side is on its way.
        self._waiting: list[Task] = []
        self._running: _Running | None = None
        #: Each multiplication has a number of its own: a scheduler that restarts numbers its tasks anew.
        self._numbers = 0

    def handle(self, event: Event, now_s: float) -> list[Action]:
        match event:
            case Received(message=Measure() as measure):
                return self._take(measure)
            case Received(message=Task() as task):
                return self._on_task(task)
            case Received(message=Right() as right):
                return self._on_right(right)
            case Multiplied() if self._running is not None and self._running.number == event.number:
                return self._done(self._running.ask, event)
            case MultiplyFailed() if self._running is not None and self._running.number == event.number:
                return self._failed(self._running.ask, event.reason)
            case Connected() | Disconnected():
                # Whoever asked is gone, and gives it to others; the numbers of the next mean other tasks.
                self._queue.clear()
                self._waiting.clear()
                if self._running is not None:
                    self._running = _Running(self._running.number, _NOBODY)
                return []
            case _:
                return []

    # Tasks ----------------------------------------------------------------------------------------------

    def _on_task(self, task: Task) -> list[Action]:
        why_not = self._why_not(task)
        if why_not:
            return self._refuse(task, why_not)
        # The memory it came in is used again for the next.
        task = _owned(task)
        if task.right and task.right not in self._rights:
            asked = any(other.right == task.right for other in self._waiting)
            self._waiting.append(task)
            return [] if asked else [Send(to=self._scheduler, message=NeedRight(right=task.right))]
        return self._take(task)

    def _why_not(self, task: Task) -> str:
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
        return ""

    def _on_right(self, right: Right) -> list[Action]:
        ready = [task for task in self._waiting if task.right == right.right]
        self._waiting = [task for task in self._waiting if task.right != right.right]
        array = right.tensors.get("right")
        if array is None or digest_of(array) != right.right:
            # Multiplied by it, this device would pass for a liar.
            reason = "the right side that came is not the one that was named"
            return [Record(kind="refused", reason=reason), *self._refuse_all(ready, reason)]
        if array.nbytes > self._means.rights_max_bytes:
            reason = f"a right side of {array.nbytes:,} bytes, at most {self._means.rights_max_bytes:,} are kept here"
            return self._refuse_all(ready, reason)
        self._rights[right.right] = np.array(array)
        self._rights.move_to_end(right.right)
        while sum(kept.nbytes for kept in self._rights.values()) > self._means.rights_max_bytes:
            self._rights.popitem(last=False)
        actions: list[Action] = []
        for task in ready:
            actions += self._take(task)
        return actions

    def _take(self, ask: Task | Measure) -> list[Action]:
        self._queue.append(ask)
        return self._next()

    def _next(self) -> list[Action]:
        """One at a time: two would only take turns."""
        while self._running is None and self._queue:
            ask = self._queue.popleft()
            tensors: Tensors = {}
            if isinstance(ask, Task):
                tensors = ask.tensors
                if ask.right and ask.right not in self._rights:
                    # It was here when the task came, and had to go for another's.
                    self._waiting.append(ask)
                    return [Send(to=self._scheduler, message=NeedRight(right=ask.right)), *self._next()]
                if ask.right:
                    self._rights.move_to_end(ask.right)
                    tensors = {**tensors, "right": self._rights[ask.right]}
            self._numbers += 1
            self._running = _Running(self._numbers, ask)
            return [
                Multiply(
                    number=self._numbers,
                    kind=ask.kind if isinstance(ask, Task) else "measure",
                    rows=ask.rows,
                    inner=ask.inner,
                    columns=ask.columns,
                    tensors=tensors,
                )
            ]
        return []

    # What came of it ------------------------------------------------------------------------------------

    def _done(self, ask: Task | Measure, event: Multiplied) -> list[Action]:
        self._running = None
        if ask is _NOBODY:
            return self._next()
        if isinstance(ask, Measure):
            lend = Lend(
                number=ask.number,
                seconds=event.seconds,
                task_max_bytes=self._means.task_max_bytes,
                rights_max_bytes=self._means.rights_max_bytes,
            )
            return [Send(to=self._scheduler, message=lend), *self._next()]
        result = Result(task=ask.task, seconds=event.seconds, tensors=event.tensors)
        return [Send(to=self._scheduler, message=result), *self._next()]

    def _failed(self, ask: Task | Measure, reason: str) -> list[Action]:
        self._running = None
        told: list[Action] = [Record(kind="failed", reason=reason)]
        # A measure without an answer: nothing is sent here, which is right for one that cannot multiply.
        if isinstance(ask, Task):
            told += self._refuse(ask, reason)
        return [*told, *self._next()]

    def _refuse(self, task: Task, reason: str) -> list[Action]:
        return [Send(to=self._scheduler, message=Result(task=task.task, reason=clip(reason)))]

    def _refuse_all(self, tasks: Iterable[Task], reason: str) -> list[Action]:
        return [action for task in tasks for action in self._refuse(task, reason)]


#: What is running when its scheduler is gone: it is of no use to anyone, and cannot be stopped.
_NOBODY = Measure(number=0, rows=1, inner=1, columns=1)


def _bytes_of(tensors: Tensors) -> int:
    return sum(array.nbytes for array in tensors.values())


def _owned(task: Task) -> Task:
    owned: Task = with_tensors(task, {name: np.array(array) for name, array in task.tensors.items()})
    return owned
