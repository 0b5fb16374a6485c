"""Simulated plans side by side: a table for a terminal, and a picture of their curves. Pure drawing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.cli.render.format import bytes_text, clean, number_text, plural, share_text, span_text
from shoal.errors import Misuse
from shoal.learning.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from shoal.sim.series import SeedSeries

_WIDTH_IN, _HEIGHT_IN, _DPI = 14.0, 4.8, 100
_LINES = ("#2b6ca3", "#d1662b", "#3f8f6b", "#7a5195", "#b8860b", "#8c564b", "#5f9ea0", "#444444")
#: Up to how many seconds, seconds of one, and its name.
_UNITS = ((180.0, 1.0, "seconds"), (3 * 3600.0, 60.0, "minutes"), (float("inf"), 3600.0, "hours"))
_INK, _FAINT, _HAIR = "#222222", "#6b6b6b", "#d4d4d0"


def table_text(rows: Sequence[dict[str, Any]], *, metric: str, seeds: int) -> str:
    """Return a line for each plan: the metric at the end, its difference to the first plan, and what it cost."""
    shown = [("plan", metric, f"beside {clean(rows[0]['name'], 20)}", "versions", "time", "up", "devices")]
    for row in rows:
        shown.append(
            (
                clean(row["name"], 30),
                _metric_text(row["final"], metric),
                _difference_text(row["difference"], metric),
                f"{row['versions'].mean:,.0f}",
                span_text(row["seconds"].mean),
                bytes_text(row["bytes_up"].mean),
                f"{row['took_part'].mean:,.0f}",
            )
        )
    widths = [max(len(line[place]) for line in shown) for place in range(len(shown[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in shown]
    note = f"means of {plural(seeds, 'seed')}"
    if seeds > 1:
        note += ", with 95 % intervals (Student's t); differences are seed by seed, and * is apart from zero"
    return "\n".join([*lines, note, *(_lacking_text(row) for row in rows if row["lacking"])])


def _lacking_text(row: dict[str, Any]) -> str:
    """Say which seeds a plan's mean is without, and why: those that are left are the lucky ones."""
    (seed, reason), *others = row["lacking"].items()
    more = f", and {plural(len(others), 'other seed')}" if others else ""
    return f"{clean(row['name'], 30)} is without seed {seed} ({clean(reason, 120)}){more}"


def _metric_text(estimate: Estimate | None, metric: str) -> str:
    if estimate is None:
        return "none"
    mean = share_text(estimate.mean) if metric == "accuracy" else number_text(estimate.mean)
    if estimate.half is None:
        return mean
    half = f"{estimate.half * 100:.2f}" if metric == "accuracy" else number_text(estimate.half)
    return f"{mean} ± {half}"


def _difference_text(estimate: Estimate | None, metric: str) -> str:
    if estimate is None:
        return ""
    times = 100.0 if metric == "accuracy" else 1.0
    half = f" ± {estimate.half * times:.2g}" if estimate.half is not None else ""
    return f"{estimate.mean * times:+.3g}{half}{' *' if estimate.is_apart_from_zero else ''}"


def draw(series: Sequence[SeedSeries], path: Path, *, metric: str) -> None:
    """Write a PNG with the metric by version and by virtual time."""
    if not 1 <= len(series) <= len(_LINES):
        raise Misuse(f"a picture shows 1 to {len(_LINES)} plans, not {len(series)}: draw fewer at a time")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise Misuse("a picture needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), dpi=_DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    longest_s = max(outcome.seconds for each in series for outcome in each.outcomes)
    unit_s, unit = next((unit_s, name) for most_s, unit_s, name in _UNITS if longest_s <= most_s)
    axes_of: tuple[tuple[str, Callable[[int, float], float]], ...] = (
        ("version", lambda version, at_s: float(version)),
        (f"virtual time, {unit}", lambda version, at_s: at_s / unit_s),
    )
    for axes, (label, place_of) in zip(panels, axes_of, strict=True):
        _draw_curves(axes, series, place_of, metric=metric)
        axes.set_xlabel(label, color=_FAINT)
    panels[0].set_ylabel(f"{metric}, %" if metric == "accuracy" else metric, color=_FAINT)
    if len(series) > 1:
        panels[-1].legend(frameon=False, fontsize=10, labelcolor=_INK)
    figure.suptitle(_heading(series, metric), x=0.01, ha="left", fontsize=13, fontweight="bold", color=_INK)
    figure.savefig(path, format="png", dpi=_DPI)


def _draw_curves(
    axes: Axes, series: Sequence[SeedSeries], place_of: Callable[[int, float], float], *, metric: str
) -> None:
    times = 100.0 if metric == "accuracy" else 1.0
    for colour, each in zip(_LINES, series, strict=False):
        curve = each.curve(metric)
        places = [place_of(version, at_s) for version, at_s, _ in curve]
        means = [times * estimate.mean for *_, estimate in curve]
        halves = [times * (estimate.half or 0.0) for *_, estimate in curve]
        marker = "o" if len(curve) <= 30 else ""
        axes.plot(places, means, color=colour, label=clean(each.name, 30), marker=marker, markersize=3)
        low = [mean - half for mean, half in zip(means, halves, strict=True)]
        high = [mean + half for mean, half in zip(means, halves, strict=True)]
        axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.grid(color=_HAIR, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=_FAINT, labelsize=9)


def _heading(series: Sequence[SeedSeries], metric: str) -> str:
    setting = series[0].setting
    divided = f", {setting.partition}" if setting.partition is not None else ""
    told = f"{metric} on {plural(setting.devices, 'device')} of {setting.profile}{divided}"
    return f"{told}: mean of {plural(len(setting.seeds), 'seed')}" + (", 95 %" if len(setting.seeds) > 1 else "")
