"""Measures how late an event loop runs what is due. Whoever is told of each turn knows that the loop is alive."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

#: How often the loop is asked to turn, and for how long a delay counts as the worst.
TURN_EVERY_S = 0.5
WORST_WITHIN_S = 60.0


class LoopWatch:
    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: When the loop last turned, and how late the turns of the last minute were.
        self._turned_s = clock()
        self._late: deque[tuple[float, float]] = deque()
        #: Called in the loop at each turn. Must not block.
        self.on_turn: list[Callable[[], object]] = []

    async def run(self) -> None:
        while True:
            due_s = self._clock() + TURN_EVERY_S
            await asyncio.sleep(TURN_EVERY_S)
            self.turned(self._clock() - due_s)
            for tell in self.on_turn:
                tell()

    def turned(self, late_s: float) -> None:
        """Note a turn of the loop that came this much later than it was due."""
        self._turned_s = now_s = self._clock()
        self._late.append((now_s, max(0.0, late_s)))
        while self._late[0][0] < now_s - WORST_WITHIN_S:
            self._late.popleft()

    @property
    def still_s(self) -> float:
        """How long ago the loop last turned."""
        return self._clock() - self._turned_s

    @property
    def worst_s(self) -> float:
        """The longest delay within the last minute, or the one that lasts."""
        return max((self.still_s - TURN_EVERY_S, *(late_s for _, late_s in tuple(self._late)), 0.0))
