"""The cluster's other managers: which of them has a job, and which lacks devices. A part of the manager.

Each job has one manager, and everything about it happens there: its leader, its workers and its versions. So a device
belongs to the manager whose job it works for. Another manager that it dials sends it there.
"""

from __future__ import annotations

import hashlib
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

#: Seconds after a job was given away in which a look at the store may be older than that.
GIVEN_S = 60.0

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
    others: Iterable[Seat],
    managers: Mapping[str, str],
    *,
    own: str,
    helpers: Mapping[str, str] | None = None,
    is_drained: bool = False,
    is_full: bool = False,
) -> OtherManagersSeen:
    """Return the other managers' seats and the manager of each open job, living or not. ``helpers``:
    job -> the node that its plan names as its helper. ``is_drained``: whether an operator drained this manager.
    ``is_full``: whether it holds as many devices as it can."""
    living = {seat.holder: seat for seat in others}
    return OtherManagersSeen(
        managers=tuple(
            OtherManager(
                endpoint=seat.address,
                wants=seat.wants,
                starving=seat.starving,
                devices=seat.devices,
                is_drained=seat.is_drained,
            )
            for seat in living.values()
            if seat.address
        ),
        jobs={
            job: living[holder].address if holder in living else "" for job, holder in managers.items() if holder != own
        },
        helpers={job: node for job, node in (helpers or {}).items() if managers.get(job, own) != own},
        is_drained=is_drained,
        is_full=is_full,
    )


def with_unknown(seen: OtherManagersSeen, jobs: Iterable[str]) -> OtherManagersSeen:
    """The same while the store is away: nobody knows who has these jobs, or whether they are over."""
    return replace(seen, jobs={**dict.fromkeys(jobs, ""), **seen.jobs})


class OtherManagers:
    def __init__(self) -> None:
        self._managers: tuple[OtherManager, ...] = ()
        self._jobs: dict[str, str] = {}
        self._helpers: dict[str, str] = {}
        #: Job that was given away -> where its manager was dialled then, and when that was.
        self._given: dict[str, tuple[str, float]] = {}
        #: An operator drained this manager; and it holds as many devices as it can.
        self.is_drained = self.is_full = False
        #: Where a manager is dialled -> when devices were sent there, of late.
        self._sent_s: dict[str, list[float]] = {}

    def on_seen(self, event: OtherManagersSeen, *, own: Container[str]) -> None:
        """``own``: jobs that this manager has. The store may have been read before it took one of them."""
        self._managers, self.is_drained, self.is_full = event.managers, event.is_drained, event.is_full
        given = {job: endpoint for job, (endpoint, _) in self._given.items()}
        self._jobs = {**given, **{job: endpoint for job, endpoint in event.jobs.items() if job not in own}}
        self._helpers = {job: node for job, node in event.helpers.items() if job in self._jobs}
        there = {manager.endpoint for manager in event.managers}
        self._sent_s = {endpoint: sent for endpoint, sent in self._sent_s.items() if endpoint in there}

    def on_taken(self, job: str) -> None:
        """The job is this manager's from here on."""
        self._jobs.pop(job, None)
        self._helpers.pop(job, None)
        self._given.pop(job, None)

    def on_given(self, job: str, endpoint: str, now_s: float) -> None:
        """The job is no longer this manager's. A look at the store from before does not show that yet."""
        self._jobs[job] = endpoint
        self._given[job] = (endpoint, now_s)

    def forget_given(self, now_s: float) -> None:
        """The store shows by now who has jobs that were given away, or that they are over."""
        self._given = {job: given for job, given in self._given.items() if now_s - given[1] < GIVEN_S}

    def taker(self, key: str) -> str | None:
        """Return where the living manager is dialled that takes the jobs with this key, or None if no other takes
        jobs. A key has the same manager every time, and keys spread over the managers."""
        takers = [manager.endpoint for manager in self._managers if not manager.is_drained]
        return max(takers, key=lambda endpoint: hashlib.sha256(f"{key} {endpoint}".encode()).digest(), default=None)

    def emptiest(self, devices: int) -> str | None:
        """Return where the manager with the fewest devices is dialled, if it takes jobs and has at most half as many
        devices as this one: its machine may hold fewer. ``devices``: those here."""
        takers = [manager for manager in self._managers if not manager.is_drained and 2 * manager.devices <= devices]
        return min(((manager.devices, manager.endpoint) for manager in takers), default=(0, None))[1]

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
