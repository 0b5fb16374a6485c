"""What a manager has when it starts: its stores, its seat among several managers, and its registry, mended."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from dataclasses import dataclass

from shoal import features
from shoal.errors import Misuse
from shoal.identity.identity import Authority
from shoal.roles.manager.seat_watch import home_of
from shoal.runtime.manager_options import ManagerOptions
from shoal.runtime.paths import Paths
from shoal.runtime.seat_holder import SeatHolder, open_seat
from shoal.store.base import Away, Database
from shoal.store.depot import Depot
from shoal.store.files import drawn_once
from shoal.store.mending import count_start, incidents, mend, signs_in
from shoal.store.opening import Stores, StoreUsages, open_stores
from shoal.store.registry import Registry
from shoal.store.remembered import Remembered
from shoal.store.seat import FencedDatabase, Seats, Tenure

log = logging.getLogger("shoal")


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagerState:
    stores: Stores
    registry: Registry
    remembered: Remembered
    #: The seat, or None if this manager shares nothing.
    held: SeatHolder | None = None
    #: When it had its seat, by the monotonic clock, or 0 without a seat.
    seated_s: float = 0.0

    async def mend_again(self, why: str) -> list[tuple[str, str]]:
        """Mend a database that went back while this manager served. Return what was done, by job.

        At once: a manager that starts just now must not give out a term that was given before. Without a proof of the
        seat, which is of another past.
        """
        assert self.held is not None, "only a seat shows that a database went back"
        plain = Registry(self.stores.database, holder=self.held.tenure.holder)
        return await asyncio.to_thread(_mend, self.stores.database, plain, self.remembered, self.stores.depot, why=why)


async def take_state(
    options: ManagerOptions,
    authority: Authority,
    *,
    usages: StoreUsages,
    untold: list[tuple[str, str]],
    why: str,
    ending: contextlib.AsyncExitStack,
) -> ManagerState:
    """Open the stores and take a seat. ``untold`` gets what was mended, by job. ``why``: the database went back, as a
    write of this manager found. ``ending`` lets go of all of it."""
    places = options.places
    stores = await asyncio.to_thread(
        open_stores,
        places.registry.parent,
        owner=authority.fingerprint.hex(),
        store=options.store,
        blobs=options.blobs,
        downloads=options.downloads,
        usages=usages,
    )
    ending.callback(stores.close)
    for warning in stores.warnings:
        log.warning("%s", warning)
    remembered = Remembered(places.remembered)
    if stores.seats is None:
        registry = Registry(stores.database)
        untold += await asyncio.to_thread(_mend, stores.database, registry, remembered, stores.depot)
        return ManagerState(stores=stores, registry=registry, remembered=remembered)
    await asyncio.to_thread(_check_authority, stores.database, authority)
    await asyncio.to_thread(_warm_up)
    held = await open_seat(Seats(stores.seats), home_name(places))
    ending.push_async_callback(_give_up, held, remembered)
    seated_s = time.monotonic()
    fenced = FencedDatabase(stores.database, held.tenure)
    registry = Registry(fenced, holder=held.tenure.holder)
    untold += await asyncio.to_thread(_mend, fenced, registry, remembered, stores.depot, held.tenure, why)
    await asyncio.to_thread(count_start, fenced, registry, remembered, held.tenure)
    held.tenure.counted.on_counted = functools.partial(remembered.on_counted, held.tenure.holder)
    remembered.on_counted(held.tenure.holder, held.tenure.counted.beats)
    await asyncio.to_thread(remembered.flush)
    await held.await_others()
    await asyncio.to_thread(_take_own, registry, held.tenure.holder)
    return ManagerState(stores=stores, registry=registry, remembered=remembered, held=held, seated_s=seated_s)


async def _give_up(held: SeatHolder, remembered: Remembered) -> None:
    """Other managers need not wait, and the next process of this home does not miss the seat."""
    await held.let_go()
    if not held.is_deposed:
        remembered.on_counted("", 0)
    await asyncio.to_thread(remembered.flush)


def _mend(
    database: Database,
    registry: Registry,
    remembered: Remembered,
    depot: Depot,
    tenure: Tenure | None = None,
    why: str = "",
) -> list[tuple[str, str]]:
    """Compare the database with what this manager remembers, and write that again if the database went back. ``why``: a
    write of the manager found that it did. Return what was done, by job."""
    if not database.is_whole():
        raise Away("the database is not whole: it is being restored")
    signs = signs_in(registry, remembered, tenure=tenure) or [*filter(None, (why,))]
    if signs:
        mended = mend(database, registry, remembered, signs=signs, newest=depot.newest_checkpoints())
        return list(mended.lines())
    own = {row.job for row in registry.open_jobs() if home_of(row.manager) == home_of(registry.holder)}
    remembered.on_incident(incidents(registry))
    # Another manager has them by now, or ended or removed them.
    remembered.on_removed([job for job in remembered.submitted if job not in own])
    return []


def home_name(places: Paths) -> str:
    """The name of this manager's home, as other managers know it. One process a home runs at a time (``_alone``)."""
    return drawn_once(places.registry.parent / "manager-name")


def _take_own(registry: Registry, holder: str) -> None:
    """Take back, before anything else, the jobs that this home had when its last process ended, and those that had no
    manager yet."""
    for row in registry.orphans():
        if home_of(row.manager) in ("", home_of(holder)):
            registry.take_job(row)


def _check_authority(database: Database, authority: Authority) -> None:
    """A manager whose authority was revoked does not even stand by."""
    known = Registry(database).certificate(authority.own_sha256) if authority.name else None
    if known is not None and known.revoked_s is not None:
        raise Misuse(f"the authority of this manager, {authority.name}, was revoked: issue another one to it")


def _warm_up() -> None:
    """Import what a manager needs to start before it has a seat: from then on jobs may wait for it."""
    import shoal.identity.certificates  # noqa: F401

    features.provided("manager_pool")
