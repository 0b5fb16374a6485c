"""The store that simulated managers share: a seat for each, the manager of each job, and files that are valid while
their manager proves its seat.

The twin of ``store.seat`` and of a manager's behaviour while its database is unreachable. The deployed role
(``roles.manager.seat_watch``) decides whose seat may be ended.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dst.managers.remembered import SimRemembered
from shoal.roles.actions import GiveJob, Keep
from shoal.roles.events import JobGiven
from shoal.roles.manager.cluster_state import JobRecord
from shoal.roles.manager.seat_watch import Seat, home_of
from shoal.sim.disk import AGAIN_S, Disk, Write

#: The names of managers that share a store. The first has the name of a single manager.
LABELS = ("home", "home-2")

#: A proof that takes longer than this fails, however slow the store is.
PROOF_MOST_S = 5.0


#: The count of a seat whose manager must start over.
REWOUND = -1


@dataclass(eq=False, slots=True)
class SimTenure:
    """A manager's right to write."""

    holder: str
    #: The seat that this home had before, and its last count in the store.
    before: str = ""
    before_beats: int = 0
    #: Seats that another manager had ended, with their last counts.
    ended_before: dict[str, int] = field(default_factory=dict)
    #: Its count, and whether it found that the store went back.
    counted: int = 0
    went_back: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class StorePast:
    """The store's records at one moment. Checkpoints are elsewhere, and do not go back with them."""

    jobs: dict[str, JobRecord]
    seats: dict[str, Seat]
    ended: dict[str, int]
    managers: dict[str, str]
    drained: frozenset[str]
    incidents: int


class SimSeats:
    """A row with a count for each manager that is alive."""

    def __init__(self) -> None:
        self._seats: dict[str, Seat] = {}
        #: Seats that another manager ended, and their counts.
        self._ended: dict[str, int] = {}
        #: The homes of drained managers.
        self.drained: frozenset[str] = frozenset()

    def open(self, holder: str, address: str = "") -> SimTenure:
        """Open a seat, and end the seats of this manager's earlier processes: two of one home never run."""
        tenure = SimTenure(holder)
        for before in [each for each in self._seats if home_of(each) == home_of(holder)]:
            tenure.before, tenure.before_beats = before, self._seats.pop(before).beats
        for ended in [each for each in self._ended if home_of(each) == home_of(holder)]:
            tenure.ended_before[ended] = self._ended.pop(ended)
        self._seats[holder] = Seat(holder=holder, beats=0, address=address)
        return tenure

    def past(self) -> tuple[dict[str, Seat], dict[str, int]]:
        return dict(self._seats), dict(self._ended)

    def go_back(self, past: StorePast) -> None:
        self._seats, self._ended, self.drained = dict(past.seats), dict(past.ended), past.drained

    def rewind(self, holders: Iterable[str]) -> None:
        """Have these managers start over."""
        for holder in holders:
            self._seats[holder] = self._seats[holder]._replace(beats=REWOUND)

    def look(self) -> list[Seat]:
        seats = (self._seats[holder] for holder in sorted(self._seats))
        return [seat._replace(is_drained=self.is_drained(seat.holder)) for seat in seats]

    def is_drained(self, holder: str) -> bool:
        return home_of(holder) in self.drained

    def drain(self, holder: str) -> bool:
        """Have this manager take no job, if another one could. Return whether it is so from now on."""
        others = [seat for seat in self.look() if seat.holder != holder and not seat.is_drained]
        if holder not in self._seats or self.is_drained(holder) or not others:
            return False
        self.drained |= {home_of(holder)}
        return True

    def undrain(self, holder: str) -> None:
        self.drained -= {home_of(holder)}

    def prove(self, tenure: SimTenure) -> bool:
        """Raise the count, if this manager has a seat whose count it knows."""
        seat = self._seats.get(tenure.holder)
        if seat is None:
            tenure.went_back = tenure.holder not in self._ended
            return False
        if seat.beats + 1 <= tenure.counted:
            tenure.went_back = True
            return False
        self._seats[tenure.holder] = seat._replace(beats=seat.beats + 1)
        tenure.counted = seat.beats + 1
        return True

    def renew(self, tenure: SimTenure, *, wants: int, starving: int) -> bool:
        is_proven, seat = self.prove(tenure), self._seats.get(tenure.holder)
        if seat is not None:
            self._seats[tenure.holder] = seat._replace(wants=wants, starving=starving)
        return is_proven

    def end(self, silent: Seat, tenure: SimTenure) -> bool:
        """End the seat of another manager if its count did not rise since it was seen, and the caller has a seat."""
        if not self.prove(tenure):
            return False
        seat = self._seats.get(silent.holder)
        if seat is None or seat.beats != silent.beats:
            return False
        del self._seats[silent.holder]
        self._ended[silent.holder] = seat.beats
        return True


