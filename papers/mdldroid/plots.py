"""The plots of README.md, each from its experiment's rows. Needs matplotlib; measures nothing."""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib.figure import Figure

from papers.harness.plots import Plots, panels
from papers.harness.rows import Drawing, Row, chosen, of_one, one
from papers.mdldroid.paper import HEAP_MB
from papers.mdldroid.speed import against_master, against_one

_COLOURS = {
    "central": "#777777",
    "chain": "#1f5fa8",
    "neighbour": "#d1720c",
    "literal": "#b03030",
    "ours": "#1f5fa8",
    "tree, in step": "#d1720c",
    "ring": "#b03030",
    "ring, N hops": "#e0a0a0",
    "dqn": "#2f8f4e",
    "perfect agent": "#8a5fb0",
    "dqn, timed": "#6ec08a",
    "dqn, asked again": "#145a2b",
    "any two free": "#999999",
}

_panels = partial(panels, width=4.2, height=3.3)


def accuracy(rows: list[Row]) -> Figure:
    figure, panels = _panels(3)
    central = one(rows, method="central")
    for axes, devices in zip(panels, (3, 6, 9), strict=True):
        found = [central] if central else []
        found += chosen(rows, devices=devices, split="people", theta="samples")
        for row in found:
            if row["method"] in ("central", "chain", "neighbour", "literal"):
                epochs = range(1, len(row["curve"]) + 1)
                axes.plot(
                    epochs, [100 * look for look in row["curve"]], color=_COLOURS[row["method"]], label=row["method"]
                )
        axes.set_title(f"N = {devices}")
        axes.set_xlabel("epochs")
        axes.set_ylabel("test accuracy, %")
        axes.set_ylim(40, 100)
        axes.legend()
    return figure


def schedulers(rows: list[Row]) -> Figure:
    figure, (left, middle, right) = _panels(3)
    for name, colour in _COLOURS.items():
        found = chosen(rows, scheduler=name)
        if not found:
            continue
        sizes, mark = (
            [row["devices"] for row in found],
            {"dqn, timed": "o", "dqn, asked again": "--", "any two free": ":"}.get(name, "-"),
        )
        left.plot(sizes, [row["makespan"] for row in found], mark, color=colour, label=name, markersize=4)
        middle.plot(sizes, [row["over_optimum"] for row in found], mark, color=colour, markersize=4)
        spent = [max(row["variance_rounds"], 1e-2) for row in found]
        right.plot(sizes, spent, mark, color=colour, markersize=4)
    left.set_ylabel("a round, in merges")
    left.legend(fontsize=7)
    middle.set_ylabel("over the optimum")
    right.set_ylabel("energy's variance after 200 rounds")
    right.set_yscale("log")
    for axes in (left, middle, right):
        axes.set_xlabel("devices")
    return figure


def explore(rows: list[Row]) -> Figure:
    bars = list(dict.fromkeys(row["bar"] for row in rows))
    figure, panels = _panels(len(bars), width=4.0)
    for axes, bar in zip(panels, bars, strict=True):
        for name in ("TDGE", "TGE", "DGE", "plain"):
            found = chosen(rows, bar=bar, strategy=name)
            sizes = [row["devices"] for row in found]
            axes.errorbar(
                sizes,
                [row["games"] for row in found],
                yerr=[row["games_deviation"] for row in found],
                label=name,
                capsize=2,
            )
        axes.set_title(f"threshold {bar}")
        axes.set_xlabel("devices")
        axes.set_ylabel("games")
        axes.legend()
    return figure


def memory(rows: list[Row]) -> Figure:
    figure, (axes,) = _panels(1, width=6.0)
    for name in dict.fromkeys(row["how"] for row in rows):
        found = chosen(rows, how=name)
        axes.plot([row["devices"] for row in found], [row["peak_mb"] for row in found], "o-", label=name, markersize=4)
    axes.axhline(HEAP_MB, color="#777777", linewidth=0.8, linestyle="--")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("devices; dashed: the paper's heap")
    axes.set_ylabel("peak resident memory, MB")
    axes.legend(fontsize=7)
    return figure


def speed(rows: list[Row]) -> Figure:
    figure, (left, right) = _panels(2)
    found = chosen(rows, what="testbed")
    sizes = [row["devices"] for row in found]
    for name, colour in (("chain", "#1f5fa8"), ("master", "#b03030")):
        left.plot(sizes, [row[f"{name}_s"] for row in found], "o", color=colour, label=name)
        left.plot(sizes, [row[f"model_{name}_s"] for row in found], "-", color=colour, label=f"{name}, by the model")
    if found:
        left.axhline(found[0]["one_s"], color="#777777", linewidth=0.8)
    left.set_ylim(bottom=0)
    left.set_ylabel("seconds an epoch")
    left.legend()
    right.plot(sizes, [against_one(row) for row in found], "o-", label="against one device")
    right.plot(sizes, [against_master(row) for row in found], "s-", label="against a master")
    right.set_ylabel("times as fast")
    right.set_ylim(bottom=0)
    right.legend()
    for axes in (left, right):
        axes.set_xlabel("devices")
        axes.set_xticks(np.arange(2, 10))
    return figure


PLOTS: Plots = {
    "accuracy": of_one("accuracy", accuracy),
    "schedulers": of_one("schedulers", schedulers),
    # Φ set by trying is drawn beside the others.
    "explore": Drawing(("explore",), lambda rows: explore([*rows["explore"], *rows.get("offset", [])])),
    "memory": of_one("memory", memory),
    "speed": of_one("speed", speed),
}
