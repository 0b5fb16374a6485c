"""How a job stands, why, and since when: one answer for `status`, `jobs` and `attach`. Pure; asks nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.cli.render.format import span_text
from shoal.states import ENDED, JobState

if TYPE_CHECKING:
    from shoal.wire.messages import JobView

#: A leader reports about once a second. After this long, its last report no longer describes the job.
SILENT_S = 10.0

#: The state of a job that runs while its devices fail and none trains.
STALLED = "stalled"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStanding:
    state: str
    reason: str = ""
    #: Negative if unknown.
    since_s: float = -1.0


def standing(job: JobView) -> JobStanding:
    """While a job runs, its leader knows: it trains, evaluates or waits. The manager knows the rest, and which devices
    fail: a job none of whose devices works is stalled, whatever its leader does."""
    progress = job.progress
    if job.state is not JobState.RUNNING:
        return JobStanding(state=job.state, reason=job.reason, since_s=job.since_s)
    leader = job.leader or "its leader"
    if progress is None or progress.term != job.term:
        waits = f"waiting for the first report from {leader}"
        return JobStanding(state="waiting", reason=job.trouble or waits, since_s=job.since_s)
    if job.heard_s < 0:
        told = f"{leader} has sent nothing since the manager started; last state: {progress.state}"
        return JobStanding(state="silent", reason=told)
    if job.heard_s > SILENT_S:
        told = f"last report of {leader}: {span_text(job.heard_s)} ago ({progress.state})"
        return JobStanding(state="silent", reason=told, since_s=job.heard_s)
    state = STALLED if job.stalled else progress.state
    return JobStanding(state=state, reason=job.trouble or progress.reason, since_s=job.since_s)


def since_text(told: JobStanding) -> str:
    """``for 12 s`` of a job that is open, ``12 s ago`` of one that is over; empty where it is not known."""
    if told.since_s < 0:
        return ""
    return f"{span_text(told.since_s)} ago" if told.state in ENDED else f"for {span_text(told.since_s)}"


def without_manager(job: JobView, *, manager: str) -> str:
    """Return the standing of a job from its last status, while its manager does not answer."""
    if job.state is JobState.QUEUED:
        return "the job was queued: it starts when the manager is back"
    if job.leader and job.leader != manager:
        return f"the job was led by {job.leader}, which may go on"
    durable = job.progress.durable_version if job.progress else 0
    return (
        "the job's leader is on the manager's machine: if the manager is down, the job is paused; it resumes from saved"
        f" version {durable:,} when the manager returns"
    )
