"""A deadline that moves often and is hardly ever reached. Knows an event loop, and nothing of what is waited for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Watchdog:
    """Calls back when a deadline passes, with one timer for a whole row of deadlines.

    ``asyncio.timeout`` makes a timer and drops it each time. Here a timer that fires looks whether its deadline was
    moved meanwhile, and is set again if so.
    """

    __slots__ = ("_due_s", "_loop", "_on_due", "_timer")

    def __init__(self, on_due: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_due = on_due
        self._due_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def expect_by(self, due_s: float) -> None:
        """Call back at this time of the event loop, unless it is moved or taken back before."""
        self._due_s = due_s
        timer = self._timer
        if timer is None or timer.when() > due_s:
            self._set(due_s)

    def rest(self) -> None:
        """Nothing is waited for now."""
        self._due_s = math.inf

    def stop(self) -> None:
        """Nothing is waited for any more: the event loop need not keep this object."""
        self._due_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._due_s == math.inf:
            return
        if self._loop.time() < self._due_s:
            self._set(self._due_s)
            return
        self._due_s = math.inf
        self._on_due()
