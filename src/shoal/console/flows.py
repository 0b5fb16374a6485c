"""Bytes per second between a leader and its workers, from growing counters. Pure: the time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shoal.wire.messages import Status

#: The time within which a rate follows its counter.
SMOOTH_S = 5.0


@dataclass(slots=True)
class _Counter:
    at_s: float
    up: int
    down: int
    up_per_s: float = 0.0
    down_per_s: float = 0.0


@dataclass(slots=True)
class Flows:
    _of: dict[tuple[str, str], _Counter] = field(default_factory=dict)

    def take(self, status: Status, at_s: float) -> None:
        """Read the counters of every open job's workers."""
        seen: dict[tuple[str, str], _Counter] = {}
        for job in status.jobs:
            if not job.state.is_open or job.progress is None:
                continue
            for worker in job.progress.workers:
                place = (job.job, worker.node)
                seen[place] = _moved(self._of.get(place), at_s, worker.bytes_up, worker.bytes_down)
        # Forgets workers that are gone.
        self._of = seen

    def rates(self, job: str, node: str) -> tuple[float, float]:
        """Return the bytes per second up and down."""
        counter = self._of.get((job, node))
        return (counter.up_per_s, counter.down_per_s) if counter is not None else (0.0, 0.0)


def _moved(before: _Counter | None, at_s: float, up: int, down: int) -> _Counter:
    # A new leader counts from 0: then there is no rate yet.
    if before is None or up < before.up or down < before.down or at_s <= before.at_s:
        return _Counter(at_s, up, down)
    past_s = at_s - before.at_s
    new = min(1.0, past_s / SMOOTH_S)

    def mixed(rate: float, grown: int) -> float:
        blended = rate * (1 - new) + new * grown / past_s
        return blended if blended >= 1 else 0.0

    return _Counter(
        at_s, up, down, mixed(before.up_per_s, up - before.up), mixed(before.down_per_s, down - before.down)
    )
