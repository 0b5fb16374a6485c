"""What `shoal status` shows first: open jobs, the latest that ended, and a headline for each open one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shoal.cli.render.format import clean, metric_text, plural
from shoal.cli.standing import STALLED, standing
from shoal.roles.manager.publishing import measure
from shoal.states import JobState

if TYPE_CHECKING:
    from shoal.wire.messages import JobView, Status

#: A job that ended longer ago leaves the first screen, unless it is the latest.
ENDED_SHOWN_S = 3600.0


def on_first_screen(jobs: Sequence[JobView]) -> tuple[JobView, ...]:
    """Return the jobs that people look for first, in their order: open ones, those that ended within the hour, and the
    latest that ended."""
    ended = [job for job in jobs if job.state.is_ended]
    known = [job for job in ended if job.since_s >= 0]
    # A manager of an older release may not know when a job ended: the last that was submitted stands for the latest.
    latest = min(known, key=lambda job: job.since_s) if known else (ended[-1] if ended else None)
    return tuple(job for job in jobs if job.state.is_open or job is latest or (0 <= job.since_s <= ENDED_SHOWN_S))


def unlisted_line(count: int) -> str:
    """Return how people see ended jobs that are not listed, or "" if all are."""
    return f"{plural(count, 'ended job')} not shown: `shoal jobs --ended` lists them by page" if count > 0 else ""


def page_line(page: Status, number: int) -> str:
    """Return which of the ended jobs a page holds, and how people see the next ones."""
    total = sum(page.count(state) for state in JobState if state.is_ended)
    if not page.jobs:
        return f"page {number} is empty: there are {plural(total, 'ended job')}"
    following = f": next `shoal jobs --ended --page {page.next_ended_page}`" if page.next_ended_page else ""
    return f"page {number} with {len(page.jobs):,} of {plural(total, 'ended job')}, the latest first{following}"


def headlines(jobs: Sequence[JobView]) -> list[tuple[bool, str]]:
    """Return a sentence for each open job, and whether it tells of trouble; none for a single job that is well: its row
    in the table says the same."""
    is_open = [job for job in jobs if job.state.is_open]
    if len(is_open) < 2 and not any(job.trouble for job in is_open):
        return []
    return [(bool(job.trouble), _headline(job)) for job in is_open]


def _headline(job: JobView) -> str:
    told, name, progress = standing(job), clean(job.job, 80), job.progress
    if told.state == STALLED:
        return f"{name} does not progress: {clean(job.trouble, 300)}"
    if progress is None or told.state not in ("training", "evaluating"):
        return f"{name} is {clean(told.state, 20)}: {clean(told.reason, 300) or 'no reason is known'}"
    metric = measure(progress, job.plan.judged_by)
    judged = f", {clean(metric.name, 20)} {metric_text(metric)}" if metric is not None else ""
    trains = f"{name} is {told.state} on {plural(len(progress.workers), 'device')}, epoch {progress.epoch + 1}{judged}"
    return f"{trains}; {clean(job.trouble, 300)}" if job.trouble else trains
