"""How many tiles each executor gets: in proportion to its measured speed, so that all end together. Pure.

Tiles are equal, so the executor that would finish the next one first gets it: the optimum for equal tasks on unequal
machines (Graham's list scheduling is exact here). Latency counts once for each executor, as it does on a line.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.errors import Misuse

#: The weight of a new measurement. Devices warm up and get other work; one slow task does not make a device slow.
BELIEVED = 0.3


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredExecutor:
    """The measured speed of an executor."""

    name: str
    operations_per_s: float
    #: From a task sent to a result received, less the computing.
    latency_s: float = 0.0
    #: The time its tasks will still take.
    busy_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.operations_per_s < math.inf:
            raise Misuse(f"{self.name} does {self.operations_per_s} operations a second: measure it first")
        if not 0 <= self.latency_s < math.inf or not 0 <= self.busy_s < math.inf:
            raise Misuse(f"{self.name} has a latency of {self.latency_s} s and work for {self.busy_s} s: 0 or more")


def split(tiles: int, executors: Sequence[MeasuredExecutor], *, operations_each: int) -> dict[str, int]:
    """Return how many tiles each executor gets. One that would end last with a single tile gets none."""
    if not executors:
        raise Misuse("there is nobody to share tiles among")
    if tiles < 0 or operations_each < 1:
        raise Misuse(f"{tiles} tiles of {operations_each} operations")
    if len({executor.name for executor in executors}) < len(executors):
        raise Misuse("two executors have one name")
    counts = {executor.name: 0 for executor in sorted(executors, key=lambda executor: executor.name)}
    queue = [
        (executor.busy_s + executor.latency_s + operations_each / executor.operations_per_s, executor.name)
        for executor in executors
    ]
    seconds = {executor.name: operations_each / executor.operations_per_s for executor in executors}
    heapq.heapify(queue)
    for _ in range(tiles):
        ends_s, name = queue[0]
        counts[name] += 1
        heapq.heapreplace(queue, (ends_s + seconds[name], name))
    return counts


def ends_s(counts: dict[str, int], executors: Sequence[MeasuredExecutor], *, operations_each: int) -> float:
    """When the last executor is done."""
    return max(
        (
            executor.busy_s + executor.latency_s + counts[executor.name] * operations_each / executor.operations_per_s
            for executor in executors
            if counts.get(executor.name)
        ),
        default=0.0,
    )


def measured(executor: MeasuredExecutor, *, operations: int, took_s: float) -> MeasuredExecutor:
    """An executor after one more task: its speed moves towards the one observed, so that the next split is fairer."""
    if operations < 1 or not 0 < took_s < math.inf:
        raise Misuse(f"{operations} operations in {took_s} s say nothing of {executor.name}")
    # Seconds are averaged, not speeds: a stall then counts for what it cost.
    seen = max(took_s - executor.latency_s, 0.1 * took_s) / operations
    each_s = (1 - BELIEVED) / executor.operations_per_s + BELIEVED * seen
    return replace(executor, operations_per_s=1 / each_s)
