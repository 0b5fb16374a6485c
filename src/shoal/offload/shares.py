"""Who gets how many tiles: in proportion to what each was measured to do, so that all end together. Pure.

Tiles are alike, so whoever would finish the next one first gets it; that is the best there is for alike tasks on unlike
machines (Graham's list scheduling is exact here), and latency counts once for each executor, as it does on a line.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.errors import Misuse

#: How much of a new measurement is believed. Devices warm up and get other work; one slow task is not a slow device.
BELIEVED = 0.3


@dataclass(frozen=True, kw_only=True, slots=True)
class Lender:
    """An executor as it was measured."""

    name: str
    operations_per_s: float
    #: From a task sent to a result received, less the computing.
    latency_s: float = 0.0
    #: What it still has to do.
    busy_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.operations_per_s < math.inf:
            raise Misuse(f"{self.name} does {self.operations_per_s} operations a second: measure it first")
        if not 0 <= self.latency_s < math.inf or not 0 <= self.busy_s < math.inf:
            raise Misuse(f"{self.name} has a latency of {self.latency_s} s and work for {self.busy_s} s: 0 or more")


def split(tiles: int, lenders: Sequence[Lender], *, operations_each: int) -> dict[str, int]:
    """How many tiles each gets; who would end last with one gets none."""
    if not lenders:
        raise Misuse("there is nobody to share tiles among")
    if tiles < 0 or operations_each < 1:
        raise Misuse(f"{tiles} tiles of {operations_each} operations")
    if len({lender.name for lender in lenders}) < len(lenders):
        raise Misuse("two lenders have one name")
    counts = {lender.name: 0 for lender in sorted(lenders, key=lambda lender: lender.name)}
    queue = [
        (lender.busy_s + lender.latency_s + operations_each / lender.operations_per_s, lender.name)
        for lender in lenders
    ]
    seconds = {lender.name: operations_each / lender.operations_per_s for lender in lenders}
    heapq.heapify(queue)
    for _ in range(tiles):
        ends_s, name = queue[0]
        counts[name] += 1
        heapq.heapreplace(queue, (ends_s + seconds[name], name))
    return counts


def ends_s(counts: dict[str, int], lenders: Sequence[Lender], *, operations_each: int) -> float:
    """When the last of them is done."""
    return max(
        (
            lender.busy_s + lender.latency_s + counts[lender.name] * operations_each / lender.operations_per_s
            for lender in lenders
            if counts.get(lender.name)
        ),
        default=0.0,
    )


def measured(lender: Lender, *, operations: int, took_s: float) -> Lender:
    """A lender after one more task: its throughput moved towards what was seen, so that the next split is fairer."""
    if operations < 1 or not 0 < took_s < math.inf:
        raise Misuse(f"{operations} operations in {took_s} s say nothing of {lender.name}")
    # Seconds are averaged, not speeds: a stall then counts for what it cost.
    seen = max(took_s - lender.latency_s, 0.1 * took_s) / operations
    each_s = (1 - BELIEVED) / lender.operations_per_s + BELIEVED * seen
    return replace(lender, operations_per_s=1 / each_s)
