"""How a store answers: calls by how long they took, failures, and how long the oldest open call has waited."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shoal.errors import ShoalError
from shoal.store.base import Away
from shoal.store.files import DiskFull

#: The upper bounds of the histogram, in seconds. A commit on a disk takes milliseconds, an object a second.
BOUNDS_S = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Used:
    """The use of a store at one moment, counted since its process started."""

    #: Calls that ended, by the first of ``BOUNDS_S`` that they did not exceed. The last entry counts slower ones.
    counts: tuple[int, ...]
    seconds: float
    errors: int
    #: How long the oldest open call has waited. 0 if none is open.
    waiting_s: float
    #: How long ago the latest call failed, or None if it did not.
    failed_ago_s: float | None


def is_failure(error: BaseException) -> bool:
    """Whether a store raised this about itself. Other errors are about what it was asked for."""
    return isinstance(error, Away | DiskFull) or type(error) is ShoalError


class StoreUsage:
    """Counts the calls to one store, from any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._seconds = 0.0
        self._errors = 0
        #: When the latest call that ended failed, or None if it did not.
        self._failed_s: float | None = None
        self._numbers = itertools.count()
        #: Open calls and when they began.
        self._open: dict[int, float] = {}

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Count one call, from its beginning to its end."""
        began_s = self._clock()
        with self._lock:
            number = next(self._numbers)
            self._open[number] = began_s
        has_failed = False
        try:
            yield
        except BaseException as error:
            has_failed = is_failure(error)
            raise
        finally:
            now_s = self._clock()
            took_s = now_s - began_s
            with self._lock:
                del self._open[number]
                self._counts[bisect.bisect_left(BOUNDS_S, took_s)] += 1
                self._seconds += took_s
                self._errors += has_failed
                self._failed_s = now_s if has_failed else None

    def now(self) -> Used:
        with self._lock:
            now_s = self._clock()
            return Used(
                counts=tuple(self._counts),
                seconds=self._seconds,
                errors=self._errors,
                waiting_s=max(0.0, now_s - min(self._open.values(), default=now_s)),
                failed_ago_s=None if self._failed_s is None else now_s - self._failed_s,
            )
