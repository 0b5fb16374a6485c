"""The executors of a broker: the speed, the tasks and the record of each.

The broker measures speed by its own clock and does not use the speed that an executor reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.offload import shares
from shoal.wire.limits import SECONDS_MAX
from shoal.wire.messages import ExecutorView, Lend, Measure, clip

#: A product of almost no work measures only the latency. The first ones also start the child that multiplies.
SMALLEST_SIDE = 16
SMALLEST_TIMES = 3
#: Then cubes of these sides, until one takes long enough to tell a rate from a delay.
SIDES = (128, 256, 512, 1024)
LONG_ENOUGH_S = 0.05

#: Tasks that an executor has at a time: one to work on, one on its way meanwhile.
SLOTS = 2

#: Results in a row that took half or twice as long as expected, after which it is measured again.
SURPRISES_MAX = 3
SURPRISING = 2.0

#: The assumed rate of a link until a task has shown it: a wired network's.
LINK_BYTES_PER_S = 1e8

#: The lowest rate: quotients by it stay finite.
LEAST_PER_S = 1e3


@dataclass(slots=True)
class Issued:
    """A task that the broker gave to an executor."""

    task: int
    at_s: float
    multiply_adds: int
    #: There and back, with the right side if that goes along.
    size_bytes: int
    #: When the broker gives it to another executor as well.
    due_s: float
    #: The broker took it back: its result does not count.
    is_over: bool = False


class ExecutorState(StrEnum):
    """Whether the broker gives an executor tasks. Operators read it in ``shoal status``."""

    #: It is connected, and its first measure is not done.
    MEASURED = "measured"
    READY = "ready"
    #: A client caught it with a wrong result.
    EXCLUDED = "excluded"
    #: An operator holds it back.
    HELD = "held"
    LOST = "lost"


@dataclass(slots=True)
class ExecutorRecord:
    node: str
    is_connected: bool = False
    #: The standing that excludes it, such as ``drained``. None if it may get tasks.
    hold: str | None = None
    #: Why the broker gives it no further tasks.
    excluded: str | None = None
    #: The measured rate. 0 if not measured yet.
    multiply_adds_per_s: float = 0.0
    latency_s: float = 0.0
    link_bytes_per_s: float = LINK_BYTES_PER_S
    task_max_bytes: int = 0
    rights_max_bytes: int = 0
    #: Issue -> a task that it was given and has not answered.
    issued: dict[int, Issued] = field(default_factory=dict)
    #: Digests of right sides that were sent to it.
    holds: set[str] = field(default_factory=set)
    reason: str | None = None
    tasks: int = 0
    multiply_adds: int = 0
    late: int = 0
    refused: int = 0
    caught: int = 0
    _measuring: Measure | None = None
    _asked_s: float = 0.0
    _measures: int = 0
    _smallest_s: list[float] = field(default_factory=list)
    _answered_s: float = -math.inf
    _surprises: int = 0

    @property
    def state(self) -> ExecutorState:
        if self.excluded is not None:
            return ExecutorState.EXCLUDED
        if not self.is_connected:
            return ExecutorState.LOST
        if self.hold is not None:
            return ExecutorState.HELD
        return ExecutorState.READY if self.multiply_adds_per_s else ExecutorState.MEASURED

    @property
    def is_ready(self) -> bool:
        return self.state is ExecutorState.READY

    @property
    def has_room(self) -> bool:
        return len(self.issued) < SLOTS

    # Measures -------------------------------------------------------------------------------------------

    def on_connected(self, now_s: float) -> Measure:
        """A session opened: the executor is measured before it gets a task. Returns the first measure."""
        self.is_connected = True
        self.multiply_adds_per_s = self.latency_s = 0.0
        self._smallest_s.clear()
        self.reason = "being measured"
        self.holds.clear()
        return self._measure(SMALLEST_SIDE, now_s)

    def on_disconnected(self, reason: str) -> list[Issued]:
        """Its session ended. Returns the tasks it had, for others."""
        self.is_connected = False
        self.reason = reason
        self._measuring = None
        self.holds.clear()
        left, self.issued = list(self.issued.values()), {}
        return left

    def on_lend(self, lend: Lend, now_s: float) -> Measure | None:
        """A measure is done. Returns the next one, if any."""
        asked = self._measuring
        if asked is None or asked.number != lend.number:
            return None
        self._measuring = None
        self.task_max_bytes, self.rights_max_bytes = lend.task_max_bytes, lend.rights_max_bytes
        took_s = now_s - self._asked_s
        if asked.rows == SMALLEST_SIDE:
            self._smallest_s.append(took_s)
            if len(self._smallest_s) < SMALLEST_TIMES:
                return self._measure(SMALLEST_SIDE, now_s)
            self.latency_s = min(self._smallest_s)
            self._smallest_s.clear()
            return self._measure(SIDES[0], now_s)
        # A short one may be mostly latency, and says little about the speed.
        busy_s = max(took_s - self.latency_s, took_s / 4, 1e-6)
        self.multiply_adds_per_s = max(asked.rows * asked.inner * asked.columns / busy_s, LEAST_PER_S)
        self.reason = None
        if busy_s >= LONG_ENOUGH_S or asked.rows >= SIDES[-1]:
            return None
        return self._measure(next(side for side in SIDES if side > asked.rows), now_s)

    def measure_again(self, now_s: float) -> Measure | None:
        """Start a new measure if its last results took unexpectedly long or short, and it has no tasks now."""
        if self._surprises < SURPRISES_MAX or self.issued or self._measuring is not None or not self.is_connected:
            return None
        self._surprises = 0
        self._smallest_s.clear()
        return self._measure(SMALLEST_SIDE, now_s)

    def _measure(self, side: int, now_s: float) -> Measure:
        self._measures += 1
        self._asked_s = now_s
        self._measuring = Measure(number=self._measures, rows=side, inner=side, columns=side)
        return self._measuring

    # Tasks ----------------------------------------------------------------------------------------------

    def takes_s(self, multiply_adds: int, size_bytes: int) -> float:
        """Return the expected time of a task if the executor has no other."""
        return self.latency_s + multiply_adds / self._rate + size_bytes / self.link_bytes_per_s

    @property
    def _rate(self) -> float:
        return max(self.multiply_adds_per_s, LEAST_PER_S)

    def busy_s(self) -> float:
        """The expected time of all tasks it has."""
        return sum(self.takes_s(issued.multiply_adds, issued.size_bytes) for issued in self.issued.values())

    def on_answer(self, issue: int, now_s: float, *, counts: bool) -> Issued | None:
        """A result, or a refusal, came. ``counts``: it tells something about the speed."""
        issued = self.issued.pop(issue, None)
        if issued is None:
            return None
        if counts:
            # It began with the task when it came, or when the one before was done.
            self._observed(issued, max(now_s - max(issued.at_s, self._answered_s), 1e-6))
        self._answered_s = now_s
        return issued

    def _observed(self, issued: Issued, took_s: float) -> None:
        expected_s = self.takes_s(issued.multiply_adds, issued.size_bytes)
        is_surprising = not expected_s / SURPRISING <= took_s <= expected_s * SURPRISING
        self._surprises = self._surprises + 1 if is_surprising else 0
        # The time beyond the latency is split between computing and moving as it was expected to be.
        computing_s = issued.multiply_adds / self._rate
        moving_s = issued.size_bytes / self.link_bytes_per_s
        each = max(took_s - self.latency_s, took_s / 10) / max(computing_s + moving_s, 1e-9)
        self.multiply_adds_per_s = self._moved_towards(self._rate, issued.multiply_adds, computing_s * each)
        self.link_bytes_per_s = self._moved_towards(self.link_bytes_per_s, issued.size_bytes, moving_s * each)

    def _moved_towards(self, rate: float, count: int, took_s: float) -> float:
        """A rate after one more observation."""
        if count < 1 or took_s <= 0:
            return rate
        before = shares.MeasuredExecutor(name=self.node, operations_per_s=rate)
        return max(shares.measured(before, operations=count, took_s=took_s).operations_per_s, LEAST_PER_S)

    def on_late(self) -> None:
        """It took too long: it gets fewer tasks until its results come faster."""
        self.late += 1
        self._surprises = SURPRISES_MAX
        self.multiply_adds_per_s = max(self._rate / SURPRISING, LEAST_PER_S)
        self.link_bytes_per_s = max(self.link_bytes_per_s / SURPRISING, LEAST_PER_S)

    def view(self) -> ExecutorView:
        return ExecutorView(
            node=self.node,
            state=self.state.value,
            reason=clip(self.excluded or self.reason or "", 400),
            multiply_adds_per_s=self.multiply_adds_per_s,
            latency_s=min(self.latency_s, SECONDS_MAX),
            tasks=self.tasks,
            multiply_adds=min(self.multiply_adds, 1 << 60),
            late=self.late,
            refused=self.refused,
            caught=self.caught,
        )
