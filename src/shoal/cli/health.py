"""Is all well? One answer, in one sentence, for `shoal status --check`. Pure; asks nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.cli.exits import Check
from shoal.cli.render.format import clean, plural, span_text
from shoal.cli.standing import standing
from shoal.states import JobState

if TYPE_CHECKING:
    from shoal.wire.messages import JobView, NodeView, Status

#: A job that failed longer ago is history: a check that is run every few minutes has told of it.
FAILED_KEPT_S = 3600.0
#: Every job waits for a moment: while devices fetch its code, and between leaders.
WAITS_AFTER_S = 30.0

_NAMED_MAX = 3
_REASON_MAX_CHARS = 160


@dataclass(frozen=True, slots=True)
class Health:
    verdict: Check
    sentence: str


def health_of(status: Status, *, job: str = "") -> Health:
    """How the cluster is; or one job, whenever it ended."""
    jobs = [view for view in status.jobs if not job or view.job == job]
    failed = [_failed_text(view) for view in jobs if _has_failed(view, ever=bool(job))]
    stalled = [_trouble_text(view) for view in jobs if view.stalled]
    waiting = [text for view in jobs if (text := _waiting_text(view))]
    lost = [] if job else [_lost_text(node) for node in status.nodes if node.state == "lost" and not node.standing]
    found = [_joined(group) for group in (failed, stalled, waiting, lost) if group]
    if failed or stalled:
        return Health(Check.TROUBLE, f"trouble: {'; '.join(found)}")
    if found:
        return Health(Check.ATTENTION, f"attention: {'; '.join(found)}")
    return Health(Check.WELL, f"all well: {_well_text(status, jobs, job=job)}")


def _has_failed(job: JobView, *, ever: bool) -> bool:
    return job.state is JobState.FAILED and (ever or 0 <= job.since_s <= FAILED_KEPT_S)


def _failed_text(job: JobView) -> str:
    return f"{clean(job.job, 80)} failed{_at(job)} ({_reason(job.reason)})"


def _trouble_text(job: JobView) -> str:
    return f"{clean(job.job, 80)} does not progress{_at(job)} ({_reason(job.trouble)})"


def _waiting_text(job: JobView) -> str:
    """Return that the job waits or that some of its devices fail. Empty if neither, or if it waits since a moment."""
    if job.state.is_ended or job.stalled:
        return ""
    if job.trouble:
        return f"{clean(job.job, 80)} is in trouble{_at(job)} ({_reason(job.trouble)})"
    told = standing(job)
    if told.state not in ("waiting", "silent", JobState.QUEUED) or 0 <= told.since_s < WAITS_AFTER_S:
        return ""
    waits = "is silent" if told.state == "silent" else "waits"
    since = f" for {span_text(told.since_s)}" if told.since_s >= 0 else ""
    return f"{clean(job.job, 80)} {waits}{since}{_at(job)} ({_reason(told.reason)})"


def _lost_text(node: NodeView) -> str:
    return f"{clean(node.node, 80)} is lost{_at(node)} ({_reason(node.reason)})"


def _at(view: JobView | NodeView) -> str:
    """Return at which manager, where the cluster has several."""
    return f" at {clean(view.manager, 80)}" if view.manager else ""


def _reason(reason: str) -> str:
    return clean(reason, _REASON_MAX_CHARS) or "no reason is known"


def _joined(texts: list[str]) -> str:
    more = f", and {len(texts) - _NAMED_MAX} more" if len(texts) > _NAMED_MAX else ""
    return ", ".join(texts[:_NAMED_MAX]) + more


def _well_text(status: Status, jobs: list[JobView], *, job: str) -> str:
    if job:
        return f"{clean(job, 80)} is {standing(jobs[0]).state}" if jobs else f"there is no job {clean(job, 80)}"
    alive = sum(node.state == "alive" for node in status.nodes)
    running = sum(view.state.is_open for view in jobs)
    return f"{plural(alive, 'device')} alive, {plural(running, 'open job')}"
