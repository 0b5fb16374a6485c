"""One timer guards a row of deadlines: each that passes is noticed, and none that was moved or taken back."""

import asyncio
from collections.abc import Awaitable, Callable

from shoal.watchdog import Watchdog


def play(story: Callable[[Watchdog, list[float]], Awaitable[None]]) -> tuple[list[float], int]:
    """When a watchdog called back, in seconds of the story; and how many timers it made."""
    called_s: list[float] = []
    timers = 0

    async def run() -> None:
        nonlocal timers
        loop = asyncio.get_running_loop()
        began_s, call_at = loop.time(), loop.call_at

        def counted(when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
            nonlocal timers
            timers += 1
            return call_at(when, callback)

        watchdog = Watchdog(lambda: called_s.append(loop.time() - began_s))
        watchdog._loop = type("Counting", (), {"time": staticmethod(loop.time), "call_at": staticmethod(counted)})()
        await story(watchdog, called_s)
        watchdog.stop()

    asyncio.run(asyncio.wait_for(run(), 60))
    return called_s, timers


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_deadline_that_passes_is_noticed_once() -> None:
    async def story(watchdog: Watchdog, called_s: list[float]) -> None:
        watchdog.expect_by(now_s() + 0.05)
        while not called_s:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)

    called_s, timers = play(story)
    assert len(called_s) == 1
    assert called_s[0] >= 0.05
    assert timers <= 2  # a clock may be a tick early


def test_a_thousand_deadlines_that_move_on_take_one_timer() -> None:
    async def story(watchdog: Watchdog, called_s: list[float]) -> None:
        for _ in range(1000):
            watchdog.expect_by(now_s() + 600)
            watchdog.rest()

    assert play(story) == ([], 1)


def test_a_deadline_that_moved_is_noticed_where_it_is_now() -> None:
    async def story(watchdog: Watchdog, called_s: list[float]) -> None:
        began_s = now_s()
        watchdog.expect_by(began_s + 0.05)
        watchdog.expect_by(began_s + 0.3)
        while not called_s:
            await asyncio.sleep(0.01)

    called_s, _ = play(story)
    assert called_s[0] >= 0.3


def test_a_deadline_that_comes_before_the_last_one_is_kept() -> None:
    async def story(watchdog: Watchdog, called_s: list[float]) -> None:
        watchdog.expect_by(now_s() + 600)
        watchdog.expect_by(now_s() + 0.05)
        while not called_s:
            await asyncio.sleep(0.01)

    called_s, _ = play(story)
    assert 0.05 <= called_s[0] < 600


def test_a_deadline_that_was_taken_back_is_none() -> None:
    async def story(watchdog: Watchdog, called_s: list[float]) -> None:
        watchdog.expect_by(now_s() + 0.02)
        watchdog.rest()
        await asyncio.sleep(0.1)
        watchdog.expect_by(now_s() + 600)
        watchdog.stop()
        await asyncio.sleep(0.05)

    assert play(story)[0] == []
