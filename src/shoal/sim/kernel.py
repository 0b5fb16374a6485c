"""A virtual clock and a heap of what is still to happen. Knows nothing of roles, networks or devices."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from shoal.errors import Misuse

Do = Callable[..., object]


class Kernel:
    """Things happen in the order of their time; those of one time in the order they were asked for."""

    __slots__ = ("_heap", "_number", "handled", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        #: How many things happened so far.
        self.handled = 0
        self._number = 0
        self._heap: list[tuple[float, int, Do, tuple[Any, ...]]] = []

    @property
    def next_s(self) -> float:
        """When the next thing happens; never, if nothing is left to happen."""
        return self._heap[0][0] if self._heap else math.inf

    def at(self, when_s: float, do: Do, *args: object) -> None:
        """Have it done at a time, which is not past."""
        # Written so that a NaN, which compares with nothing, is refused too.
        if not when_s >= self.now_s:
            raise Misuse(f"it is {self.now_s} s: nothing can be done at {when_s} s any more")
        self._number = number = self._number + 1
        heappush(self._heap, (when_s, number, do, args))

    def after(self, delay_s: float, do: Do, *args: object) -> None:
        """Have it done so many seconds from now."""
        self.at(self.now_s + delay_s, do, *args)

    def run(self, until: Callable[[], bool], *, limit_s: float, events_max: int | None = None) -> bool:
        """Let time pass until a condition holds, nothing is left to do or a limit is reached. True: it holds."""
        heap, last = self._heap, None if events_max is None else self.handled + events_max
        while not until():
            if not heap or heap[0][0] > limit_s or self.handled == last:
                return False
            self.now_s, _, do, args = heappop(heap)
            self.handled += 1
            do(*args)
        return True
