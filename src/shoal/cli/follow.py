"""Watch a job until it ends: ask, draw, wait. Outlives a manager that restarts. Knows no transport."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from rich.live import Live

from shoal.cli.job_history import News, Story
from shoal.cli.render.format import span_text
from shoal.cli.render.plain import PlainLines
from shoal.cli.render.view import render
from shoal.cli.standing import without_manager
from shoal.errors import Unreachable

if TYPE_CHECKING:
    from rich.console import Console

    from shoal.wire.messages import Status

ASK_EVERY_S = 0.5

#: A manager that restarts is back within seconds; a machine that reboots within minutes.
GIVE_UP_AFTER_S = 180.0

#: A job's last events are written down a moment after its end is told.
SETTLE_S = 0.6

#: Asks for the status of one job, with the events after this one.
Ask = Callable[[int], Awaitable["Status"]]


async def follow(
    ask: Ask,
    job: str,
    *,
    console: Console,
    note: str = "",
    every_s: float = ASK_EVERY_S,
    settle_s: float = SETTLE_S,
    give_up_after_s: float = GIVE_UP_AFTER_S,
) -> Story:
    """Show a job on this console until it ends, and give its story. On a terminal a picture, elsewhere lines."""
    story = Story(job)
    screen = _Screen(story, console, note)
    heard_s = time.monotonic()
    with screen.live or nullcontext():
        while True:
            try:
                news = story.take(await ask(story.last_event))
            except Unreachable as error:
                silent_s = time.monotonic() - heard_s
                if silent_s >= give_up_after_s:
                    raise Unreachable(f"no answer for {span_text(silent_s)}: {error}") from error
                story.unanswered_s = silent_s
                screen.silent(silent_s)
            else:
                heard_s = time.monotonic()
                screen.show(news)
                if story.ended:
                    break
            await asyncio.sleep(every_s)
        await asyncio.sleep(settle_s)
        with suppress(Unreachable):
            screen.show(story.take(await ask(story.last_event)))
    return story


class _Screen:
    """A live picture where there is a terminal, lines where there is none."""

    def __init__(self, story: Story, console: Console, note: str) -> None:
        self._story = story
        self._console = console
        self._note = note
        self._lines = PlainLines()
        self._told_silence = False
        self.live = Live(console=console, auto_refresh=False) if console.is_terminal else None

    def show(self, news: News) -> None:
        self._told_silence = False
        if self.live is None:
            for line in self._lines.lines(self._story, news, time.monotonic()):
                self._console.print(line, soft_wrap=True)
        else:
            self._draw("" if self._story.ended else self._note)

    def silent(self, silent_s: float) -> None:
        story = self._story
        known = f"; {without_manager(story.job, manager=story.manager)}" if story.job else ""
        told = f"the manager does not answer{known}. Asking again"
        if self.live is not None:
            self._draw(f"{told} ({span_text(silent_s)})")
        elif not self._told_silence:
            self._told_silence = True
            self._console.print(told, soft_wrap=True)

    def _draw(self, note: str) -> None:
        assert self.live is not None
        width, height = self._console.size
        # The cursor rests on a line of its own below the picture.
        self.live.update(render(self._story, width=width, height=height - 1, note=note), refresh=True)
