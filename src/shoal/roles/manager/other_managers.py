"""The cluster's other managers: which of them has a job, and which lacks devices. A part of the manager.

Each job has one manager, and everything about it happens there: its leader, its workers and its versions. So a device
belongs to the manager whose job it works for. Another manager that it dials sends it there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace

from shoal.roles.events import OtherManager, OtherManagersSeen
from shoal.roles.manager.seat_watch import Seat

#: A device that was sent to another manager counts as on its way for so long: that one's figures do not show it yet.
ON_ITS_WAY_S = 6.0

#: A device has this long to come to another manager, after it was sent there or its own manager ended. Then it is lost.
COMES_WITHIN_S = 60.0

#: A device that was sent here is not sent on before this: the manager that sent it may not know what it can do.
STAYS_S = 60.0

#: A device that another manager sent back so soon was perhaps of no use there: figures of other managers do not say
#: which devices their jobs take.
IN_VAIN_WITHIN_S = 2 * STAYS_S
#: The longest time that such a device is not sent to others.
KEPT_S = 1800.0


def kept_for_s(in_vain: int) -> float:
    """Return for how long a device is not sent to other managers that was sent in vain this often in a row. It may have
    worked there for a minute, so the first times are short."""
    return min(KEPT_S, IN_VAIN_WITHIN_S * 2.0 ** min(in_vain - 1, 10))


#: A job that a device works for, and that the store does not know, is not called over for this long: the store may have
#: gone back, and the manager that took the job writes it again when it finds out.
ABSENT_S = 15.0

#: Jobs of which the first question is remembered.
_ABSENT_MAX = 1000


class AbsentJobs:
    """Jobs that devices asked for and that the store does not know, and since when they do."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}

    def unknown(self, absent: Iterable[str], now_s: float) -> list[str]:
        """Return those of these jobs that may still turn up."""
        jobs = list(absent)
        for job in jobs:
            self._since_s.setdefault(job, now_s)
        for oldest in list(self._since_s)[:-_ABSENT_MAX]:
            del self._since_s[oldest]
        return [job for job in jobs if now_s - self._since_s.get(job, now_s) < ABSENT_S]


def seen_in_store(
    others: Iterable[Seat], managers: Mapping[str, str], *, own: str, helpers: Mapping[str, str] | None = None
) -> OtherManagersSeen:
    """Return the other managers' seats and the manager of each open job, living or not. ``helpers``:
    job -> the node that its plan names as its helper."""
    living = {seat.holder: seat for seat in others}
    return OtherManagersSeen(
        managers=tuple(
            OtherManager(endpoint=seat.address, wants=seat.wants, starving=seat.starving)
            for seat in living.values()
            if seat.address
        ),
        jobs={
            job: living[holder].address if holder in living else "" for job, holder in managers.items() if holder != own
        },
        helpers={job: node for job, node in (helpers or {}).items() if managers.get(job, own) != own},
    )


def with_unknown(seen: OtherManagersSeen, jobs: Iterable[str]) -> OtherManagersSeen:
    """The same while the store is away: nobody knows who has these jobs, or whether they are over."""
    return replace(seen, jobs={**dict.fromkeys(jobs, ""), **seen.jobs})


class OtherManagers:
    def __init__(self) -> None:
        self._managers: tuple[OtherManager, ...] = ()
        self._jobs: dict[str, str] = {}
        self._helpers: dict[str, str] = {}
        #: Where a manager is dialled -> when devices were sent there, of late.
        self._sent_s: dict[str, list[float]] = {}

    def on_seen(self, event: OtherManagersSeen, *, own: Container[str]) -> None:
        """``own``: jobs that this manager has. The store may have been read before it took one of them."""
        self._managers = event.managers
        self._jobs = {job: endpoint for job, endpoint in event.jobs.items() if job not in own}
        self._helpers = {job: node for job, node in event.helpers.items() if job in self._jobs}
        there = {manager.endpoint for manager in event.managers}
        self._sent_s = {endpoint: sent for endpoint, sent in self._sent_s.items() if endpoint in there}

    def on_taken(self, job: str) -> None:
        """The job is this manager's from here on."""
        self._jobs.pop(job, None)
        self._helpers.pop(job, None)

    def first(self, jobs: Iterable[str], *, is_own: Callable[[str], bool]) -> str | None:
        """The first of these jobs that is open, if it is not this manager's. None: it is, or all of them are over."""
        for job in jobs:
            if is_own(job):
                return None
            if job in self._jobs:
                return job
        return None

    @property
    def are_any(self) -> bool:
        """Whether another manager is alive."""
        return bool(self._managers)

    def has(self, job: str) -> bool:
        """Whether the job is open and not this manager's."""
        return job in self._jobs

    def endpoint(self, job: str) -> str:
        """Where the job's manager is dialled; empty: no manager has it yet."""
        return self._jobs[job]

    def helped(self) -> Iterator[tuple[str, str]]:
        """Jobs that a living manager has, each with the node that opens its sums."""
        return ((job, node) for job, node in sorted(self._helpers.items()) if self._jobs[job])

    def starving(self, now_s: float) -> int:
        """How many devices the jobs of others lack, beyond those on their way."""
        return sum(lacking for _, lacking in self.lacking(now_s))

    def lacking(self, now_s: float, *, may_grow: bool = False) -> Iterator[tuple[str, int]]:
        """Managers that lack devices, and how many beyond those on their way; if their jobs ``may_grow``, as many as
        they could use."""
        for manager in self._managers:
            sent_s = [at_s for at_s in self._sent_s.get(manager.endpoint, ()) if now_s - at_s < ON_ITS_WAY_S]
            self._sent_s[manager.endpoint] = sent_s
            wanted = max(manager.wants, manager.starving) if may_grow else manager.starving
            if wanted > len(sent_s):
                yield manager.endpoint, wanted - len(sent_s)

    def on_sent(self, endpoint: str, now_s: float) -> None:
        self._sent_s.setdefault(endpoint, []).append(now_s)
