"""What a manager says of itself: whether it would serve a device, how late its loop is, and which store is slow."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from shoal.runtime.loop_watch import TURN_EVERY_S, WORST_WITHIN_S, LoopWatch
from shoal.runtime.seat_holder import open_seat
from shoal.runtime.vitals import ANSWERS_WITHIN_S, FAILURE_COUNTS_S, TELL_AFTER_S, Vitals
from shoal.store.base import Away
from shoal.store.opening import StoreUsages
from shoal.store.seat import Deposed, Seats
from shoal.store.sqlite import SqliteDatabase
from shoal.store.usage import StoreUsage

pytestmark = pytest.mark.timeout(60)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def vitals_of(clock: Clock, *, serves: bool = True) -> tuple[Vitals, list[tuple[str, str]]]:
    usages = StoreUsages(database=StoreUsage(clock=clock), bucket=StoreUsage(clock=clock))
    vitals, noted = Vitals(LoopWatch(clock=clock), usages), list[tuple[str, str]]()
    if serves:
        vitals.serve("a.lan:7070", devices=lambda: 3, note=lambda kind, reason: noted.append((kind, reason)))
    return vitals, noted


def test_a_manager_that_is_alone_serves_while_its_database_answers() -> None:
    clock = Clock()
    vitals, _ = vitals_of(clock)
    assert vitals.trouble == ""
    with vitals.usages.database.call():
        clock.now_s += ANSWERS_WITHIN_S + 1
        vitals.loop.turned(0.0)
        assert vitals.trouble == "its database has not answered for 4 s"
    with pytest.raises(Away), vitals.usages.database.call():
        raise Away("postgresql://db.lan:5432/shoal went away")
    assert vitals.trouble == "its database fails", "no address: strangers may ask"
    clock.now_s += FAILURE_COUNTS_S
    vitals.loop.turned(0.0)
    assert vitals.trouble == "", "nothing has failed for long"
    clock.now_s += 16
    assert vitals.trouble == "its event loop has stood still for 16 s"


def test_a_manager_that_starts_or_ends_does_not_serve() -> None:
    vitals, _ = vitals_of(Clock(), serves=False)
    assert vitals.trouble
    vitals.serve("a.lan:7070", devices=lambda: 0, note=lambda kind, reason: None)
    assert not vitals.trouble
    vitals.end()
    assert vitals.trouble


def test_a_manager_without_a_proven_seat_does_not_serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        held = await open_seat(Seats(SqliteDatabase(tmp_path / "registry.sqlite")), "home")
        held.stop_counting()
        vitals = Vitals(LoopWatch(), StoreUsages())
        vitals.serve("a.lan:7070", devices=lambda: 3, note=lambda kind, reason: None, held=held)
        held.ended_seats = 2
        assert vitals.trouble == ""
        monkeypatch.setattr(held, "_proven_s", time.monotonic() - ANSWERS_WITHIN_S - 1)
        assert vitals.trouble.startswith("its seat was not proven for 4")
        view = vitals.view()
        assert (view.has_seat, view.takeovers, view.devices) == (True, 2, 3)
        assert view.unproven_s >= 4
        held.depose(Deposed("another"))
        assert vitals.trouble == "another manager has taken over"
        assert not vitals.view().has_seat
        # It starts over: what it had counted stays.
        vitals.end()
        vitals.serve("a.lan:7070", devices=lambda: 0, note=lambda kind, reason: None)
        assert (vitals.view().takeovers, vitals.view().unproven_s) == (2, -1)

    asyncio.run(story())


def test_a_call_that_takes_long_is_told_once() -> None:
    clock = Clock()
    vitals, noted = vitals_of(clock)
    with vitals.usages.bucket.call():
        pass
    with vitals.usages.bucket.call():
        for _ in range(4):
            clock.now_s += TELL_AFTER_S / 2
            for tell in vitals.loop.on_turn:
                tell()
    for tell in vitals.loop.on_turn:
        tell()
    assert noted == [("store.slowed", "a call to the bucket has taken 22 s so far")]


def test_a_loop_that_is_held_up_is_late() -> None:
    async def story() -> float:
        watch = LoopWatch()
        turning = asyncio.create_task(watch.run())
        await asyncio.sleep(TURN_EVERY_S / 2)
        time.sleep(TURN_EVERY_S + 0.2)
        await asyncio.sleep(TURN_EVERY_S)
        turning.cancel()
        return watch.worst_s

    assert asyncio.run(story()) >= 0.4


def test_the_worst_delay_is_forgotten_after_a_minute() -> None:
    clock = Clock()
    watch = LoopWatch(clock=clock)
    watch.turned(2.5)
    assert watch.worst_s == 2.5
    clock.now_s += WORST_WITHIN_S + 1
    watch.turned(0.1)
    assert watch.worst_s == 0.1
    clock.now_s += 3
    assert watch.worst_s == 3 - TURN_EVERY_S, "the delay that lasts"
