"""Removes ended jobs that the operator's ``--keep-jobs`` keeps no longer, as ``jobs rm`` does. The role decides.

Where several managers share a database, each removes jobs of its own and those of managers that are gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from shoal.errors import Misuse, ShoalError
from shoal.roles.actions import DropOldJobs
from shoal.roles.events import JobsOutdated
from shoal.roles.manager.retention import KeepJobs
from shoal.runtime.acts import Act, AuditLog
from shoal.runtime.job_files import JobFiles
from shoal.runtime.kept_versions import KeptVersions
from shoal.runtime.manager_memory import ManagerMemory
from shoal.store.registry import Registry
from shoal.wire.messages import JobSpec

log = logging.getLogger("shoal")

#: How often the manager looks for such jobs, and how soon again where there may be more.
EVERY_S, SOON_S = 60.0, 5.0

#: The jobs that go in one pass: what their files share is looked up once for all of them.
A_PASS = 100


class JobRetention:
    def __init__(
        self,
        registry: Registry,
        files: JobFiles,
        acts: AuditLog,
        kept: KeptVersions,
        memory: ManagerMemory,
        *,
        books: asyncio.Lock,
        note: Callable[[str, str, str], object],
        post: Callable[[JobsOutdated], object],
    ) -> None:
        """``books``: held while files go that no job names. ``note`` records an event of a job, by its kind and its
        reason. ``post`` tells the manager role."""
        self._registry = registry
        self._files = files
        self._acts = acts
        self._kept = kept
        self._memory = memory
        self._books = books
        self._note = note
        self._post = post
        #: One pass at a time: a pass that takes long is reported again meanwhile, and the audit log names a job once.
        self._passes = asyncio.Lock()

    async def run(self, keep: KeepJobs) -> None:
        """Until cancelled: report jobs that are not kept any longer."""
        while True:
            found = 0
            try:
                found = await asyncio.to_thread(self._look, keep)
            except ShoalError as error:
                log.debug("old jobs are not looked for: %s", error)
            await asyncio.sleep(SOON_S if found >= A_PASS else EVERY_S)

    def _look(self, keep: KeepJobs) -> int:
        now_s = time.time()
        if keep.count is not None:
            rows = self._registry.ended_beyond(keep.count, limit=A_PASS)
        else:
            rows = self._registry.ended_before(now_s - keep.age_s, limit=A_PASS)
        if rows:
            self._post(JobsOutdated(keep=keep, ages_s={row.job: now_s - row.ended_s for row in rows}))
        return len(rows)

    async def drop(self, drop: DropOldJobs) -> None:
        """Remove these jobs: first an entry in the audit log, then rows, checkpoints and published versions, then code
        and data that no other job names. A job that is not removed is tried again in the next pass."""
        async with self._passes:
            specs = await self._drop_each(drop)
            if specs:
                async with self._books:
                    await asyncio.to_thread(self._files.remove_unnamed, specs)

    async def _drop_each(self, drop: DropOldJobs) -> list[JobSpec]:
        """Remove these jobs until one fails. Return the specs of those that are removed."""
        specs: list[JobSpec] = []
        try:
            for job, reason in drop.reasons.items():
                spec = await asyncio.to_thread(self._drop, job, reason)
                if spec is not None:
                    specs.append(spec)
                    await self._memory.on_removed(job)
        except ShoalError as error:
            log.warning("an old job was not removed, it is tried again: %s", error)
        return specs

    def _drop(self, job: str, reason: str) -> JobSpec | None:
        """Remove one job. Return its spec, or None if another manager removed it."""
        if self._registry.job(job) is None:
            return None
        self._acts.add_own(Act("remove a job", job, reason))
        self._kept.let_go(job)
        try:
            spec = self._files.drop_record(job)
        except Misuse as error:
            # Another manager was quicker.
            log.debug("job %s is gone already: %s", job, error)
            return None
        self._note("", "job.removed", f"{job}: {reason}")
        return spec
