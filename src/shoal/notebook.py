"""A job in a notebook's cell: a table and a curve that change as it trains. HTML and SVG; nothing to install."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from shoal.cli.render.format import clean, plural, span_text
from shoal.cli.standing import standing
from shoal.history import History, HistoryRow, table_html

if TYPE_CHECKING:
    from shoal.wire.messages import JobView

_ROWS = 8
_WIDTH, _HEIGHT, _EDGE = 420, 140, 8
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b")


class NotebookTable:
    """One output of a cell, updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = ""
        self._notes = ""

    def step(self, text: str) -> None:
        self._put(self._notes + _paragraph(text))

    def note(self, text: str) -> None:
        self._notes += _paragraph(text)
        self._put(self._notes)

    def warn(self, text: str) -> None:
        self.note(text)

    def show(self, view: JobView, history: History, new: tuple[HistoryRow, ...]) -> None:
        self._put(self._notes + page(view, history))

    def close(self) -> None:
        pass

    def _put(self, html: str) -> None:
        # Untyped in some releases and typed in others.
        shown: Any = importlib.import_module("IPython.display")
        if html == self._shown:
            return
        self._shown = html
        if self._handle is None:
            self._handle = shown.display(shown.HTML(html), display_id=True)
        else:
            self._handle.update(shown.HTML(html))


def _paragraph(text: str) -> str:
    return f"<p><b>shoal</b> {escape(clean(text))}</p>"


def page(view: JobView, history: History) -> str:
    """A job as HTML. Peers choose some of these texts: none of them becomes markup."""
    told, progress = standing(view), view.progress
    facts = [told.state, clean(told.reason, 160)]
    if progress is not None:
        if view.state.is_open:
            facts.append(f"epoch {progress.epoch + 1}, {progress.batches_applied:,}/{progress.batches_total:,} batches")
        facts += [f"version {progress.version:,}", plural(len(progress.workers), "worker")]
        facts.append(span_text(progress.seconds))
    head = f"<p><b>{escape(view.job)}</b> {escape('; '.join(filter(None, facts)))}</p>"
    return head + (curves(history) + table_html(history, _ROWS) if history else "")


def curves(history: History) -> str:
    """Each metric over the versions, as SVG, each on a scale of its own: the legend has its latest value."""
    shown = [name for name in history.columns[4:] if len(_points(history, name)) > 0][: len(_COLOURS)]
    lines, legend = [], []
    for colour, name in zip(_COLOURS, shown, strict=False):
        points = _points(history, name)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in _scaled(points))
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        legend.append(f'<span style="color:{colour}">&#9632; {escape(name)} {points[-1][1]:.4g}</span>')
    if not lines:
        return ""
    frame = f'<rect x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" fill="none" stroke="#cccccc"/>'
    picture = f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img">{frame}{"".join(lines)}</svg>'
    return f"<div>{picture}<br/>{' &nbsp; '.join(legend)}</div>"


def _points(history: History, name: str) -> list[tuple[float, float]]:
    found = ((row.version, row.to_dict().get(name)) for row in history)
    return [(float(version), value) for version, value in found if value is not None and math.isfinite(value)]


def _scaled(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Into the frame; a curve of one point is drawn as a line across it."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if len(points) == 1:
        return [(_EDGE, _HEIGHT / 2), (_WIDTH - _EDGE, _HEIGHT / 2)]
    wide, high = max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0
    return [
        (
            _EDGE + (x - min(xs)) / wide * (_WIDTH - 2 * _EDGE),
            _HEIGHT - _EDGE - (y - min(ys)) / high * (_HEIGHT - 2 * _EDGE),
        )
        for x, y in points
    ]
