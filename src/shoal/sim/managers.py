"""Two managers of one simulated cluster: one has the seat of a shared store, the other stands by and may take it.

Both are known as the manager's node, behind one address, as behind a proxy: a device that dials reaches the one that
serves. The twin of ``runtime.seat_holder``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.roles.manager.standby import LOOK_EVERY_S, RENEW_EVERY_S, SILENT_S, Seat, SeatWatch, may_serve
from shoal.sim.disk import Disk
from shoal.sim.driver.manager_node import SimManagerNode
from shoal.sim.kernel import Kernel
from shoal.sim.process import Process
from shoal.sim.rng import Stream
from shoal.sim.shared_store import SharedDisk, SharedStore, SimTenure

#: How observers know them. The first is as a manager that is alone.
LABELS = ("home", "home-2")

#: What starting takes, of one that has the seat; and after how long a manager that ended is started again.
START_S = 0.5
RESTART_S = 5.0

#: How often a standby stands still between its last look and its attempt to take the seat, and for how long.
LATE_SHARE = 0.25
LATE_MOST_S = 15.0

#: A holder to which nothing happened for so long counts on in time.
WELL_AFTER_S = 2 * SILENT_S


@dataclass(eq=False, slots=True)
class _Place:
    """Where one manager runs."""

    label: str
    number: int = 0
    process: Process | None = None
    watch: SeatWatch = field(default_factory=SeatWatch)
    tenure: SimTenure | None = None
    disk: SharedDisk | None = None
    node: SimManagerNode | None = None
    proven_s: float = 0.0
    is_serving: bool = False

    @property
    def holder(self) -> str:
        """This process, as the seat names it."""
        return f"{self.label}/{self.number}"

    @property
    def term(self) -> int:
        return self.tenure.term if self.tenure is not None else 0


class SimManagers:
    def __init__(
        self,
        truth: Disk,
        *,
        process: Callable[[], Process],
        manager: Callable[[Process, Disk], SimManagerNode],
        mark: Callable[..., None],
        chance: Stream,
    ) -> None:
        """``process`` and ``manager`` make those of this world; ``mark`` tells its observers."""
        self.store = SharedStore(truth)
        self.store.on_write = lambda label, term: mark(label, "written", term=term)
        self._kernel: Kernel = truth.kernel
        self._new_process = process
        self._new_manager = manager
        self._mark = mark
        self._chance = chance
        self._places = [_Place(label) for label in LABELS]

    # Which one ------------------------------------------------------------------------------------------

    def current(self) -> SimManagerNode | None:
        """The manager of the newest term that runs, frozen or not."""
        running = [place for place in self._places if place.node is not None]
        return max(running, key=lambda place: place.term).node if running else None

    def serving(self) -> SimManagerNode | None:
        """Where a proxy passes a device on to: a manager whose doors are open and that answers."""
        open_ = [
            place
            for place in self._places
            if place.node is not None and place.is_serving and not place.node.process.is_stopped
        ]
        return max(open_, key=lambda place: place.term).node if open_ else None

    def holding(self) -> tuple[str, ...]:
        """The label of the one that has the seat, if any does."""
        seat = self.store.seats.look()
        return tuple(place.label for place in self._places if seat is not None and place.holder == seat.holder)

    def labelled(self, label: str) -> SimManagerNode | None:
        return next((place.node for place in self._places if place.label == label), None)

    # Their processes ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Every one that does not run."""
        for place in self._places:
            self._start(place)

    def _start(self, place: _Place) -> None:
        if place.process is not None:
            return
        place.number += 1
        place.watch, place.tenure = SeatWatch(), None
        place.process = process = self._new_process()
        process.label = place.label
        process.now(self._look, place, process)

    def end(self, *, fate: str, kind: str) -> None:
        """The manager that runs dies, with what it had under way; if none does, one that stands by."""
        current = self.current()
        alive = [place for place in self._places if place.process is not None]
        place = next((place for place in alive if place.node is current), alive[0] if alive else None)
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

    # The seat -------------------------------------------------------------------------------------------

    def _look(self, place: _Place, process: Process) -> None:
        if self.store.is_away(place.label):
            place.watch.blind()
        else:
            seen = self.store.seats.look()
            if place.watch.may_take(seen, self._kernel.now_s):
                # A moment passes before the store hears of it, and at times the process stands still in it.
                late_s = self._chance.between(0.0, LATE_MOST_S) if self._chance.happens(LATE_SHARE) else 0.0
                process.later(self.store.truth.sync_s + late_s, self._take, place, process, seen)
                return
        process.later(LOOK_EVERY_S, self._look, place, process)

    def _take(self, place: _Place, process: Process, seen: Seat | None) -> None:
        was_well = self._is_well()
        tenure = None if self.store.is_away(place.label) else self.store.seats.take(place.holder, seen)
        if tenure is None:
            process.later(LOOK_EVERY_S, self._look, place, process)
            return
        place.tenure, place.proven_s = tenure, self._kernel.now_s
        self._mark(place.label, "seat", term=tenure.term, was_well=was_well)
        process.later(START_S, self._begin, place, process, tenure)
        process.later(RENEW_EVERY_S, self._renew, place, process, tenure)

    def _is_well(self) -> bool:
        """Whether the holder of the seat counts on, as far as anyone outside can tell."""
        seat = self.store.seats.look()
        place = next((each for each in self._places if seat is not None and each.holder == seat.holder), None)
        if place is None or place.process is None or place.process.is_stopped or self.store.is_disturbed:
            return False
        return self._kernel.now_s - max(place.process.resumed_s, self.store.disturbed_s) > WELL_AFTER_S

    def _begin(self, place: _Place, process: Process, tenure: SimTenure) -> None:
        place.disk = SharedDisk(self.store, label=place.label, tenure=tenure)
        self._mark(place.label, "started", jobs=tuple(place.disk.jobs))
        place.is_serving = True
        place.node = self._new_manager(process, place.disk)

    def _renew(self, place: _Place, process: Process, tenure: SimTenure) -> None:
        if not self.store.is_away(place.label):
            if not self.store.seats.prove(tenure):
                self._end(place, fate="lost", kind="killed")
                self._kernel.after(RESTART_S, self._start, place)
                return
            place.proven_s = self._kernel.now_s
        if place.node is not None:
            is_open = may_serve(self._kernel.now_s - place.proven_s)
            if place.is_serving and not is_open:
                _hang_up(place.node, "it cannot prove its seat")
            place.is_serving = is_open
        process.later(RENEW_EVERY_S, self._renew, place, process, tenure)


def _hang_up(node: SimManagerNode, reason: str) -> None:
    for connection in list(node.role_server.connections.values()):
        connection.cut(reason)
