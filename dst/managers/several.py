"""The managers of one simulated cluster that share a store: each has its own seat and jobs, and takes over jobs of
managers that failed.

All have the name of the manager's node. A device dials the address of one, or a proxy that passes it on to any that
serves. The twin of ``runtime.seat_holder``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

from dst.managers.remembered import SimRemembered, is_behind, mend
from dst.managers.shared_store import LABELS, SharedDisk, SharedStore, SimTenure, StorePast
from shoal.roles.events import JobTaken, OtherManagersSeen
from shoal.roles.manager.other_managers import AbsentJobs, seen_in_store, with_unknown
from shoal.roles.manager.seat_watch import LOOK_EVERY_S, RENEW_EVERY_S, SILENT_S, Seat, SeatWatch, may_serve, share
from shoal.sim.driver.manager_node import SimManagerNode
from shoal.sim.process import Process
from shoal.sim.world import World

#: Where devices dial each, and where the proxy is.
ENDPOINTS = {label: f"{label}:7070" for label in LABELS}
PROXY = "proxy:7070"

#: How long a manager takes to start, and after how long one that ended is started again.
START_S = 0.5
RESTART_S = 5.0
#: The same times for a manager that starts over because the store went back.
START_OVER_S = 0.5

#: How often a manager stands still between its last look and its attempt to end a seat, and for how long.
LATE_SHARE = 0.25
LATE_MOST_S = 15.0

#: A seat's holder that had no fault for this long renews its seat in time.
WELL_AFTER_S = 2 * SILENT_S


@dataclass(eq=False, slots=True)
class _Place:
    """The place of one manager."""

    label: str
    number: int = 0
    process: Process | None = None
    watch: SeatWatch = field(default_factory=SeatWatch)
    tenure: SimTenure | None = None
    disk: SharedDisk | None = None
    node: SimManagerNode | None = None
    #: The other managers, as the store showed them last.
    seen: OtherManagersSeen = field(default_factory=OtherManagersSeen)
    proven_s: float = 0.0
    is_serving: bool = False
    #: An operator drained it.
    is_drained: bool = False
    #: Jobs that devices asked for and that the store does not know.
    absent: AbsentJobs = field(default_factory=AbsentJobs)
    #: Whether its last process found that the store went back.
    found_back: bool = False
    #: The records in its home directory.
    remembered: SimRemembered = field(default_factory=SimRemembered)

    @property
    def holder(self) -> str:
        """The name of this process in its seat."""
        return f"{self.label}/{self.number}"

    def forget_seat(self) -> None:
        """Forget the earlier seat, which showed that the store went back: the store now has what this manager
        remembers."""
        self.remembered.seat, self.remembered.beats, self.found_back = "", 0, False

    @property
    def open_jobs(self) -> int:
        return 0 if self.node is None else sum(view.state.is_open for view in self.node.manager.job_views())


class SeveralManagers:
    endpoint = PROXY
    # Another manager may be asked while the first is slow to store a job.
    submit_again_s = 1.0
    labels: tuple[str, ...] = LABELS

    def __init__(self, world: World) -> None:
        mark = world.mark
        self.store = SharedStore(world.disk)
        self.store.on_mended = functools.partial(world.kept, kind="mended")
        self.store.on_write = lambda label, holder, job: mark(label, "written", holder=holder, job=job)
        self.store.on_give = lambda job, before, holder: mark(LABELS[0], "given", job=job, before=before, holder=holder)
        self._world = world
        self._kernel = world.kernel
        self._mark = mark
        self._chance = world.rng.stream("standby")
        self._places = [_Place(label) for label in LABELS]

    # The store goes back --------------------------------------------------------------------------------

    def go_back(self, past: StorePast) -> None:
        """Set the store back to an earlier state. Observers get what it forgot and no running manager remembers."""
        before = dict(self.store.truth.jobs)
        self.store.go_back(past)
        running = [place.remembered for place in self._places if place.process is not None]
        reopened = {job for job, record in past.jobs.items() if record.is_open and not before[job].is_open}
        self._mark(
            LABELS[0],
            "went-back",
            seats=tuple(past.seats),
            managers=dict(past.managers),
            absent=tuple(sorted(before.keys() - past.jobs.keys())),
            reopened=tuple(sorted(reopened)),
            forgotten=tuple(job for job in sorted(reopened) if not any(job in each.ended for each in running)),
            drained=tuple(sorted(past.drained)),
        )

    # An operator drains one -----------------------------------------------------------------------------

    def drain(self) -> Callable[[], None]:
        """The manager with the most jobs is drained, until what is returned is called. Nothing happens if no other
        could take its jobs, or if the store takes no write."""
        place = self._busiest()
        if place is None or not any(self.store.takes_writes(label) for label in LABELS):
            return lambda: None
        holder = place.holder
        if not self.store.seats.drain(holder):
            return lambda: None
        self._mark(place.label, "drained", holder=holder)

        def end() -> None:
            self.store.seats.undrain(holder)
            self._mark(place.label, "undrained", holder=holder)

        return end

    # Which one ------------------------------------------------------------------------------------------

    def current(self) -> SimManagerNode | None:
        """Return the running manager with the most jobs, frozen or not."""
        place = self._busiest()
        return place.node if place is not None else None

    def _busiest(self) -> _Place | None:
        running = [place for place in self._places if place.node is not None]
        return max(running, key=lambda place: place.open_jobs, default=None)

    def of_job(self, job: str) -> SimManagerNode | None:
        """Return the manager that has this job, or None if no manager has it."""
        holder = self.store.managers.get(job)
        return next((place.node for place in self._places if place.holder == holder), None)

    def serving(self, endpoint: str) -> SimManagerNode | None:
        """Return the manager that answers at an address. The proxy passes a device on to any that accepts it."""
        open_ = [
            place.node
            for place in self._places
            if place.node is not None
            and place.is_serving
            and not place.node.process.is_stopped
            and endpoint in (PROXY, ENDPOINTS[place.label])
        ]
        return self._chance.pick(open_) if open_ else None

    def connected(self, node: str) -> SimManagerNode | None:
        """Return the manager to which this node has a session."""
        nodes = (place.node for place in self._places)
        return next((each for each in nodes if each is not None and node in each.role_server.connections), None)

    def holding(self) -> tuple[str, ...]:
        """Return the label of the manager with the most jobs."""
        place = self._busiest()
        return () if place is None else (place.label,)

    def labelled(self, label: str) -> SimManagerNode | None:
        return next((place.node for place in self._places if place.label == label), None)

    # Their processes ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every manager that does not run."""
        for place in self._places:
            self._start(place)

    def _start(self, place: _Place) -> None:
        if place.process is not None:
            return
        place.number += 1
        place.watch, place.tenure, place.absent = SeatWatch(), None, AbsentJobs()
        place.process = process = self._world.manager_process()
        process.label = place.label
        process.later(START_S, self._open, place, process)

    def power_off(self, *, disk: str) -> None:
        # One of the two machines; the address stays.
        self._end_one(fate=disk, kind="power off")

    def kill(self) -> None:
        self._end_one(fate="lost", kind="killed")

    def _end_one(self, *, fate: str, kind: str) -> None:
        """End the manager with the most jobs and its unfinished writes, or one that is about to start if none runs."""
        alive = [place for place in self._places if place.process is not None]
        place = self._busiest() or (alive[0] if alive else None)
        if place is not None:
            self._end(place, fate=fate, kind=kind)

    def _end(self, place: _Place, *, fate: str, kind: str) -> None:
        process, node, disk = place.process, place.node, place.disk
        assert process is not None
        self._mark(place.label, kind)
        process.alive = False
        place.process = place.node = place.disk = place.tenure = None
        place.is_serving = False
        if disk is not None:
            disk.crash(fate)
        if node is not None and kind == "killed":
            _hang_up(node, "the process on the other side ended")

    def _deposed(self, place: _Place, process: Process) -> None:
        """End and restart a manager that learns that another one took over, or that the store went back."""
        if place.process is process:
            place.found_back = went_back = place.tenure is not None and place.tenure.went_back
            if place.found_back and self.store.takes_writes(place.label):
                assert place.tenure is not None
                mend(self.store, place.remembered, place.tenure)
                place.forget_seat()
            self._end(place, fate="lost", kind="killed")
            again_s = START_OVER_S if went_back else RESTART_S
            self._kernel.after(again_s, self._start, place)

    # Seats ----------------------------------------------------------------------------------------------

    def _open(self, place: _Place, process: Process) -> None:
        if not self.store.takes_writes(place.label):
            process.later(LOOK_EVERY_S, self._open, place, process)
            return
        before = self.store.seats.look()
        place.tenure = tenure = self.store.seats.open(place.holder, ENDPOINTS[place.label])
        place.proven_s = self._kernel.now_s
        for seat in before:
            if seat not in self.store.seats.look():
                self._mark(place.label, "seat-ended", holder=seat.holder, was_well=False)
        self._mark(place.label, "seat", holder=place.holder)
        if place.found_back or is_behind(self.store, place.remembered, tenure):
            mend(self.store, place.remembered, tenure)
            place.forget_seat()
        place.remembered.on_counted(tenure)
        place.disk = SharedDisk(
            self.store,
            label=place.label,
            tenure=tenure,
            remembered=place.remembered,
            on_deposed=lambda: process.now(self._deposed, place, process),
        )
        self._mark(place.label, "started", jobs=tuple(place.disk.jobs))
        place.is_serving = True
        place.node = self._world.manager_node(process, place.disk)
        place.node.managers = tuple(dict.fromkeys((ENDPOINTS[place.label], *ENDPOINTS.values())))
        place.node.show_others = lambda jobs: self._show(place, jobs)
        process.later(LOOK_EVERY_S, self._look, place, process)
        process.later(RENEW_EVERY_S, self._renew, place, process, tenure)

    def _look(self, place: _Place, process: Process) -> None:
        if self.store.is_away(place.label):
            place.watch.blind()
        else:
            seats = {seat.holder: seat for seat in self.store.seats.look()}
            own = seats.pop(place.holder, None)
            assert place.tenure is not None
            is_doubtful = own is None or own.beats < place.tenure.counted
            # A proof shows whether another manager ended it, or the store went back.
            if is_doubtful and self.store.takes_writes(place.label) and not self.store.seats.prove(place.tenure):
                self._deposed(place, process)
                return
            others = list(seats.values())
            place.is_drained = own is not None and own.is_drained
            self._show(place)
            for silent in place.watch.silent(others, self._kernel.now_s):
                # The request reaches the store after a moment, in which the process sometimes stands still.
                late_s = self._chance.between(0.0, LATE_MOST_S) if self._chance.happens(LATE_SHARE) else 0.0
                process.later(self.store.truth.sync_s + late_s, self._end_seat, place, process, silent)
                return
            if place.watch.may_take and not place.is_drained:
                self._take_orphans(place, [seat.holder for seat in others if not seat.is_drained])
        process.later(LOOK_EVERY_S, self._look, place, process)

    def _end_seat(self, place: _Place, process: Process, silent: Seat) -> None:
        was_well = self._is_well(silent.holder)
        assert place.tenure is not None
        if self.store.takes_writes(place.label) and self.store.seats.end(silent, place.tenure):
            self._mark(place.label, "seat-ended", holder=silent.holder, was_well=was_well)
        self._look(place, process)

    def _take_orphans(self, place: _Place, others: list[str]) -> None:
        orphans = self.store.orphans() if self.store.takes_writes(place.label) else {}
        assert place.tenure is not None
        assert place.disk is not None
        assert place.node is not None
        for job in share(orphans, place.holder, others) if orphans else ():
            before = self.store.managers.get(job, "")
            if self.store.take_job(job, place.tenure):
                self._mark(place.label, "taken", job=job, holder=place.holder, before=before)
                place.node.to_manager(JobTaken(record=place.disk.stored_job(job)))

    def _show(self, place: _Place, asked: tuple[str, ...] = ()) -> None:
        """Show a manager the others as the store has them. While the store is unreachable, nobody can say who has the
        jobs in question, or whether they have ended."""
        node = place.node
        assert node is not None
        if self.store.is_away(place.label):
            place.seen = with_unknown(place.seen, [job for job in asked if node.manager.spec(job) is None])
        else:
            others = [seat for seat in self.store.seats.look() if seat.holder != place.holder]
            records, managers = self.store.truth.jobs, self.store.managers
            place.remembered.on_seen(records.values())
            open_jobs = {job: managers.get(job, "") for job, record in records.items() if record.is_open}
            helpers = {job: named for job in open_jobs if (named := records[job].helper) is not None}
            self._adopt_given(place, node, [job for job, holder in open_jobs.items() if holder == place.holder])
            place.seen = seen_in_store(
                others, open_jobs, own=place.holder, helpers=helpers, is_drained=place.is_drained
            )
            absent = [job for job in asked if job not in records]
            place.seen = with_unknown(place.seen, place.absent.unknown(absent, self._kernel.now_s))
        node.to_manager(place.seen)

    def _adopt_given(self, place: _Place, node: SimManagerNode, own: list[str]) -> None:
        """Tell a manager of jobs that another one gave to it."""
        assert place.disk is not None
        for job in own:
            if node.manager.spec(job) is None and not node.manager.is_giving(job):
                node.to_manager(JobTaken(record=place.disk.stored_job(job)))

    def _is_well(self, holder: str) -> bool:
        """Whether this manager renews its seat as well as the store allows."""
        place = next((each for each in self._places if each.holder == holder), None)
        if place is None or place.process is None or place.process.is_stopped or self.store.is_uneven:
            return False
        return self._kernel.now_s - max(place.process.resumed_s, self.store.even_s) > WELL_AFTER_S

    def _renew(self, place: _Place, process: Process, tenure: SimTenure) -> None:
        asked_s, takes_s = self._kernel.now_s, self.store.proof_s
        if takes_s:
            process.later(takes_s, self._renewed, place, process, tenure, asked_s)
        else:
            self._renewed(place, process, tenure, asked_s)

    def _renewed(self, place: _Place, process: Process, tenure: SimTenure, asked_s: float) -> None:
        assert place.node is not None
        if self.store.takes_writes(place.label):
            wants, starving = place.node.manager.needs
            if not self.store.seats.renew(tenure, wants=wants, starving=starving):
                self._deposed(place, process)
                return
            place.proven_s = asked_s
            place.remembered.on_counted(tenure)
            place.watch.on_proven(asked_s)
        else:
            place.watch.blind()
        is_open = may_serve(self._kernel.now_s - place.proven_s)
        if place.is_serving and not is_open:
            _hang_up(place.node, "it cannot prove its seat")
        place.is_serving = is_open
        process.later(RENEW_EVERY_S, self._renew, place, process, tenure)


def _hang_up(node: SimManagerNode, reason: str) -> None:
    for connection in list(node.role_server.connections.values()):
        connection.cut(reason)
