"""Polls the manager for the cluster's status and hands each answer to the feed. One connection; reconnects."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from shoal.cli.foremost import foremost
from shoal.console.feed import Feed
from shoal.console.flows import Flows
from shoal.console.state import EVENTS_SHOWN, JOBS_SHOWN, JobDetails, Look, shown_jobs, state_of
from shoal.errors import Refused, ShoalError, Unreachable
from shoal.runtime.operator import Operator

if TYPE_CHECKING:
    from shoal.wire.messages import JobView, Status

_T = TypeVar("_T")
_log = logging.getLogger("shoal.console")

EVERY_S = 1.0
#: From this many nodes on, the status is polled less often: it is half a megabyte.
LARGE_NODES = 200
EVERY_LARGE_S = 2.0
#: How long to wait for an answer before the manager counts as unreachable.
PATIENCE_S = 10.0
#: How long a connection is kept: an operator's certificate is renewed in between.
CONNECTION_S = 3600.0

#: How many jobs' details are fetched in one round, and after how many rounds those of an unchanged job.
DETAILS_A_ROUND = 4
DETAILS_EVERY_LARGE = 5
DETAILS_EVERY_ENDED = 60
VERSIONS_EVERY = 30


class Asker:
    def __init__(self, home: Path, feed: Feed, *, opened: Operator | None = None) -> None:
        self._home = home
        self._feed = feed
        self._operator = opened
        self._status: Status | None = None
        self._details: dict[str, JobDetails] = {}
        self._flows = Flows()
        self._marks: dict[str, tuple[object, ...]] = {}
        self._round = 0
        self._watched: deque[str] = deque(maxlen=DETAILS_A_ROUND)
        self._since_s = time.monotonic()
        self._why = ""
        self._is_reachable = True
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            try:
                async with self._connected(), asyncio.timeout(CONNECTION_S):
                    while True:
                        await self._ask()
                        await self._pause()
            except TimeoutError:
                continue
            except (ShoalError, OSError) as error:
                self._unreachable(str(error))
                await self._pause()

    async def operate(self, what: Callable[[Operator], Awaitable[_T]]) -> _T:
        """Run an operator's command over the same connection. The next poll follows at once."""
        if self._operator is None:
            raise Unreachable("the manager cannot be reached now: try again once it answers")
        try:
            return await what(self._operator)
        finally:
            self._woken.set()

    def watch(self, job: str) -> None:
        """Fetch the details of a job that a viewer looks at in the next round, even if it did not change."""
        if job not in self._watched:
            self._watched.append(job)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[None]:
        async with Operator.open(self._home) as operator:
            self._operator = operator
            try:
                yield
            finally:
                self._operator = None

    async def _pause(self) -> None:
        large = self._status is not None and len(self._status.nodes) > LARGE_NODES
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), EVERY_LARGE_S if large else EVERY_S)
        self._woken.clear()

    async def _ask(self) -> None:
        operator = self._operator
        assert operator is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                status = await operator.status()
                await self._look_closer(operator, status)
        except TimeoutError:
            raise Unreachable(f"it did not answer within {PATIENCE_S:g} s") from None
        if not self._is_reachable:
            _log.info("the manager answers again")
            self._since_s = time.monotonic()
        self._is_reachable, self._why = True, ""
        self._status = status
        self._tell()

    def _unreachable(self, why: str) -> None:
        if self._is_reachable:
            self._is_reachable, self._since_s = False, time.monotonic()
            _log.warning("the manager does not answer: %s", why)
        self._why = why
        self._tell()

    def _tell(self) -> None:
        now_s, since_s = time.time(), time.monotonic() - self._since_s
        if self._status is not None and self._is_reachable:
            self._flows.take(self._status, now_s)
        look = Look(
            status=self._status,
            at_s=now_s,
            details=self._details,
            flows=self._flows,
            unanswered_s=None if self._is_reachable else since_s,
            unanswered_why=self._why,
            since_s=since_s,
        )
        self._feed.take(state_of(look), now_s)

    # Jobs in detail ---------------------------------------------------------------------------------------

    async def _look_closer(self, operator: Operator, status: Status) -> None:
        """Ask for events, evaluations and versions of jobs that changed, or that a viewer looks at."""
        self._round += 1
        jobs = shown_jobs(status)
        for gone in self._details.keys() - {job.job for job in jobs}:
            del self._details[gone]
            self._marks.pop(gone, None)
        large = len(status.nodes) > LARGE_NODES
        wanted = [job for number, job in enumerate(jobs) if self._is_due(job, number, large=large)]
        self._watched.clear()
        # In turn, if many changed: those left out stay due.
        wanted = wanted[self._round % len(wanted) :] + wanted[: self._round % len(wanted)] if wanted else []
        for job in wanted[:DETAILS_A_ROUND]:
            try:
                await self._detail(operator, job)
            except Refused as error:
                # It was removed since the status was sent.
                _log.debug("no details of %s: %s", job.job, error)

    def _is_due(self, job: JobView, number: int, *, large: bool) -> bool:
        if job.job in self._watched or self._marks.get(job.job) != _mark(job):
            return True
        if not job.state.is_open:
            # Its model may be published or rolled back from elsewhere. Each such job has a different round.
            return (self._round + number) % DETAILS_EVERY_ENDED == 0
        return not large or self._round % DETAILS_EVERY_LARGE == 0

    async def _detail(self, operator: Operator, job: JobView) -> None:
        known = self._details.get(job.job) or JobDetails()
        last = known.events[-1].seq if known.events else 0
        told = await operator.status(job.job, last)
        events = foremost([*known.events, *(event for event in told.events if event.seq > last)], EVENTS_SHOWN)
        served = next((view.served for view in told.jobs if view.job == job.job), None)
        versions = known.versions
        if versions is None or served != known.served or self._round % VERSIONS_EVERY == 0:
            versions = await operator.versions(job.job)
        # Equal values stay the same object, so that a diff skips them at once.
        evaluations = known.evaluations if known.evaluations == told.evaluations else told.evaluations
        self._details[job.job] = JobDetails(events=events, evaluations=evaluations, versions=versions, served=served)
        self._marks[job.job] = _mark(job)
        assert len(self._details) <= JOBS_SHOWN


def _mark(job: JobView) -> tuple[object, ...]:
    """Return the parts of a job's view that change when its details may have changed."""
    return (job.state, job.term, job.reason, job.discarded)
