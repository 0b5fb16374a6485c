"""The jobs of a cluster with several managers, as one of them sees them: which it takes over, and who has the others.

Reads the store, tells the manager role, and answers commands about jobs that another manager has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Container, Iterable

from shoal.roles.events import Event, JobGiven, JobTaken, OtherManagersSeen
from shoal.roles.manager.cluster_state import JobRecord
from shoal.roles.manager.other_managers import AbsentJobs, seen_in_store, with_unknown
from shoal.roles.manager.seat_watch import Seat
from shoal.runtime.stored_jobs import spec_of
from shoal.store.base import Away
from shoal.store.registry import Registry
from shoal.store.rows import JobRow
from shoal.store.seat import GivenAway
from shoal.wire.messages import Denied, Done, DrainManager, Hello, Message, UndrainManager

log = logging.getLogger("shoal")


class SharedJobs:
    def __init__(
        self,
        registry: Registry,
        *,
        knows: Callable[[str], bool],
        post: Callable[[Event], object],
        record_of: Callable[[JobRow], JobRecord],
        on_ended: Callable[[JobRow], object] = lambda row: None,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """``knows``: whether the manager role here has a job, open or ended, or is giving it away. ``post``: tells
        that role. ``on_ended`` hears, in a thread, of each job that ended at whichever manager.
        ``is_full``: whether this manager holds as many devices as it can."""
        self._registry = registry
        self._knows = knows
        self._post = post
        self._record_of = record_of
        self._on_ended = on_ended
        self._is_full = is_full
        #: The seats of the other managers that live.
        self._others: tuple[Seat, ...] = ()
        #: An operator drained this manager.
        self.is_drained = False
        #: How many jobs this manager took over from managers that are gone.
        self.jobs_taken = 0
        self._seen = OtherManagersSeen()
        self._absent = AbsentJobs()
        #: Open job -> the node that opens its sums, or "" if its plan names none.
        self._helpers: dict[str, str] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where devices dial the other managers."""
        return tuple(seat.address for seat in self._others if seat.address)

    async def look(self, others: Iterable[Seat], *, is_drained: bool = False) -> bool:
        """These are the other managers that live now. Whether a job may be without a manager."""
        self._others, self.is_drained = tuple(others), is_drained
        await self._tell()
        return "" in self._seen.jobs.values()

    async def _tell(self) -> None:
        managers, helpers = await asyncio.to_thread(self._open_jobs)
        own = self._registry.holder
        for job in [job for job, holder in managers.items() if holder == own and not self._knows(job)]:
            # Another manager gave it to this one, unless this one gave it away since.
            gives = self._registry.times_given(job)
            row = await asyncio.to_thread(self._registry.job, job)
            if row is None or row.manager != own:
                continue
            record = await asyncio.to_thread(self._record_of, row)
            if self._registry.times_given(job) == gives:
                self._post(JobTaken(record=record))
        seen = seen_in_store(
            self._others,
            managers,
            own=own,
            helpers=helpers,
            is_drained=self.is_drained,
            is_full=self._is_full(),
        )
        if seen != self._seen or any(manager.wants for manager in seen.managers):
            self._seen = seen
            self._post(seen)

    def _open_jobs(self) -> tuple[dict[str, str], dict[str, str]]:
        """The manager of each open job, and the helper of those that name one. A plan does not change: it is read
        once."""
        managers = self._registry.managers_of_open_jobs()
        for job in self._helpers.keys() - managers.keys():
            if (row := self._registry.job(job)) is not None and row.state.is_ended:
                self._on_ended(row)
        known = {job: node for job, node in self._helpers.items() if job in managers}
        for job in managers.keys() - known.keys():
            if (row := self._registry.job(job)) is not None:
                known[job] = spec_of(row).plan.believes.helper or ""
        self._helpers = known
        return managers, {job: node for job, node in known.items() if node}

    async def before_hello(self, hello: Hello) -> None:
        """A device works for jobs that the role here does not have: look who has them before it is answered. While the
        store is away nobody knows, and the device is not told that they are over; nor at once if the store does not
        know them, for it may have gone back."""
        jobs = (*hello.jobs, *(leads.job for leads in hello.leads))
        unknown = [job for job in jobs if not self._knows(job)]
        if not unknown:
            return
        try:
            await self._tell()
            absent = await asyncio.to_thread(self._absent_of, unknown)
            unknown = self._absent.unknown(absent, time.monotonic())
        except Away:
            pass
        if unknown:
            self._seen = with_unknown(self._seen, unknown)
            self._post(self._seen)

    def _absent_of(self, jobs: Iterable[str]) -> list[str]:
        return [job for job in jobs if self._registry.job(job) is None]

    async def take(self, orphans: Iterable[JobRow]) -> None:
        """Take over jobs whose managers are gone; another manager may be quicker."""
        for orphan in orphans:
            if not await asyncio.to_thread(self._registry.take_job, orphan):
                continue
            self.jobs_taken += 1
            log.info("job %s is this manager's now: the one before is gone", orphan.job)
            await self._give(orphan.job)

    def give(self, job: str, address: str) -> JobGiven:
        """Make a job of this manager that of the one at this address. Runs in a thread."""
        with contextlib.suppress(GivenAway):
            # One that is given away already was, by an attempt whose answer was lost.
            if not self._registry.give_job(job, address):
                row = self._registry.job(job)
                return JobGiven(job=job, record=self._record_of(row) if row is not None else None)
        log.info("job %s is the manager's at %s now", job, address)
        return JobGiven(job=job)

    async def _give(self, job: str) -> None:
        """Tell the role of a job as the store has it now."""
        row = await asyncio.to_thread(self._registry.job, job)
        if row is not None:
            self._post(JobTaken(record=await asyncio.to_thread(self._record_of, row)))

    def drain(self, command: DrainManager | UndrainManager, *, by: str) -> Done:
        """Drain a manager, or end that: this one, or the one at the address in the command. Runs in a thread. That
        manager finds out when it reads the store again."""
        own = next((seat.address for seat in self._registry.seats() if seat.holder == self._registry.holder), "")
        manager = command.manager or own
        if isinstance(command, UndrainManager):
            self._registry.undrain_manager(manager)
            return Done(reason=f"the manager at {manager} takes jobs again")
        self._registry.drain_manager(manager, f"{by}: {command.reason}" if command.reason else by)
        return Done(
            reason=f"the manager at {manager} gives its jobs to others and takes no more; undo with"
            f" `shoal managers undrain {manager}`"
        )

    async def elsewhere(self, message: Message) -> Denied | None:
        """Which manager answers a command about a job; None: this one."""
        job = str(getattr(message, "job", ""))
        row = await asyncio.to_thread(self._registry.job, job) if job else None
        if row is None or row.manager == self._registry.holder:
            return None
        found = await asyncio.to_thread(self._registry.manager_of, job)
        if found is not None and found[1]:
            return Denied(reason=f"another manager has job {job}: ask {found[1]}", endpoint=found[1])
        if row.state.is_open:
            return Denied(reason=f"no manager has job {job} at this moment: try again in a few seconds")
        if not self._knows(job):
            # It is over, and any manager may answer for it.
            await self._give(job)
        return None

    def rows(self, *, here: Container[str]) -> list[JobRow]:
        """Return the open jobs in the store except those that the role has ``here``. One that is given away at this
        moment is among them."""
        return [row for row in self._registry.open_jobs() if row.job not in here]
