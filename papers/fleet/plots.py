"""The plots of README.md, each from its experiment's rows. Needs matplotlib; measures nothing."""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from papers.fleet.paper import TAIL_FROM
from papers.fleet.setting import EVALUATE_EVERY, LOOKS, TARGET
from papers.fleet.staleness import BAR_WIDTH, BARS
from papers.harness.plots import Plots, panels
from papers.harness.rows import Row, chosen, of_one, one

_LOOK = {
    "ssgd": ("#777777", "-"),
    "fedavg": ("#b03030", ":"),
    "dynsgd": ("#d1720c", "--"),
    "adasgd": ("#1f5fa8", "-"),
    "adasgd, released": ("#6a9bd8", "-"),
    "adasgd, deployed": ("#6a9bd8", "--"),
    "exponential": ("#8a5fb0", "-."),
    "adaptive": ("#2f8f4e", "-"),
    "adaptive, calibrated": ("#145a2b", "-."),
}
_OTHER = ("#999999", ":")

_panels = partial(panels, width=4.6, height=3.4)


def _line(axes: Axes, values: list[float], name: str) -> None:
    """Smoothed as the steps to 80 % are counted: the mean of the last looks."""
    colour, line = _LOOK.get(name, _OTHER)
    smooth = [float(np.mean(values[max(0, end - LOOKS) : end])) for end in range(1, len(values) + 1)]
    steps = [EVALUATE_EVERY * number for number in range(1, len(values) + 1)]
    axes.plot(steps, [100 * value for value in smooth], color=colour, linestyle=line, label=name)


def _target(axes: Axes, title: str, what: str = "accuracy, %") -> None:
    axes.axhline(100 * TARGET, color="#777777", linewidth=0.8)
    axes.set_title(title)
    axes.set_xlabel("gradients")
    axes.set_ylabel(what)
    axes.set_ylim(0, 100)
    axes.legend()


def paper_rate(rows: list[Row]) -> Figure:
    figure, panels = _panels(2)
    for axes, staleness in zip(panels, ("D1", "D2"), strict=True):
        for name in ("ssgd", "fedavg", "dynsgd", "adasgd", "adasgd, released"):
            row = one(rows, rule=name, staleness="none" if name == "ssgd" else staleness, how="paper")
            if row:
                _line(axes, row["curve"], name)
        _target(axes, f"{staleness}, at the paper's rate, one seed")
    return figure


def late(rows: list[Row]) -> Figure:
    """A bar a rule, a dot a seed."""
    figure, (axes,) = _panels(1, width=8.0)
    found = [row for row in chosen(rows, staleness="D2", how="tuned") if row["median"] is not None]
    found.sort(key=lambda row: float(row["median"]))
    for place, row in enumerate(found):
        colour, _ = _LOOK.get(row["rule"], _OTHER)
        axes.barh(place, row["median"], color=colour, alpha=0.6)
        seeds = [value for value in row["steps_to_80"] if value is not None]
        axes.plot(seeds, [place] * len(seeds), "k.", markersize=4)
    axes.set_yticks(range(len(found)), [row["rule"] for row in found])
    axes.set_xlabel("gradients to 80 % on D2, each rule at its best rate; dots are seeds")
    axes.invert_yaxis()
    return figure


def long_tail(rows: list[Row]) -> Figure:
    figure, (left, right) = _panels(2)
    rows = chosen(rows, split="hundred")
    for row in rows:
        _line(left, row["class_0"], row["rule"])
    _target(left, "class 0, always 48 late, one seed", "accuracy on class 0, %")
    for row in rows:
        colour, line = _LOOK.get(row["rule"], _OTHER)
        weights = [max(value, 1e-8) for value in row["weight_deciles"]]
        right.plot(weights, np.linspace(0, 1, len(weights)), color=colour, linestyle=line)
    right.set_xscale("log")
    right.set_title("weights of all updates")
    right.set_xlabel("weight")
    right.set_ylabel("share at most so heavy")
    return figure


def private(rows: list[Row]) -> Figure:
    figure, panels = _panels(3, width=3.8)
    for axes, multiplier in zip(panels, sorted({row["multiplier"] for row in rows}), strict=False):
        for row in chosen(rows, multiplier=multiplier):
            _line(axes, row["curve"], row["rule"])
        epsilon = chosen(rows, multiplier=multiplier)[0]["epsilon"]
        _target(axes, "clipped, no noise" if epsilon is None else f"ε = {epsilon:.1f} (z = {multiplier:g})")
    return figure


def thresholds(rows: list[Row]) -> Figure:
    figure, (axes,) = _panels(1, width=5.5)
    whole = one(rows, threshold="size", share=0.0)
    for what, name, mark in (("size", "smallest batches", "o"), ("similarity", "most similar users", "s")):
        found = ([whole] if whole and what == "similarity" else []) + chosen(rows, threshold=what)
        axes.plot(
            [100 * row["dropped"] for row in found], [100 * row["final"] for row in found], f"{mark}-", label=name
        )
    axes.set_xlabel("requests refused, %")
    axes.set_ylabel("accuracy, %")
    axes.legend()
    return figure


def online(rows: list[Row]) -> Figure:
    figure, panels = _panels(2, width=5.2)
    for axes, reset_days in zip(panels, (None, 2), strict=True):
        for pace, colour in (("hourly", "#1f5fa8"), ("daily", "#d1720c")):
            row = one(rows, what="model", pace=pace, reset_days=reset_days)
            if row:
                days = row["by_day"]
                smooth = [float(np.mean(days[max(0, end - 7) : end])) for end in range(1, len(days) + 1)]
                axes.plot(smooth, color=colour, label=f"{pace} updates")
        axes.set_title("no resets" if reset_days is None else "reset every two days")
        axes.set_xlabel("day of 2020")
        axes.set_ylabel("F1@5, mean of seven days")
        axes.set_ylim(bottom=0)
        axes.legend()
    return figure


def staleness(rows: list[Row]) -> Figure:
    """Without the last bar, which is all that is beyond the axis."""
    figure, (axes,) = _panels(1, width=6.0)
    row = rows[-1]
    shares = 100 * np.array(row["histogram"]) / sum(row["histogram"])
    starts = BAR_WIDTH * np.arange(BARS)
    axes.bar(starts[:-1], shares[:-1], BAR_WIDTH, align="edge", color="#1f5fa8")
    axes.axvline(TAIL_FROM, color="#777777", linewidth=0.8, linestyle="--")
    axes.set_title(f"posts {row['speed']:.0f} times as fast; {shares[-1]:.1f} % are beyond {starts[-1]}")
    axes.set_xlabel("staleness; dashed: where the paper's tail begins")
    axes.set_ylabel("% of gradients")
    return figure


PLOTS: Plots = {
    "late": of_one("late", late),
    "paper_rate": of_one("paper_rate", paper_rate),
    "long_tail": of_one("long_tail", long_tail),
    "private": of_one("private", private),
    "thresholds": of_one("thresholds", thresholds),
    "online": of_one("online", online),
    "staleness": of_one("staleness", staleness),
}
