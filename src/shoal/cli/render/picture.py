"""A picture of one simulated job, or of a few side by side: how well it learned, and what its devices were at.

Draws outcomes and knows nothing of worlds. matplotlib is asked for only when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.cli.render.format import clean, count_text, number_text, plural, share_text, span_text
from shoal.errors import Misuse
from shoal.sim.outcome import DeviceActivity, DeviceTimeline, Note, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Beyond this the panels are too narrow to read.
PLANS_MAX = 4

_WIDTH_IN, _HEIGHT_IN, _DPI = 15.0, 10.0, 100
_POINTS_PER_PIXEL = 72 / _DPI

#: Told apart by people who see few colours: by hue, or else by lightness.
_COLOURS: dict[DeviceActivity, str] = {
    DeviceActivity.TRAINING: "#2b6ca3",
    DeviceActivity.EVALUATING: "#e8a33d",
    DeviceActivity.SENDING: "#9ccbe8",
    DeviceActivity.RECEIVING: "#9ccbe8",
    DeviceActivity.PREPARING: "#b58fb0",
    DeviceActivity.WAITING: "#dcdcd7",
    DeviceActivity.AWAY: "#f6f6f4",
}
_LEGEND = {
    DeviceActivity.TRAINING: "training",
    DeviceActivity.EVALUATING: "evaluating",
    DeviceActivity.SENDING: "model or update on its way",
    DeviceActivity.PREPARING: "preparing",
    DeviceActivity.WAITING: "waiting",
    DeviceActivity.AWAY: "away",
}
#: States of a cohort's devices, and what they are called.
_CENSUS = {
    "working": "with a lease",
    "waiting": "connected, without a lease",
    "asleep": "told to come again later",
    "away": "away",
}
_LINES = ("#2b6ca3", "#d1662b", "#3f8f6b", "#7a5195")
_FAULT = "#a3261e"
_INK, _FAINT, _HAIR = "#222222", "#6b6b6b", "#d4d4d0"

#: What a lane's height is of the upper panel's, and the least and most of all lanes together.
_LANE_RATIO, _LANES_RATIO_MIN, _LANES_RATIO_MAX = 0.11, 0.25, 1.6

#: A curve of at most so many points shows each of them.
_DOTS_MAX = 60

#: The manager's faults are named if their names do not touch: so much of the panel's width apart.
_NAMES_APART = 0.08

_KIND_CHARS = 20
_REASON_CHARS = 130

#: (up to here, seconds in one, its name)
_UNITS = ((180.0, 1.0, "s"), (3 * 3600.0, 60.0, "min"), (4 * 86_400.0, 3600.0, "h"), (float("inf"), 86_400.0, "days"))


def draw(outcomes: Sequence[tuple[str, Outcome]], path: Path) -> None:
    """Write a PNG of these plans, each under its name."""
    if not 1 <= len(outcomes) <= PLANS_MAX:
        raise Misuse(f"a picture shows 1 to {PLANS_MAX} plans, not {len(outcomes)}: draw fewer at a time")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise Misuse("a picture needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), dpi=_DPI, facecolor="white")
    FigureCanvasAgg(figure)
    _fill(figure, outcomes)
    figure.savefig(path, format="png", dpi=_DPI)


def _fill(figure: Figure, outcomes: Sequence[tuple[str, Outcome]]) -> None:
    end_s = max(outcome.seconds for _, outcome in outcomes) or 1.0
    lanes = max(len(outcome.lanes) for _, outcome in outcomes)
    lanes_ratio = min(_LANES_RATIO_MAX, max(_LANES_RATIO_MIN, _LANE_RATIO * lanes))
    has_kinds = len(outcomes) == 1 and len({lane.kind for lane in outcomes[0][1].lanes}) > 1
    has_kinds = has_kinds and not outcomes[0][1].census
    left = 0.15 if has_kinds else 0.06
    grid = figure.add_gridspec(
        2,
        len(outcomes),
        height_ratios=(1.0, lanes_ratio),
        left=left,
        right=0.975,
        top=0.86,
        bottom=0.115,
        hspace=0.26,
        wspace=0.1,
    )
    _draw_heading(figure, outcomes, left)
    _draw_curves(figure.add_subplot(grid[0, :]), outcomes, end_s)
    for column, (name, outcome) in enumerate(outcomes):
        axes = figure.add_subplot(grid[1, column])
        if outcome.census:
            _draw_census(axes, outcome, end_s)
        else:
            _draw_lanes(axes, outcome, end_s, has_kinds=has_kinds)
        told = _devices_text(outcome)
        told = f"{name}: {told}" if len(outcomes) > 1 else told
        axes.set_title(told, loc="left", fontsize=11, color=_INK, pad=19, parse_math=False)
    if any(not outcome.census for _, outcome in outcomes):
        _draw_legend(figure, [outcome for _, outcome in outcomes if not outcome.census])


# Words -------------------------------------------------------------------------------------------------


def _draw_heading(figure: Figure, outcomes: Sequence[tuple[str, Outcome]], left: float) -> None:
    told = " · ".join(f"{name}: {result_text(outcome)}" for name, outcome in outcomes)
    # A long line is set smaller rather than cut: it is what the picture says.
    size = min(18.0, 18.0 * 90 / max(1, len(told)))
    figure.text(left, 0.945, told, fontsize=size, fontweight="bold", color=_INK, parse_math=False)
    beneath = " · ".join(f"{name}: {_reason_text(outcome)}" for name, outcome in outcomes)
    if len(outcomes) == 1:
        beneath = f"{_reason_text(outcomes[0][1])}  ·  {_facts_text(outcomes[0][1])}"
    figure.text(left, 0.915, clean(beneath, 190), fontsize=10.5, color=_FAINT, parse_math=False)


def result_text(outcome: Outcome) -> str:
    """What came of it, in a few words: ``97.1 % after 4 min 12 s``."""
    took = span_text(outcome.seconds)
    if outcome.state in ("failed", "stopped"):
        return f"{outcome.state} after {took}"
    if outcome.state != "finished":
        return f"not over after {took}"
    if outcome.is_system_only or not outcome.evaluations:
        return f"{plural(outcome.rounds, 'version')} in {took}"
    last = outcome.evaluations[-1]
    if last.accuracy is not None:
        return f"{share_text(last.accuracy, 1)} after {span_text(last.at_s)}"
    figures = ", ".join(f"{clean(name, 30)} {number_text(figure)}" for name, figure in last.metrics.items())
    return f"{figures or 'no metrics'} after {span_text(last.at_s)}"


def _reason_text(outcome: Outcome) -> str:
    return clean(outcome.reason, _REASON_CHARS) or outcome.state


def _facts_text(outcome: Outcome) -> str:
    facts = [plural(outcome.epochs, "epoch"), plural(outcome.rounds, "version")]
    for count, one in ((outcome.refused, "refused update"), (outcome.leases_expired, "expired lease")):
        if count:
            facts.append(plural(count, one))
    if outcome.crashes:
        facts.append(plural(outcome.crashes, "crash", "crashes"))
    return ", ".join(facts)


def _devices_text(outcome: Outcome) -> str:
    if outcome.census:
        count = plural(len(outcome.devices) + outcome.rows, "device")
        return f"{count} by what they are at, on a logarithmic scale; {count_text(outcome.took_part)} took part"
    kinds = list(dict.fromkeys(device.kind for device in outcome.devices))
    of_kind = f" ({kinds[0]})" if len(kinds) == 1 else ""
    shown = f", {len(outcome.lanes)} of them shown" if len(outcome.lanes) < len(outcome.devices) else ""
    devices = f"{plural(len(outcome.devices), 'device')}{of_kind}{shown}"
    return f"{devices}; idle for {share_text(outcome.idle_share, 0)} of the time"


# Time --------------------------------------------------------------------------------------------------


def _unit(end_s: float) -> tuple[float, str]:
    """What a time axis of this length counts in: seconds in one, and its name."""
    return next((seconds, name) for upto_s, seconds, name in _UNITS if end_s <= upto_s)


def _time_axis(axes: Axes, end_s: float) -> None:
    from matplotlib.ticker import MaxNLocator

    seconds, name = _unit(end_s)
    axes.set_xlim(0.0, end_s / seconds)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 5, 10]))
    axes.set_xlabel(f"virtual time since submission ({name})", fontsize=10, color=_FAINT)
    axes.tick_params(colors=_FAINT, labelsize=9, length=3, color=_HAIR)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_HAIR)


# How well it learned -----------------------------------------------------------------------------------


def _draw_curves(axes: Axes, outcomes: Sequence[tuple[str, Outcome]], end_s: float) -> None:
    is_system_only = any(outcome.is_system_only for _, outcome in outcomes)
    if is_system_only or not any(_accuracies(outcome) for _, outcome in outcomes):
        why = "system only: nothing is learned" if is_system_only else "no accuracy was evaluated"
        _draw_versions(axes, outcomes, end_s)
        told = f"versions made ({why})"
    else:
        _draw_accuracies(axes, outcomes, end_s)
        told = "accuracy on held-out examples"
    axes.set_title(told, loc="left", fontsize=11, color=_INK)
    _time_axis(axes, end_s)
    # The panel below says it, right under a title that needs the room.
    axes.set_xlabel("")
    axes.grid(axis="y", color=_HAIR, linewidth=0.6)
    axes.set_axisbelow(True)
    if len(outcomes) > 1:
        # A space before each name: matplotlib leaves out what begins with an underscore.
        names = [f" {name}" for name, _ in outcomes]
        legend = axes.legend(axes.lines[: len(names)], names, loc="lower right", frameon=False, labelcolor=_INK)
        for text in legend.get_texts():
            text.set_parse_math(False)
    else:
        _draw_home_faults(axes, outcomes[0][1], end_s)


def _accuracies(outcome: Outcome) -> list[tuple[float, float]]:
    """When each evaluation was, and the share that was right then."""
    return [(point.at_s, point.accuracy) for point in outcome.evaluations if point.accuracy is not None]


def _draw_accuracies(axes: Axes, outcomes: Sequence[tuple[str, Outcome]], end_s: float) -> None:
    seconds, _ = _unit(end_s)
    shares = [100 * share for _, outcome in outcomes for _, share in _accuracies(outcome)]
    goals = list(dict.fromkeys(outcome.goal for _, outcome in outcomes if outcome.goal is not None))
    low, high = min(shares), max([*shares, *(100 * goal for goal in goals)])
    margin = max(2.0, 0.12 * (high - low))
    axes.set_ylim(max(0.0, low - margin), min(100.0, high + margin))
    axes.yaxis.set_major_formatter("{x:g} %")
    for (_, outcome), colour in zip(outcomes, _LINES, strict=False):
        points = _accuracies(outcome)
        dots = "o" if len(points) <= _DOTS_MAX else ""
        at = [at_s / seconds for at_s, _ in points]
        heights = [100 * share for _, share in points]
        # The last evaluation lies on the edge: its dot is drawn whole.
        axes.plot(at, heights, dots + "-", color=colour, markersize=5, clip_on=False, zorder=3)
    for goal in goals:
        axes.axhline(100 * goal, color=_FAINT, linewidth=0.9, linestyle=(0, (2, 3)))
        axes.annotate(
            f"goal {100 * goal:g} %", (0.004, 100 * goal), xycoords=("axes fraction", "data"), xytext=(0, 3),
            textcoords="offset points", fontsize=9, color=_FAINT,
        )  # fmt: skip
    for (_, outcome), colour in zip(outcomes, _LINES, strict=False):
        _draw_goal_reached(axes, outcome, colour, seconds)


def _draw_goal_reached(axes: Axes, outcome: Outcome, colour: str, seconds: float) -> None:
    reached_s = outcome.time_to(outcome.goal) if outcome.goal is not None else None
    if reached_s is None:
        return
    share = next(100 * share for at_s, share in _accuracies(outcome) if at_s == reached_s)
    at = reached_s / seconds
    axes.plot([at], [share], "o", color=colour, markersize=10, markeredgecolor="white", clip_on=False, zorder=4)
    # At the right edge there is room on the left only.
    is_late = at > 0.95 * axes.get_xlim()[1]
    axes.annotate(
        span_text(reached_s), (at, share), xytext=(4 if is_late else 0, 9), textcoords="offset points",
        fontsize=10, color=colour, fontweight="bold", ha="right" if is_late else "center",
    )  # fmt: skip


def _draw_versions(axes: Axes, outcomes: Sequence[tuple[str, Outcome]], end_s: float) -> None:
    from matplotlib.ticker import MaxNLocator

    seconds, _ = _unit(end_s)
    for (_, outcome), colour in zip(outcomes, _LINES, strict=False):
        # Between two points of the series a version stays what it is; the last one to the end.
        series = [(0.0, 0), *outcome.rates, (outcome.seconds, outcome.rounds)]
        at, versions = [at_s / seconds for at_s, _ in series], [version for _, version in series]
        axes.step(at, versions, where="post", color=colour)
    axes.set_ylim(0, 1.08 * max(1, *(outcome.rounds for _, outcome in outcomes)))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_formatter("{x:,.0f}")


# What devices were at ----------------------------------------------------------------------------------


def _draw_lanes(axes: Axes, outcome: Outcome, end_s: float, *, has_kinds: bool) -> None:
    seconds, _ = _unit(end_s)
    lanes = outcome.lanes
    _time_axis(axes, end_s)
    axes.set_ylim(max(1, len(lanes)), 0)
    height = axes.bbox.height / max(1, len(lanes))
    if lanes and outcome.seconds > 0:
        columns = max(1, round(axes.bbox.width * outcome.seconds / end_s))
        image = np.stack([lane_colours(lane, outcome.seconds, columns) for lane in lanes])
        extent = (0.0, outcome.seconds / seconds, float(len(lanes)), 0.0)
        axes.imshow(image, aspect="auto", interpolation="nearest", extent=extent)
        axes.set_xlim(0.0, end_s / seconds)
        gap = max(1.0, min(6.0, 0.22 * height)) * _POINTS_PER_PIXEL
        axes.hlines(range(len(lanes) + 1), 0, end_s / seconds, color="white", linewidth=gap)
    axes.spines["left"].set_visible(False)
    labels = [f"{clean(lane.kind, _KIND_CHARS)}  {lane.node}" if has_kinds else lane.node for lane in lanes]
    size = max(5.0, min(9.0, 0.85 * height * _POINTS_PER_PIXEL))
    axes.set_yticks([lane + 0.5 for lane in range(len(lanes))], labels, fontsize=size)
    axes.tick_params(axis="y", length=0, pad=8)
    _draw_faults(axes, outcome, end_s)
    _draw_home_faults(axes, outcome, end_s, with_names=True)


def _draw_census(axes: Axes, outcome: Outcome, end_s: float) -> None:
    """Draw how many devices are in each state: of so many, lanes of a few would say nothing."""
    seconds, _ = _unit(end_s)
    _time_axis(axes, end_s)
    # Of 100,000 devices a thousand train: only a logarithmic scale shows both. 0 has a place on this one.
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_ylim(0.0, 1.5 * (len(outcome.devices) + outcome.rows))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", color=_HAIR, linewidth=0.6)
    axes.set_axisbelow(True)
    at = [each.at_s / seconds for each in outcome.census]
    for (name, label), colour in zip(_CENSUS.items(), _LINES, strict=True):
        axes.plot(at, [getattr(each, name) for each in outcome.census], color=colour, linewidth=1.4, label=label)
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=len(_CENSUS), frameon=False, fontsize=10, labelcolor=_INK
    )
    _draw_home_faults(axes, outcome, end_s, with_names=True)


def lane_colours(lane: DeviceTimeline, end_s: float, columns: int) -> np.ndarray:
    """A lane as so many colours, from second 0 to the end. Where a column holds several states, their colours are
    mixed by how long each was held: a lane that is half busy looks so, however short its spans."""
    edges_s = np.linspace(0.0, end_s, columns + 1)
    if lane.grain_s * columns > end_s:
        # Its spans are true grain by grain, not within one: each column shows the grain that its middle is in.
        grains = ((edges_s[:-1] + edges_s[1:]) / 2 - lane.grains_from_s) // lane.grain_s
        starts_s = lane.grains_from_s + grains * lane.grain_s
        return _mixed(lane, np.maximum(0.0, starts_s), np.minimum(end_s, starts_s + lane.grain_s))
    return _mixed(lane, edges_s[:-1], edges_s[1:])


def _mixed(lane: DeviceTimeline, from_s: np.ndarray, to_s: np.ndarray) -> np.ndarray:
    """The colour of each of these stretches."""
    from matplotlib.colors import to_rgb

    borders_s = np.array([0.0, *(span.to_s for span in lane.spans)])
    mixed = np.zeros((len(from_s), 3))
    for state in DeviceActivity:
        held_s = np.array([0.0, *(span.to_s - span.from_s if span.state is state else 0.0 for span in lane.spans)])
        sums_s = np.cumsum(held_s)
        held_there_s = np.interp(to_s, borders_s, sums_s) - np.interp(from_s, borders_s, sums_s)
        mixed += np.outer(held_there_s, to_rgb(_COLOURS[state]))
    # Rounded here: matplotlib cuts off, and a hair below a value would show as a stripe.
    colours: np.ndarray = np.rint(255 * np.clip(mixed / (to_s - from_s)[:, None], 0.0, 1.0)).astype(np.uint8)
    return colours


def _draw_faults(axes: Axes, outcome: Outcome, end_s: float) -> None:
    seconds, _ = _unit(end_s)
    places = {lane.node: number for number, lane in enumerate(outcome.lanes)}
    struck = [note for note in outcome.notes if note.node in places]
    size = max(5.0, min(7.0, 0.35 * axes.bbox.height / max(1, len(places)) * _POINTS_PER_PIXEL))
    at = [max(0.0, note.at_s) / seconds for note in struck]
    heights = [places[note.node] + 0.5 for note in struck]
    axes.plot(
        at, heights, "v", color=_FAULT, markersize=size, markeredgecolor="white", markeredgewidth=0.7, clip_on=False,
        zorder=5,
    )  # fmt: skip


def _of_home(outcome: Outcome) -> list[Note]:
    devices = {device.node for device in outcome.devices}
    return [note for note in outcome.notes if note.node not in devices]


def _draw_home_faults(axes: Axes, outcome: Outcome, end_s: float, *, with_names: bool = False) -> None:
    seconds, _ = _unit(end_s)
    free_from = 0.0
    for note in _of_home(outcome):
        at = max(0.0, note.at_s) / seconds
        axes.axvline(at, color=_FAULT, linewidth=1.0, linestyle=(0, (4, 3)), zorder=4)
        share = at * seconds / end_s
        if with_names and share >= free_from:
            free_from = share + _NAMES_APART
            axes.annotate(
                f"{note.node}: {note.text.partition('(')[0].replace('_', ' ')}", (at, 1.0),
                xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points", fontsize=8.5,
                color=_FAULT, ha="left" if share < 0.9 else "right",
            )  # fmt: skip


def _draw_legend(figure: Figure, outcomes: Sequence[Outcome]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [
        Patch(facecolor=_COLOURS[state], edgecolor=_HAIR, linewidth=0.8, label=label)
        for state, label in _LEGEND.items()
    ]
    of_home = sum(len(_of_home(outcome)) for outcome in outcomes)
    if sum(len(outcome.notes) for outcome in outcomes) > of_home:
        handles.append(Line2D([], [], color=_FAULT, marker="v", linestyle="", markersize=6, label="fault of a device"))
    if of_home:
        handles.append(Line2D([], [], color=_FAULT, linewidth=1.0, linestyle=(0, (4, 3)), label="fault of home"))
    figure.legend(
        handles=handles, loc="lower center", bbox_to_anchor=(0.5, 0.012), ncols=len(handles), frameon=False,
        fontsize=10, labelcolor=_INK, handlelength=1.6, columnspacing=2.0,
    )  # fmt: skip