class SharedStore:
    """The store's records, which managers can reach it, and how fast it is."""

    def __init__(self, truth: Disk) -> None:
        #: The durable records of all managers.
        self.truth = truth
        self.seats = SimSeats()
        #: Job -> the manager that it belongs to.
        self.managers: dict[str, str] = {}
        self._cuts: Counter[str] = Counter()
        self._slowness: list[float] = []
        self._read_only = 0
        #: How often a manager found that it went back.
        self.incidents = 0
        #: Called for every write, with the manager's label, its seat, and the manager that has the job.
        self.on_write: Callable[[str, str, str], object] = lambda label, holder, job: None
        #: Called for every job that a manager gives to another, with the seats of both.
        self.on_give: Callable[[str, str, str], object] = lambda job, before, holder: None
        #: Called for every record that a manager wrote again.
        self.on_mended: Callable[[JobRecord], object] = lambda record: None
        #: When it last became the same for all managers again, after a partition or a slow period.
        self.even_s = -math.inf

    def is_away(self, label: str) -> bool:
        return self._cuts[label] > 0

    def takes_writes(self, label: str) -> bool:
        """Whether writes of this manager succeed. Reads may work even if they do not."""
        return not self.is_away(label) and not self._read_only

    @property
    def slow_factor(self) -> float:
        return math.prod(self._slowness)

    @property
    def proof_s(self) -> float:
        """The time to prove a seat: negligible unless the store is slow."""
        return min(2 * self.truth.sync_s * self.slow_factor, PROOF_MOST_S) if self._slowness else 0.0

    def orphans(self) -> dict[str, str]:
        """Return the open jobs that no living manager has, and the device that leads each, or "" if none does."""
        living = {seat.holder for seat in self.seats.look()}
        return {
            job: record.leader if record.leader is not None and record.leader != "home" else ""
            for job, record in self.truth.jobs.items()
            if record.is_open and self.managers.get(job) not in living
        }

    def take_job(self, job: str, tenure: SimTenure) -> bool:
        """Take a job if its manager has no seat any more, and this one has one and is not drained. Return whether it is
        taken."""
        if self.seats.is_drained(tenure.holder) or job not in self.orphans() or not self.seats.prove(tenure):
            return False
        self.managers[job] = tenure.holder
        return True

    def give_job(self, job: str, address: str) -> bool:
        """To the manager at this address, if that one lives and is not drained. The giver has proved its seat."""
        to = next((seat for seat in self.seats.look() if seat.address == address and not seat.is_drained), None)
        if to is None:
            return False
        self.on_give(job, self.managers[job], to.holder)
        self.managers[job] = to.holder
        return True

    @property
    def is_uneven(self) -> bool:
        """Whether some managers reach it and others do not."""
        return len({self.is_away(label) for label in LABELS}) > 1

    def cut(self, labels: tuple[str, ...]) -> Callable[[], None]:
        """Cut these managers off, until the returned function is called."""
        self._cuts.update(labels)

        def end() -> None:
            self._cuts.subtract(labels)
            if set(labels) != set(LABELS):
                self.even_s = self.truth.kernel.now_s

        return end

    def slow(self, factor: float) -> Callable[[], None]:
        self._slowness.append(factor)

        def end() -> None:
            self._slowness.remove(factor)
            # A proof that has begun still takes as long as before.
            self.even_s = self.truth.kernel.now_s

        return end

    def past(self) -> StorePast:
        seats, ended = self.seats.past()
        return StorePast(
            jobs=dict(self.truth.jobs),
            seats=seats,
            ended=ended,
            managers=dict(self.managers),
            drained=self.seats.drained,
            incidents=self.incidents,
        )

    def go_back(self, past: StorePast) -> None:
        """Set the records back to an earlier moment."""
        # In place, since all managers share the same objects.
        self.truth.jobs.clear()
        self.truth.jobs.update(past.jobs)
        self.seats.go_back(past)
        self.managers, self.incidents = dict(past.managers), past.incidents

    def write_again(self, record: JobRecord) -> None:
        """Write a manager's remembered record of a job, whichever manager has the job."""
        self.truth.jobs[record.spec.job] = record
        self.on_mended(record)

    def read_only(self) -> Callable[[], None]:
        """Answer reads and refuse writes, until the returned function is called."""
        self._read_only += 1

        def end() -> None:
            self._read_only -= 1

        return end


