"""How a manager itself is: whether it would serve a device, its seat, its stores, its event loop. All from memory.

Asked from any thread, also while its stores are away. What it says to strangers names no address.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from shoal.roles.manager.seat_watch import SILENT_S, STILL_S
from shoal.runtime.loop_watch import LoopWatch
from shoal.runtime.seat_holder import SeatHolder
from shoal.runtime.shared_jobs import SharedJobs
from shoal.store.opening import StoreUsages
from shoal.store.usage import Used
from shoal.wire.limits import MANAGERS_MAX
from shoal.wire.messages import ManagerView, StoreView

log = logging.getLogger("shoal")

#: A call to the database that takes this long counts as one that is not answered.
ANSWERS_WITHIN_S = SILENT_S
#: For this long a failure of the database is trouble, unless a call works meanwhile.
FAILURE_COUNTS_S = 10.0
#: A call to a store that has taken this long is told to people. Its own time limit comes later.
TELL_AFTER_S = 15.0

_STARTS = "it starts or ends"


class Vitals:
    def __init__(self, loop: LoopWatch, usages: StoreUsages) -> None:
        self.loop = loop
        self.usages = usages
        self.authority_until_s = 0.0
        #: How often the database was found to have gone back.
        self.went_back = 0
        self._address = ""
        self._held: SeatHolder | None = None
        self._shared: SharedJobs | None = None
        self._devices: Callable[[], int] = lambda: 0
        self._jobs: Callable[[], int] = lambda: 0
        self._note: Callable[[str, str], object] = lambda kind, reason: None
        #: What earlier seats of this process had counted.
        self._takeovers = self._jobs_taken = 0
        #: Stores with a call that was told to be slow.
        self._slow: set[str] = set()
        loop.on_turn.append(self._tell_of_waits)

    def serve(
        self,
        address: str,
        *,
        devices: Callable[[], int],
        jobs: Callable[[], int] = lambda: 0,
        note: Callable[[str, str], object],
        held: SeatHolder | None = None,
        shared: SharedJobs | None = None,
    ) -> None:
        """The manager serves devices from now on, until ``end``. ``address``: where devices dial it. ``devices``: how
        many are connected. ``jobs``: how many open ones it has. ``note`` writes down an event of this kind."""
        self._devices, self._jobs, self._note, self._held, self._shared = devices, jobs, note, held, shared
        self._address = address

    def end(self) -> None:
        """The manager ends, or starts over."""
        self._takeovers, self._jobs_taken = self._counted()
        self._address, self._held, self._shared = "", None, None

    def _counted(self) -> tuple[int, int]:
        ended = self._held.ended_seats if self._held is not None else 0
        taken = self._shared.jobs_taken if self._shared is not None else 0
        return self._takeovers + ended, self._jobs_taken + taken

    @property
    def trouble(self) -> str:
        """Return why a device that dials now would not be served, or an empty string if it would be."""
        return next(self._troubles(), "")

    def _troubles(self) -> Iterator[str]:
        held, database = self._held, self.usages.database.now()
        if not self._address:
            yield _STARTS
        if held is not None and held.is_deposed:
            yield "another manager has taken over"
        if held is not None and held.unproven_s > ANSWERS_WITHIN_S:
            yield f"its seat was not proven for {held.unproven_s:.0f} s"
        if database.waiting_s > ANSWERS_WITHIN_S:
            yield f"its database has not answered for {database.waiting_s:.0f} s"
        if database.failed_ago_s is not None and database.failed_ago_s < FAILURE_COUNTS_S:
            yield "its database fails"
        if self.loop.still_s > STILL_S:
            yield f"its event loop has stood still for {self.loop.still_s:.0f} s"

    def view(self) -> ManagerView:
        """Return the state of this manager for operators."""
        held, shared = self._held, self._shared
        takeovers, jobs_taken = self._counted()
        return ManagerView(
            manager=self._address,
            trouble=self.trouble,
            has_seat=held is None or not held.is_deposed,
            unproven_s=-1.0 if held is None else held.unproven_s,
            takeovers=takeovers,
            jobs_taken=jobs_taken,
            went_back=self.went_back,
            loop_lag_s=self.loop.worst_s,
            authority_until_s=self.authority_until_s,
            devices=self._devices(),
            stores=tuple(_view_of(name, used) for name, used in self._used()),
            others=shared.addresses[:MANAGERS_MAX] if shared is not None else (),
            seat="" if held is None else held.tenure.holder,
            jobs=self._jobs(),
            is_drained=held is not None and held.is_drained,
        )

    def _used(self) -> Iterator[tuple[str, Used]]:
        yield "database", self.usages.database.now()
        if sum((bucket := self.usages.bucket.now()).counts):
            yield "bucket", bucket

    def _tell_of_waits(self) -> None:
        """Say once that a store takes long: a request may take a minute to fail."""
        for name, used in self._used():
            if used.waiting_s <= TELL_AFTER_S:
                if name in self._slow:
                    self._slow.discard(name)
                    log.info("the %s answers again", name)
            elif name not in self._slow:
                self._slow.add(name)
                told = f"a call to the {name} has taken {used.waiting_s:.0f} s so far"
                log.warning("%s", told)
                self._note("store.slowed", told)


def _view_of(name: str, used: Used) -> StoreView:
    return StoreView(store=name, counts=used.counts, seconds=used.seconds, errors=used.errors, waiting_s=used.waiting_s)
