"""Managers that hold seats on one database: they hear of each other, end those that are silent, and share out their
jobs. Real time, with a short patience."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import pytest

from shoal.roles.manager.seat_watch import Seat, SeatWatch
from shoal.runtime import seat_holder
from shoal.runtime.seat_holder import Figures, SeatHolder, open_seat
from shoal.store.base import Away
from shoal.store.registry import Registry
from shoal.store.rows import JobRow
from shoal.store.seat import Deposed, FencedDatabase, Seats, Tenure
from shoal.store.sqlite import SqliteDatabase

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat_holder, "LOOK_EVERY_S", 0.03)
    monkeypatch.setattr(seat_holder, "RENEW_EVERY_S", 0.05)
    monkeypatch.setattr(seat_holder, "SeatWatch", lambda: SeatWatch(silent_s=1.0, gap_max_s=0.2))


class Manager:
    def __init__(self, held: SeatHolder, database: SqliteDatabase) -> None:
        self.held = held
        self.database = database
        self.registry = Registry(FencedDatabase(database, held.tenure), holder=held.tenure.holder)
        self.neighbours: list[Seat] = []
        self.taken: list[str] = []
        self.deposed = 0
        self.is_drained = False

    def keep(self) -> None:
        self.held.keep(
            on_deposed=self._on_deposed,
            figures=lambda: Figures(wants=len(self.taken), devices=7),
            orphans=self.registry.orphans,
            shared=self,
            own_node="manager",
        )

    def _on_deposed(self) -> None:
        self.deposed += 1

    async def look(self, others: Iterable[Seat], *, is_drained: bool) -> bool:
        self.neighbours, self.is_drained = list(others), is_drained
        return True

    async def take(self, orphans: Iterable[JobRow]) -> None:
        for job in orphans:
            if await asyncio.to_thread(self.registry.take_job, job):
                self.taken.append(job.job)

    def freeze(self) -> None:
        """As if its event loop had stood still for long."""
        for task in self.held._tasks:
            task.cancel()
        self.held._turned_s = -math.inf


@contextlib.asynccontextmanager
async def managers(folder: Path, count: int) -> AsyncIterator[list[Manager]]:
    databases = [SqliteDatabase(folder / "registry.db") for _ in range(count)]
    started = [Manager(await open_seat(Seats(database), f"home-{n}"), database) for n, database in enumerate(databases)]
    for number, manager in enumerate(started):
        await manager.held.move(f"m{number}:1")
        manager.keep()
    yield started
    for manager in started:
        await manager.held.let_go()
    for database in databases:
        database.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.02)


def test_a_drained_manager_takes_none_of_the_jobs_of_one_that_ended(tmp_path: Path) -> None:
    async def story() -> None:
        async with managers(tmp_path, 3) as (a, b, c):
            await asyncio.to_thread(a.registry.drain_manager, "m1:1", "ann: update")
            await until(lambda: b.is_drained)
            for number in range(4):
                await asyncio.to_thread(
                    functools.partial(c.registry.add_job, job=f"j{number}", name="j", spec_json="{}", now_s=1.0)
                )
            await c.held.let_go()
            await until(lambda: len(a.taken) == 4)
            assert not b.taken
            assert not a.is_drained

    asyncio.run(story())


def test_managers_hear_of_each_other_and_share_out_jobs(tmp_path: Path) -> None:
    async def story() -> None:
        with Registry(tmp_path / "registry.db") as nobody:
            for number in range(6):
                nobody.add_job(job=f"j{number}", name="j", spec_json="{}", now_s=1.0)
        async with managers(tmp_path, 3) as (a, b, c):
            everybody = (a, b, c)
            await until(lambda: sum(len(each.taken) for each in everybody) == 6)
            assert sorted(job for each in everybody for job in each.taken) == [f"j{n}" for n in range(6)]
            await until(lambda: sorted(seat.address for seat in a.neighbours) == ["m1:1", "m2:1"])
            await until(lambda: {seat.wants for seat in a.neighbours} == {len(b.taken), len(c.taken)})
            assert {seat.devices for seat in a.neighbours} == {7}
            lost = set(c.taken)
            await c.held.let_go()
            await until(lambda: lost <= {*a.taken, *b.taken})
            assert c.deposed == a.deposed == b.deposed == 0

    asyncio.run(story())


def test_a_silent_manager_is_ended_and_finds_out(tmp_path: Path) -> None:
    async def story() -> None:
        async with managers(tmp_path, 2) as (a, b):
            b.registry.add_job(job="j", name="j", spec_json="{}", now_s=1.0)
            b.freeze()
            await until(lambda: a.taken == ["j"])
            assert a.neighbours == []
            with pytest.raises(Deposed):
                b.registry.next_term("j")
            b.keep()
            await until(lambda: b.deposed == 1)
            assert b.held.is_deposed
            assert a.deposed == 0
            await asyncio.sleep(0.2)
            assert b.deposed == 1

    asyncio.run(story())


def test_managers_whose_database_takes_no_write_for_a_while_end_nobody(tmp_path: Path) -> None:
    """Nobody counts on then, and the first whose write is taken must not end the others."""

    async def story() -> None:
        async with managers(tmp_path, 3) as everybody:
            a, *others = everybody
            others[0].registry.add_job(job="j", name="j", spec_json="{}", now_s=1.0)
            for _ in range(3):
                for each in everybody:
                    each.database._connection.execute("PRAGMA query_only = ON")
                # Longer than a silence.
                await asyncio.sleep(1.6)
                for each in everybody:
                    each.database._connection.execute("PRAGMA query_only = OFF")
                await until(lambda: all(each.held.unproven_s < 0.5 for each in everybody))
                await asyncio.sleep(0.5)
            assert [each.deposed for each in everybody] == [0, 0, 0]
            assert [each.taken for each in everybody] == [[], [], []]
            # And one that is silent is ended still.
            others[0].freeze()
            await until(lambda: [*a.taken, *others[1].taken] == ["j"])

    asyncio.run(story())


def test_trouble_with_a_job_does_not_end_the_looks(tmp_path: Path) -> None:
    async def story() -> None:
        async with managers(tmp_path, 2) as (a, b):
            told: list[int] = []

            async def fails(orphans: Iterable[JobRow]) -> None:
                told.append(len(list(orphans)))
                raise ValueError("a broken job")

            a.freeze()
            a.take = fails  # type: ignore[method-assign]
            a.keep()
            b.registry.add_job(job="j", name="j", spec_json="{}", now_s=1.0)
            await b.held.let_go()
            await until(lambda: len(told) > 2)
            assert set(told) == {1}
            assert a.deposed == 0

    asyncio.run(story())


def test_a_seat_is_opened_once_the_database_is_there(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "registry.db")

    class Away3(Seats):
        tried = 0

        def open(self, holder: str, address: str = "") -> Tenure:
            self.tried += 1
            if self.tried == 1:
                super().open(holder, address)  # kept, and its answer is lost
            if self.tried < 4:
                raise Away("cut")
            return super().open(holder, address)

    async def story() -> None:
        held = await open_seat(Away3(database), "home")
        # The one whose answer was lost was of this home, and so of no process that runs.
        assert [seat.holder for seat in Seats(database).look()] == [held.tenure.holder]
        await held.let_go()

    asyncio.run(story())
    assert Seats(database).look() == []
    database.close()


def test_a_manager_that_is_started_again_has_its_jobs_at_once(tmp_path: Path) -> None:
    """Nobody waits for the silence of a process that ran from the same home; another home's seat stays."""

    async def story() -> None:
        async with managers(tmp_path, 2) as (a, b):
            a.registry.add_job(job="j", name="j", spec_json="{}", now_s=1.0)
            a.freeze()
            database = SqliteDatabase(tmp_path / "registry.db")
            again = Manager(await open_seat(Seats(database), "home-0"), database)
            assert {seat.holder for seat in Seats(database).look()} == {again.held.tenure.holder, b.held.tenure.holder}
            with pytest.raises(Deposed):
                a.registry.next_term("j")
            assert [row.job for row in again.registry.orphans()] == ["j"]
            a.held.is_deposed = True
            await again.held.let_go()
            database.close()

    asyncio.run(story())


