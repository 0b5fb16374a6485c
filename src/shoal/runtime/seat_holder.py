"""Holds the seat of this manager, looks at those of others, and ends silent ones. What may be ended is decided
elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeVar

from shoal.errors import ShoalError
from shoal.roles.manager.seat_watch import (
    LOOK_EVERY_S,
    RENEW_EVERY_S,
    SILENT_S,
    STILL_S,
    Seat,
    SeatWatch,
    may_serve,
    share,
)
from shoal.store.base import Away
from shoal.store.rows import JobRow
from shoal.store.seat import Deposed, Seats, Tenure

log = logging.getLogger("shoal")

_Result = TypeVar("_Result")


class Figures(NamedTuple):
    """What a manager tells the others with its seat."""

    #: How many more devices its jobs could use now.
    wants: int = 0
    #: How many devices its jobs lack below their least.
    starving: int = 0
    #: How many devices are connected to it.
    devices: int = 0


class JobTaker(Protocol):
    """What a manager does about the others and their jobs."""

    async def look(self, others: Iterable[Seat], *, is_drained: bool) -> bool:
        """Whether a job may be without a manager. ``is_drained``: whether an operator drained this manager."""
        ...

    async def take(self, orphans: Iterable[JobRow]) -> None: ...


async def open_seat(seats: Seats, home: str) -> SeatHolder:
    """Open a seat for this process, however long the database is away. ``home``: what its home is called: no other
    process runs from it. Devices are sent there once it has an address (``move``)."""
    holder, is_told = f"{home}/{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}", False
    while True:
        try:
            tenure = await asyncio.to_thread(seats.open, holder)
        except Away as error:
            if not is_told:
                log.warning("the manager waits for its database: %s", error)
            is_told = True
            # The attempt may have been kept all the same: the next has a name of its own.
            holder = f"{holder.rsplit('-', 1)[0]}-{secrets.token_hex(4)}"
            await asyncio.sleep(LOOK_EVERY_S)
        else:
            log.info("this manager has the seat %s", holder)
            return SeatHolder(seats, tenure)


class SeatHolder:
    def __init__(self, seats: Seats, tenure: Tenure) -> None:
        self._seats = seats
        self.tenure = tenure
        self.is_deposed = False
        #: Why: another manager has taken over, or the database went back.
        self.deposed_by: Deposed | None = None
        #: An operator drained this manager: it takes no job.
        self.is_drained = False
        #: How many silent managers' seats this one ended.
        self.ended_seats = 0
        self._watch = SeatWatch()
        self._proven_s = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_let_go = False
        #: Set: the seat is not counted on any longer.
        self._is_over = threading.Event()
        #: For looks at others: threads that everything shares are taken when thousands of devices come at once.
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="seats of others")
        self._on_deposed: Callable[[], object] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._figures = Figures()
        #: When the event loop last turned; infinite: the manager starts, and may take its time to read many members.
        self._turned_s = math.inf
        #: Not in the event loop: a manager that thousands of devices dial at once would seem to be silent.
        self._counting = threading.Thread(target=self._count_on, name="seat", daemon=True)
        self._counting.start()

    async def _in_thread(self, do: Callable[..., _Result], *arguments: object) -> _Result:
        return await self._loop.run_in_executor(self._looking, do, *arguments)

    @property
    def unproven_s(self) -> float:
        """How long ago this manager last proved that it has its seat."""
        return time.monotonic() - self._proven_s

    async def await_others(self) -> None:
        """Wait until every other manager has counted on, or is silent: a store that went back is found then."""
        give_up_s = time.monotonic() + SILENT_S
        watch = SeatWatch()
        while time.monotonic() < give_up_s:
            seats = await self._in_thread(self._seats.look)
            watch.silent([seat for seat in seats if seat.holder != self.tenure.holder], time.monotonic())
            if watch.may_take:
                return
            await asyncio.sleep(LOOK_EVERY_S / 2)

    async def move(self, address: str) -> None:
        """Devices dial this manager at another address from now on."""
        await self._in_thread(self._seats.move, self.tenure, address)

    def _count_on(self) -> None:
        """In a thread, until ``stop_counting``: tell others that this manager is alive."""
        is_told = False
        while not self._is_over.wait(RENEW_EVERY_S):
            if time.monotonic() - self._turned_s > STILL_S:
                continue
            asked_s, told = time.monotonic(), self._figures
            try:
                self._seats.renew(self.tenure, wants=told.wants, starving=told.starving, devices=told.devices)
            except Deposed as error:
                self._in_loop(self.depose, error)
                return
            except ShoalError as error:
                # Another may end the seat meanwhile; the database will say so.
                if not is_told:
                    log.warning("the seat is not renewed: %s", error)
                is_told = True
                self._in_loop(self._watch.blind)
            else:
                self._proven_s = asked_s
                is_told = False
                self._in_loop(self._watch.on_proven, asked_s)

    def _in_loop(self, do: Callable[..., object], *arguments: object) -> None:
        # The loop may have ended meanwhile, and the manager with it.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(do, *arguments)

    def stop_counting(self) -> None:
        """This manager does not live any longer; others find out by its silence, unless it ends with ``let_go``."""
        self._is_over.set()

    def keep(
        self,
        *,
        on_deposed: Callable[[], object],
        figures: Callable[[], Figures],
        orphans: Callable[[], list[JobRow]],
        shared: JobTaker,
        own_node: str,
    ) -> None:
        """The manager has started: tell others its figures, look at them and end those that are silent, until
        ``let_go``.

        ``on_deposed`` is called once, if another manager ends this seat. With every look ``shared`` is told the other
        seats that live, and the jobs without a manager that are this one's to take, if there are any; the next look
        waits for it. ``orphans`` reads them, in a thread (``Registry.orphans``). ``own_node``: the name of every
        manager's node: a job that was led there is led by no device.
        """
        self._on_deposed = on_deposed
        if self.is_deposed:
            on_deposed()
        self._tasks = [
            asyncio.create_task(self._turn(figures), name="seat"),
            asyncio.create_task(self._look_around(orphans, shared, own_node), name="seats of others"),
        ]

    async def _turn(self, figures: Callable[[], Figures]) -> None:
        while not self.is_deposed:
            self._figures, self._turned_s = figures(), time.monotonic()
            await asyncio.sleep(RENEW_EVERY_S)

    async def _look_around(self, orphans: Callable[[], list[JobRow]], shared: JobTaker, own_node: str) -> None:
        while not self.is_deposed:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                others = await self.look()
                may_wait = await shared.look(others, is_drained=self.is_drained)
                if not may_wait or self.is_drained or not self._watch.may_take:
                    continue
                waiting = {row.job: row for row in await asyncio.to_thread(orphans)}
                if waiting:
                    led = {job: "" if row.leader == own_node else row.leader for job, row in waiting.items()}
                    takers = [seat.holder for seat in others if not seat.is_drained]
                    own = share(led, self.tenure.holder, takers)
                    await shared.take([waiting[job] for job in own])
            except Deposed as error:
                self.depose(error)
            except ShoalError as error:
                # That the database is away is told where the seat is renewed.
                log.debug("no look at other managers: %s", error)
            except Exception:
                # Whatever the trouble with one of them, other jobs wait for this manager too.
                log.exception("jobs without a manager could not be taken over")

    async def look(self) -> list[Seat]:
        """The other seats that live, after those that were silent for long enough were ended."""
        counted = self.tenure.counted.beats
        try:
            seats = await self._in_thread(self._seats.look)
        except ShoalError:
            self._watch.blind()
            raise
        if all(seat.holder != self.tenure.holder or seat.beats < counted for seat in seats):
            # A proof says whether another manager ended it, or the database went back.
            await self._in_thread(self._seats.renew, self.tenure)
        self.is_drained = any(seat.is_drained for seat in seats if seat.holder == self.tenure.holder)
        others = [seat for seat in seats if seat.holder != self.tenure.holder]
        for seat in self._watch.silent(others, time.monotonic()):
            if await self._end(seat):
                self.ended_seats += 1
                log.warning("the manager %s was silent: its seat has ended, others take over its jobs", seat.holder)
                others.remove(seat)
        return others

    async def _end(self, silent: Seat) -> bool:
        try:
            return await self._in_thread(self._seats.end, silent, self.tenure)
        except Deposed:
            raise
        except ShoalError as error:
            # It may have been stopped in the middle of a transaction, which the database ends in a moment.
            log.debug("the seat of %s is not ended: %s", silent.holder, error)
            return False

    def depose(self, error: Deposed) -> None:
        """A write failed because another manager has taken over: this one ends."""
        if self.is_deposed or self._is_let_go:
            return
        log.error("%s", error)
        self.is_deposed, self.deposed_by = True, error
        self._on_deposed()

    async def let_go(self) -> None:
        """Other managers need not wait for this one to fall silent."""
        if self._is_let_go:
            return
        self._is_let_go = True
        self.stop_counting()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # It must not count on a seat that was given up: it would take that for the doing of another.
        await self._in_thread(self._counting.join)
        if not self.is_deposed:
            with contextlib.suppress(ShoalError):
                await self._in_thread(self._seats.give_up, self.tenure)
        self._looking.shutdown(wait=False)


async def mind_doors(
    held: SeatHolder, *, shut: Callable[[], Awaitable[object]], reopen: Callable[[], Awaitable[object]]
) -> None:
    """Shut the doors of a manager that cannot prove its seat, and open them once it can, until cancelled."""
    is_open = True
    while True:
        await asyncio.sleep(RENEW_EVERY_S / 2)
        if may_serve(held.unproven_s) == is_open:
            continue
        if is_open:
            log.warning("the seat was not proven for %.0f s: devices may find another manager", held.unproven_s)
        await (shut() if is_open else reopen())
        is_open = not is_open
        if is_open:
            log.info("this manager still has the seat: devices may come back")
