"""Waits for the seat of a cluster, holds it, and notices that it was lost. Whether to take it is decided elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable

from shoal.errors import ShoalError
from shoal.roles.manager.standby import LOOK_EVERY_S, RENEW_EVERY_S, SeatWatch, may_serve
from shoal.store.base import Away
from shoal.store.seat import Deposed, Seats, Tenure

log = logging.getLogger("shoal")

#: No manager is called so: what was told last is that the database is away.
_AWAY = " away"


async def hold_seat(seats: Seats) -> SeatHolder:
    """Wait until this process has the seat, however long another has it."""
    holder = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    watch, told = SeatWatch(), ""
    while True:
        try:
            seat = await asyncio.to_thread(seats.look)
            if watch.may_take(seat, time.monotonic()):
                tenure = await asyncio.to_thread(seats.take, holder, seat)
                if tenure is not None:
                    log.info("this manager runs the cluster, under term %d of its seat", tenure.term)
                    return SeatHolder(seats, tenure)
            elif seat is not None and seat.holder != told:
                told = seat.holder
                log.info("standing by: %s runs the cluster", told)
        except Away as error:
            watch.blind()
            if told != _AWAY:
                log.warning("standing by without a database: %s", error)
            told = _AWAY
            await asyncio.sleep(LOOK_EVERY_S)
        await asyncio.sleep(LOOK_EVERY_S)


class SeatHolder:
    def __init__(self, seats: Seats, tenure: Tenure) -> None:
        self._seats = seats
        self.tenure = tenure
        self.is_deposed = False
        self._proven_s = time.monotonic()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def unproven_s(self) -> float:
        """How long ago this manager last proved that it has the seat."""
        return time.monotonic() - self._proven_s

    def keep(self, *, on_deposed: Callable[[], None]) -> None:
        """Count on until ``let_go``. ``on_deposed`` is called once, if another takes the seat."""
        self._renewing = asyncio.create_task(self._renew(on_deposed), name="seat")

    async def _renew(self, on_deposed: Callable[[], None]) -> None:
        is_told = False
        while True:
            await asyncio.sleep(RENEW_EVERY_S)
            asked_s = time.monotonic()
            try:
                await asyncio.to_thread(self._seats.renew, self.tenure)
                self._proven_s, is_told = asked_s, False
            except Deposed as error:
                log.error("%s", error)
                self.is_deposed = True
                on_deposed()
                return
            except ShoalError as error:
                # Another may take the seat meanwhile; the database will say so.
                if not is_told:
                    log.warning("the seat is not renewed: %s", error)
                is_told = True

    async def let_go(self) -> None:
        """The next manager need not wait for this one to fall silent."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if not self.is_deposed:
            with contextlib.suppress(ShoalError):
                await asyncio.to_thread(self._seats.give_up, self.tenure)


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
