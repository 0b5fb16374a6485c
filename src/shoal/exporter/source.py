"""What a scrape asks: the manager's status, the jobs' details now and then, and files of this machine's home."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from shoal.errors import Refused, ShoalError
from shoal.exporter.counters import Counters
from shoal.exporter.families import Snapshot, shown_jobs
from shoal.exporter.managers import Managers
from shoal.identity.identity import IDENTITY_FILE, Identity
from shoal.runtime.operator import Operator
from shoal.runtime.paths import Paths
from shoal.wire.messages import JobView, ServedView, Status

#: A second scrape within this time is answered from the first.
CACHED_S = 1.0
#: A job's own status holds every device again, so it is asked for less often; in a large cluster less still.
DETAILS_EVERY_S, DETAILS_EVERY_LARGE_S = 5.0, 15.0
LARGE_NODES = 200
#: Certificates last for days.
CERTIFICATES_EVERY_S = 600.0
#: How long a scrape waits for a manager's status; Prometheus itself waits 10 s by default.
ANSWER_TIMEOUT_S = 8.0


#: How long a look at the manager's readiness may take: a proxy asks every second.
READY_TIMEOUT_S = 2.0


class ScrapeSource:
    """Asks as an operator. One scrape at a time asks; others that come meanwhile get the same answer."""

    def __init__(self, operator: Operator, home: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._operator = operator
        self._places = Paths(home)
        self._clock = clock
        self._lock = asyncio.Lock()
        self._managers = Managers(operator, clock=clock)
        self.counters = Counters()
        self._served: dict[str, ServedView | None] = {}
        #: When each job was last asked for by itself, and whether it was over then.
        self._asked: dict[str, tuple[float, bool]] = {}
        self._latest: Snapshot | None = None
        self._latest_s = 0.0
        self._expiry: tuple[float, float | None] | None = None

    async def snapshot(self) -> Snapshot:
        async with self._lock:
            if self._latest is None or self._clock() - self._latest_s > CACHED_S:
                self._latest = await self._ask()
                self._latest_s = self._clock()
            return self._latest

    async def trouble(self) -> str:
        """Return why the manager that this machine knows would not serve a device now, or an empty string."""
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                return (await self._operator.manager()).trouble
        except Refused:
            # It answers, and is of a release that does not say how it is.
            return ""
        except (ShoalError, OSError, TimeoutError):
            return "the manager does not answer"

    async def _ask(self) -> Snapshot:
        began_s = self._clock()
        managers = await self._managers.ask()
        ready_s = min(self._clock() - began_s, ANSWER_TIMEOUT_S / 2)
        status: Status | None = None
        answer_s = 0.0
        endpoint, address = self._managers.answering(managers)
        asked_s = self._clock()
        with contextlib.suppress(ShoalError, OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_TIMEOUT_S - ready_s):
                status = await self._operator.status(after_event=self.counters.seen_event or 0, endpoint=endpoint)
                answer_s = self._clock() - asked_s
        if status is not None:
            self.counters.on_status(status, now_s=self._clock())
            with contextlib.suppress(ShoalError, OSError, TimeoutError):
                # What the jobs say in more words is worth waiting for, and not worth failing for.
                async with asyncio.timeout(ANSWER_TIMEOUT_S - ready_s - answer_s):
                    await self._ask_jobs(status, endpoint)
        jobs = shown_jobs(status.jobs) if status is not None else []
        ages, free_bytes = await asyncio.to_thread(self._look_at_disk, [job.job for job in jobs])
        return Snapshot(
            status=status,
            counters=self.counters,
            served=dict(self._served),
            answer_s=answer_s,
            certificate_expiry_s=await asyncio.to_thread(self._certificate_expiry_s),
            disk_free_bytes=free_bytes,
            checkpoint_age_s=ages,
            managers=managers,
            answered_by=address,
        )

    async def _ask_jobs(self, status: Status, endpoint: str) -> None:
        jobs = shown_jobs(status.jobs)
        shown = {job.job for job in jobs}
        for gone in set(self._asked) - shown:
            del self._asked[gone]
            self._served.pop(gone, None)
        every_s = DETAILS_EVERY_LARGE_S if len(status.nodes) > LARGE_NODES else DETAILS_EVERY_S
        for job in jobs:
            if self._is_due(job, every_s):
                seen = self.counters.job(job.job).seen_event or 0
                told = await self._operator.status(job.job, seen, endpoint=endpoint)
                self.counters.on_job(job.job, told)
                self._served[job.job] = next((view.served for view in told.jobs if view.job == job.job), None)
                self._asked[job.job] = (self._clock(), job.state.is_ended)

    def _is_due(self, job: JobView, every_s: float) -> bool:
        at_s, was_over = self._asked.get(job.job, (-every_s, False))
        # A model may be published or rolled back long after the job: then a minute is soon enough.
        return self._clock() - at_s >= (60.0 if was_over else every_s)

    def _look_at_disk(self, jobs: list[str]) -> tuple[dict[str, float], int | None]:
        """Checkpoints and the disk, if this is the manager's home. Runs in a thread."""
        if not self._places.registry.exists():
            return {}, None
        ages = {}
        for job in jobs:
            with contextlib.suppress(OSError, ValueError):
                newest = max(path.stat().st_mtime for path in self._places.checkpoints(job).glob("*.safetensors"))
                ages[job] = max(0.0, time.time() - newest)
        with contextlib.suppress(OSError):
            return ages, shutil.disk_usage(self._places.registry.parent).free
        return ages, None

    def _certificate_expiry_s(self) -> float | None:
        if self._expiry is None or self._clock() - self._expiry[0] > CERTIFICATES_EVERY_S:
            found = []
            for folder in (self._places.operator, self._places.manager, self._places.node):
                with contextlib.suppress(ShoalError, OSError, ValueError):
                    if (folder / IDENTITY_FILE).exists():
                        found.append(Identity.load(folder).expires_s)
            self._expiry = (self._clock(), min(found, default=None))
        return self._expiry[1]
