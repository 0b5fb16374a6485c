"""Ended jobs, read from the registry when somebody asks: the manager keeps only a few of them in memory.

Methods that are not coroutines block: call them in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from shoal.errors import Refused
from shoal.roles.events import JobTaken
from shoal.runtime.stored_jobs import StoredJobs, spec_of, view_of
from shoal.states import JobState
from shoal.store.base import Away
from shoal.store.ended_rows import EndedRow
from shoal.store.registry import Registry
from shoal.wire.messages import AskSpec, Denied, Done, Hello, JobSpec, JobView, Message, Status, SubmittedJob

#: The latest ended jobs that a status lists beside the open ones.
ENDED_SHOWN = 20

#: A status also lists jobs that failed this recently, however many ended since: `status --check` reports them.
FAILED_SHOWN_S = 3600.0

#: The ended jobs of one page.
ENDED_A_PAGE = 100

#: Jobs of one device that are looked up when it connects.
LOOKED_UP = 16

#: The jobs that are listed where an operator typed the start of their ids.
CALLED_SHOWN = 20


class EndedJobs:
    def __init__(
        self,
        registry: Registry,
        stored: StoredJobs,
        *,
        in_memory: Callable[[str], JobSpec | None],
        post: Callable[[JobTaken], object],
    ) -> None:
        """``in_memory``: a job as it was submitted, if the manager role has it. ``post`` tells that role of another."""
        self._registry = registry
        self._stored = stored
        self._in_memory = in_memory
        self._post = post
        #: The views of those that the last status listed, each with when the job ended: an ended job does not change.
        self._views: dict[tuple[str, float], JobView] = {}

    def listed(self, own: Iterable[JobView], *, now_s: float) -> tuple[JobView, ...]:
        """Return the latest ended jobs, then the open ones of ``own``: what the manager has in memory, which wins.

        The latest that ended comes last. ``now_s`` is wall-clock time.
        """
        # One that was looked up for an operator, and not for its end, has no time there.
        here = [view for view in own if view.state.is_open or view.since_s >= 0]
        known = {view.job for view in here}
        rows = {
            (row.job, row.ended_s): row
            for row in (
                *self._registry.failed_since(now_s - FAILED_SHOWN_S, limit=ENDED_SHOWN),
                *self._registry.latest_ended(limit=ENDED_SHOWN),
            )
            if row.job not in known
        }
        self._views = {key: view for key, row in rows.items() if (view := self._view(row)) is not None}
        ended = [_with_age(view, ended_s, now_s) for (_, ended_s), view in self._views.items()]
        ended += [view for view in here if view.state.is_ended]
        return (
            *sorted(ended, key=lambda view: (-view.since_s, view.job)),
            *(view for view in here if view.state.is_open),
        )

    def _view(self, ended: EndedRow) -> JobView | None:
        """Return the view of an ended job, or None if it was removed a moment ago."""
        if (known := self._views.get((ended.job, ended.ended_s))) is not None:
            return known
        row = self._registry.job(ended.job)
        return view_of(row, now_s=ended.ended_s) if row is not None else None

    def page(self, number: int, *, now_s: float) -> tuple[tuple[JobView, ...], int]:
        """Return a page of the ended jobs, the latest first, and the number of the next page, or 0 if it is the last.

        Pages are counted from 1.
        """
        rows = self._registry.ended_page(limit=ENDED_A_PAGE + 1, offset=(number - 1) * ENDED_A_PAGE)
        views = tuple(view_of(row, now_s=now_s) for row in rows[:ENDED_A_PAGE])
        return views, number + 1 if len(rows) > len(views) else 0

    def counted(self, status: Status) -> Status:
        """Return the status with how many ended jobs there are."""
        counts = self._registry.count_ended()
        return replace(
            status,
            finished_jobs=counts.get(JobState.FINISHED, 0),
            failed_jobs=counts.get(JobState.FAILED, 0),
            stopped_jobs=counts.get(JobState.STOPPED, 0),
        )

    def spec(self, job: str) -> JobSpec | None:
        """Return the submitted spec of a job, or None if the cluster has no job of this id."""
        if (spec := self._in_memory(job)) is not None:
            return spec
        row = self._registry.job(job)
        return spec_of(row) if row is not None else None

    def why_not_new(self, spec: JobSpec) -> Message | None:
        """Answer a submission whose id is in the store and not in memory, or return None."""
        row = self._registry.job(spec.job) if self._in_memory(spec.job) is None else None
        if row is None:
            return None
        if spec_of(row) == spec:
            # The same submission again: its answer was lost on the way.
            return Done(job=spec.job, reason=row.state)
        return Denied(reason=f"there is a job {spec.job} already")

    def submitted(self, asked: AskSpec) -> SubmittedJob:
        """Answer an operator who asks how a job was submitted."""
        spec = self.spec(asked.job)
        if spec is None:
            raise Refused(f"there is no job {asked.job}")
        return SubmittedJob(spec=spec)

    async def before_hello(self, hello: Hello) -> None:
        """Look up ended jobs that a device leads or works for, before it is answered."""
        jobs = [*(leads.job for leads in hello.leads), *hello.jobs]
        with contextlib.suppress(Away):
            await self.look_up(jobs[:LOOKED_UP])

    async def look_up(self, jobs: Iterable[str]) -> None:
        """Tell the manager role of ended jobs that it does not have in memory: a command or a device names them."""
        for job in jobs:
            if self._in_memory(job) is None:
                record = await asyncio.to_thread(self._stored.ended, job)
                if record is not None:
                    self._post(JobTaken(record=record))


def _with_age(view: JobView, ended_s: float, now_s: float) -> JobView:
    # A clock may have been set back since.
    return replace(view, since_s=max(0.0, now_s - ended_s))
