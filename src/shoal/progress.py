"""What a person sees while ``shoal.fit`` runs: a live line, a live table in a notebook, or a line an evaluation."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Protocol

from shoal.cli.render.format import clean, number_text, plural, share_text, span_text, sparkline
from shoal.cli.standing import STALLED, standing
from shoal.roles.manager.preparation import kind_of
from shoal.states import JobState

if TYPE_CHECKING:
    from rich.live import Live

    from shoal.history import History, HistoryRow
    from shoal.wire.messages import JobView

log = logging.getLogger("shoal")

_CURVE_CHARS = 16
_METRICS_SHOWN = 4


class Display(Protocol):
    """Feed it what is known; it shows as much of it as its place allows."""

    def step(self, text: str) -> None:
        """A step before the job exists. The next may follow within a moment."""

    def note(self, text: str) -> None:
        """Something that a person should read, such as how to leave."""

    def warn(self, text: str) -> None:
        """Something that a person must not miss: shown also where nothing else is."""

    def show(self, view: JobView, history: History, new: tuple[HistoryRow, ...]) -> None:
        """How the job stands, and the evaluations that are new."""

    def close(self) -> None:
        """The last word was shown."""


def display_here(*, wanted: bool) -> Display:
    """What suits the place where this program runs."""
    if not wanted:
        return Quiet()
    if _in_notebook():
        from shoal.notebook import NotebookTable

        return NotebookTable()
    return LiveLine() if sys.stderr.isatty() else EvaluationLines()


def _in_notebook() -> bool:
    """Whether cells show what is displayed. Nothing is imported for that: a notebook has IPython already."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class Quiet:
    """Shows nothing, unless the job waits for long."""

    def step(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        # A program that sets up no logging has this on standard error.
        log.warning("%s", clean(text))

    def show(self, view: JobView, history: History, new: tuple[HistoryRow, ...]) -> None:
        pass

    def close(self) -> None:
        pass


class EvaluationLines:
    """A line an evaluation on standard error, for logs and pipes."""

    def step(self, text: str) -> None:
        pass

    def note(self, text: str) -> None:
        print(f"shoal: {clean(text)}", file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        self.note(text)

    def show(self, view: JobView, history: History, new: tuple[HistoryRow, ...]) -> None:
        for row in new:
            measured = ", ".join(f"{name} {text}" for name, text in measured_texts(row))
            told = f"{view.job}: epoch {row.epoch}, version {row.version}: {measured}, {span_text(row.seconds)}"
            print(clean(told), file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class LiveLine:
    """One line that changes, on the terminal of standard error."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def step(self, text: str) -> None:
        self._draw(f"shoal  {clean(text)}")

    def note(self, text: str) -> None:
        self._draw(f"shoal  {clean(text)}")
        if self._live is not None:
            # It stays above the line, which goes on changing.
            self._live.console.print(f"shoal  {clean(text)}", soft_wrap=True)

    def warn(self, text: str) -> None:
        self.note(text)

    def show(self, view: JobView, history: History, new: tuple[HistoryRow, ...]) -> None:
        self._draw(line_text(view, history))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self, text: str) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            console = Console(stderr=True, highlight=False, markup=False, emoji=False)
            self._live = Live(console=console, auto_refresh=False)
            self._live.start()
        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


#: A job that trains nothing for this long is told of, and why; after this long again, if the reason is another.
WAITS_TOLD_S = 60.0

_IDLE = ("waiting", "silent", STALLED, JobState.QUEUED)


class WaitWatch:
    """Says what a job waits for: once after a minute, and again when that changes. Reads no clock."""

    def __init__(self) -> None:
        self._idle_s: float | None = None
        self._told_s = -WAITS_TOLD_S
        self._told = ""

    def look(self, view: JobView, now_s: float) -> str | None:
        """Return the sentence to show now, or None."""
        told = standing(view)
        if told.state not in _IDLE and not view.trouble:
            self._idle_s, self._told = None, ""
            return None
        self._idle_s = now_s if self._idle_s is None else self._idle_s
        reason = clean(told.reason, 300) or "no reason is known"
        if now_s - max(self._idle_s, self._told_s) < WAITS_TOLD_S or kind_of(reason) == self._told:
            return None
        self._told_s, self._told = now_s, kind_of(reason)
        what = "is in trouble" if view.trouble else "waits"
        return f"job {view.job} {what} for {span_text(now_s - self._idle_s)}: {reason}"


def line_text(view: JobView, history: History) -> str:
    """A job in one line: what it does, how far it is, how good it is."""
    told, progress = standing(view), view.progress
    parts = [f"{view.job}  {told.state}"]
    if progress is None or told.state in ("waiting", STALLED):
        parts.append(clean(told.reason, 80))
    else:
        share = f" {progress.batches_applied / progress.batches_total:.0%}" if progress.batches_total else ""
        parts.append(f"epoch {progress.epoch + 1}{share}" if view.state.is_open else clean(told.reason, 80))
        parts += [f"version {progress.version:,}", plural(len(progress.workers), "worker")]
    if history:
        latest = history[-1]
        parts += [f"{name} {text}" for name, text in measured_texts(latest)[:_METRICS_SHOWN]]
        curve = "accuracy" if latest.accuracy is not None else "loss"
        parts.append(sparkline([value for value in history[curve] if value is not None], _CURVE_CHARS))
    if progress is not None:
        parts.append(span_text(progress.seconds))
    return "  ".join(filter(None, parts))


def measured_texts(row: HistoryRow) -> list[tuple[str, str]]:
    """What a row measured, as people read it."""
    return [
        (clean(name, 40), share_text(value) if name == "accuracy" else number_text(value))
        for name, value in row.measured.items()
    ]