class SharedDisk(Disk):
    """The store as one manager uses it in one tenure. Unfinished writes are its own; durable data is shared by all.

    A write becomes durable only if it proves the tenure at that moment, and only if no other manager has its job.
    """

    def __init__(
        self,
        store: SharedStore,
        *,
        label: str,
        tenure: SimTenure,
        remembered: SimRemembered,
        on_deposed: Callable[[], object],
    ) -> None:
        """``on_deposed`` is called if a record must not be written: its manager can only end."""
        super().__init__(store.truth.kernel, store.truth.flaws)
        self._store = store
        self._label = label
        self._tenure = tenure
        self._on_deposed = on_deposed
        self._remembered = remembered
        #: The job that is given away now.
        self._giving = ""
        self.share_with(store.truth)

    @property
    def sync_s(self) -> float:
        return self._store.truth.sync_s * self._store.slow_factor

    @property
    def has_room(self) -> bool:
        return self._store.truth.has_room

    @property
    def is_away(self) -> bool:
        return self._store.is_away(self._label)

    @property
    def takes_writes(self) -> bool:
        return self._store.takes_writes(self._label)

    def stored_jobs(self) -> list[JobRecord]:
        """Return the ended jobs. A manager begins without an open job, and takes those that nobody has, one by one."""
        return [record for record in super().stored_jobs() if not record.is_open]

    def stored_job(self, job: str) -> JobRecord:
        return next(record for record in super().stored_jobs() if record.spec.job == job)

    def _may_write(self, job: str) -> bool:
        if not self.takes_writes or not self._store.seats.prove(self._tenure):
            return False
        return self._store.managers.setdefault(job, self._tenure.holder) == self._tenure.holder

    def _tell(self, job: str) -> None:
        self._store.on_write(self._label, self._tenure.holder, job)

    def keep(self, keep: Keep, done: Callable[[], object] | None = None) -> float:
        """Write a job's record, waiting as long as the store refuses writes. Never succeeds if another manager has the
        job: then this one is about to end."""
        assert done is not None
        if keep.spec is None and keep.job not in self.jobs and keep.job not in self.jobs_under_way():
            # The store went back to before it was submitted, and a proof shows that.
            self.kernel.after(self.sync_s / 2, self._fail, keep.job)
            return math.inf
        record = self.recorded(keep)
        self.kernel.after(self.sync_s / 2, self._try_to_keep, record, done)
        return math.inf

    def _fail(self, job: str) -> None:
        if not self.takes_writes:
            self.kernel.after(AGAIN_S, self._fail, job)
            return
        is_proven = self._store.seats.prove(self._tenure)
        assert not is_proven, f"the record of {job} is gone, and its manager has a seat"
        self._on_deposed()

    def _try_to_keep(self, record: JobRecord, done: Callable[[], object]) -> None:
        if not self.is_under_way(record):
            return
        if not self.takes_writes:
            self.kernel.after(AGAIN_S, self._try_to_keep, record, done)
        elif self._may_write(record.spec.job):
            self._kept(record)
            self.kernel.after(self.sync_s / 2, done)
        else:
            self._on_deposed()

    def give(self, give: GiveJob, done: Callable[[JobGiven], object]) -> float:
        """Make a job another manager's, however long the store takes no write."""
        self._giving = give.job
        self.kernel.after(self.sync_s / 2, self._try_to_give, give, done)
        return math.inf

    def _try_to_give(self, give: GiveJob, done: Callable[[JobGiven], object]) -> None:
        if self._giving != give.job:
            return
        if not self.takes_writes:
            self.kernel.after(AGAIN_S, self._try_to_give, give, done)
        elif self._may_write(give.job):
            self._giving = ""
            is_given = self._store.give_job(give.job, give.endpoint)
            record = None if is_given else self.stored_job(give.job)
            self.kernel.after(self.sync_s / 2, done, JobGiven(job=give.job, record=record))
        else:
            self._on_deposed()

    def _kept(self, record: JobRecord) -> None:
        self._tell(record.spec.job)
        if self._remembered.on_kept(record):
            self._remembered.on_counted(self._tenure)
        super()._kept(record)

    def _commit(self, write: Write) -> None:
        self._tell(write.job)
        super()._commit(write)

    def _finish(self, write: Write, done: Callable[[bool], object]) -> None:
        if write.is_void or self._may_write(write.job):
            super()._finish(write, done)
        else:
            self.give_up(write)
            self.kernel.after(self.sync_s / 10, done, False)

    def crash(self, fate: str) -> None:
        """End with the manager's process: its unfinished writes are done or not, and a partial file gets no name."""
        self._giving = ""
        jobs = self.jobs_under_way()
        is_done = bool(jobs) and fate == "safe" and all(map(self._may_write, jobs))
        if is_done:
            for job in jobs:
                self._tell(job)
            for record in self.records_under_way():
                self._remembered.on_kept(record)
        super().crash("safe" if is_done else "lost")
