"""A virtual clock and a heap of scheduled calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from shoal.errors import Misuse

Do = Callable[..., object]


class Kernel:
    """Makes calls in the order of their times, and those of one time in the order in which they were scheduled."""

    __slots__ = ("_heap", "_number", "handled", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        #: How many calls were made.
        self.handled = 0
        self._number = 0
        self._heap: list[tuple[float, int, Do, tuple[Any, ...]]] = []

    @property
    def next_s(self) -> float:
        """The time of the next call, or infinity if none is left."""
        return self._heap[0][0] if self._heap else math.inf

    def at(self, when_s: float, do: Do, *args: object) -> None:
        """Schedule a call at a time that is not past."""
        # Written so that a NaN, which compares with nothing, is refused too.
        if not when_s >= self.now_s:
            raise Misuse(f"it is {self.now_s} s: nothing can be done at {when_s} s any more")
        self._number = number = self._number + 1
        heappush(self._heap, (when_s, number, do, args))

    def after(self, delay_s: float, do: Do, *args: object) -> None:
        """Schedule a call in ``delay_s`` seconds."""
        self.at(self.now_s + delay_s, do, *args)

    def run(self, until: Callable[[], bool], *, limit_s: float, events_max: int | None = None) -> bool:
        """Let time pass until a condition holds, no call is left or a limit is reached. Return whether it holds."""
        heap, last = self._heap, None if events_max is None else self.handled + events_max
        while not until():
            if not heap or heap[0][0] > limit_s or self.handled == last:
                return False
            self.now_s, _, do, args = heappop(heap)
            self.handled += 1
            do(*args)
        return True
