"""Finds which devices of a job fail now, and why: from their leader's view and from the events of the last minutes.

A device that fails gets another lease a moment later, so its state would be "trains" most of the time. Pure functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shoal.cli.render.format import clean
from shoal.states import JobState, WorkerState

if TYPE_CHECKING:
    from shoal.wire.messages import EventView, JobView

#: How long a failure counts as current.
LATELY_S = 120.0
#: A device that failed once and trains again has recovered; one that failed this often lately has not.
FAILURES_MIN = 2
REASON_CHARS = 240
_FAILURES = ("lease.failed", "preparation.failed")


def failing_devices(job: JobView, *, events: Sequence[EventView], at_s: float) -> dict[str, str]:
    """Return why each device of a running job fails, by its name; empty if none does."""
    if job.state is not JobState.RUNNING or job.progress is None:
        return {}
    recent = [event for event in events if event.kind in _FAILURES and at_s - event.at_s <= LATELY_S]
    found: dict[str, str] = {}
    for worker in job.progress.workers:
        own = [event.reason for event in recent if event.reason.startswith(f"{worker.node}: ")]
        if worker.state == WorkerState.FAILING and worker.reason:
            found[worker.node] = clean(worker.reason, REASON_CHARS)
        elif worker.state == WorkerState.FAILING or len(own) >= FAILURES_MIN:
            told = own[-1].removeprefix(f"{worker.node}: ") if own else ""
            found[worker.node] = clean(told, REASON_CHARS) or "it gave no reason"
    return found


def is_stuck(job: JobView, failing: Mapping[str, str]) -> bool:
    """Return whether every device of this job fails, or could not even prepare it, as its manager says."""
    return job.state.is_open and (job.stalled or is_failing_everywhere(job, failing))


def is_failing_everywhere(job: JobView, failing: Mapping[str, str]) -> bool:
    """Return whether every device that works for this job fails."""
    return bool(failing) and job.progress is not None and len(failing) == len(job.progress.workers)


def common_reason(failing: Mapping[str, str]) -> str:
    """Return the reason that most devices fail for, and how many fail for others."""
    ((reason, times),) = Counter(failing.values()).most_common(1)
    others = len(failing) - times
    return f"{reason} (and other reasons on {others})" if others else reason