def test_a_manager_that_is_busy_starting_keeps_its_seat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It reads its members while its event loop stands still, however long that takes."""
    monkeypatch.setattr(seat_holder, "STILL_S", 0.1)

    async def story() -> None:
        database = SqliteDatabase(tmp_path / "registry.db")
        seats = Seats(database)
        held = await open_seat(seats, "home-1")
        time.sleep(0.8)
        assert seats.look()[0].beats > 1
        held.stop_counting()
        held._counting.join()
        beats = seats.look()[0].beats
        time.sleep(0.2)
        assert seats.look()[0].beats == beats, "a manager that could not start is silent"
        await held.let_go()
        database.close()

    asyncio.run(story())
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert not told, "it is not deposed by giving its seat up"


def test_a_manager_whose_event_loop_is_busy_keeps_its_seat_and_one_that_stands_still_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seat_holder, "STILL_S", 1.0)

    async def story() -> None:
        async with managers(tmp_path, 1) as (a,):
            seats = Seats(SqliteDatabase(tmp_path / "registry.db"))
            await asyncio.sleep(0.2)
            began = seats.look()[0].beats
            time.sleep(0.8)
            busy = seats.look()[0].beats
            assert busy > began
            assert a.held.unproven_s < 0.8
            time.sleep(1.0)
            still = seats.look()[0].beats
            time.sleep(0.5)
            assert seats.look()[0].beats == still
            await until(lambda: seats.look()[0].beats > still)

    asyncio.run(story())
