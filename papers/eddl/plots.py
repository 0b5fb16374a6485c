"""The plots of README.md, each from its experiment's rows. Needs matplotlib; measures nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from papers.eddl import accuracy, paper, splitting
from papers.eddl.setting import BATCH_S, EPOCHS, RATES_MBIT
from papers.eddl.training_time import ratio
from papers.harness.plots import Plots, panels
from papers.harness.rows import Row, chosen, of_one, one
from shoal.topology.saturation import crew

#: Told apart also without colour: each line has a mark of its own.
_BLUE, _ORANGE, _GREEN, _GREY = "#1f5fa8", "#d1720c", "#2f8f4e", "#777777"
_LEADERS = {"paper": ("as the paper", "o", "--"), "shoal": ("Shoal", "s", "-")}
_PACES = {"sync": _BLUE, "async": _ORANGE}

_panels = partial(panels, width=4.2, height=3.2)


def _over_size(axes: Axes, title: str, what: str) -> None:
    axes.set_title(title)
    axes.set_xlabel("workers")
    axes.set_ylabel(what)
    axes.set_xticks([1, 2, 4, 6, 8, 10, 12, 14, 16])
    axes.set_ylim(bottom=0)


def _series(axes: Axes, rows: list[Row], value: Callable[[Row], float], **look: Any) -> None:
    ordered = sorted(rows, key=lambda row: int(row["workers"]))
    axes.plot([row["workers"] for row in ordered], [value(row) for row in ordered], markersize=4, **look)


def batch_time(rows: list[Row]) -> Figure:
    figure, panels = _panels(2)
    for axes, rate in zip(panels, reversed(RATES_MBIT), strict=True):
        for pace, colour in _PACES.items():
            for leader, (name, mark, line) in _LEADERS.items():
                found = chosen(rows, mbit=rate, pace=pace)
                look = {"color": colour, "marker": mark, "linestyle": line, "label": f"{pace}, {name}"}
                _series(axes, found, lambda row, leader=leader: row[leader], **look)  # type: ignore[misc]
        axes.axhline(BATCH_S, color=_GREY, linewidth=1)
        axes.annotate("training alone", (16, BATCH_S), (0, -11), textcoords="offset points", ha="right", color=_GREY)
        _over_size(axes, f"{rate:g} Mb/s", "seconds a batch")
    panels[-1].legend()
    return figure


def accuracies(rows: list[Row]) -> Figure:
    figure, panels = _panels(2, width=4.6)
    marks = dict(zip(EPOCHS, ("v", "s", "o"), strict=True))
    for axes, late in zip(panels, ("async, momentum 0", "async, momentum 0.9"), strict=True):
        for kind, colour in (("sync", _BLUE), (late, _ORANGE)):
            for epoch in EPOCHS:
                points = [
                    (workers, 100 * fmean(row[f"after_{epoch}"] for row in found))
                    for workers in accuracy.SIZES
                    if (found := [r for r in chosen(rows, kind=kind, workers=workers) if r.get(f"after_{epoch}")])
                ]
                label = f"{'SYNC' if kind == 'sync' else 'ASYNC'}-{epoch}"
                shade = {10: 0.35, 20: 0.65, 30: 1.0}[epoch]
                xs, ys = [point[0] for point in points], [point[1] for point in points]
                axes.plot(xs, ys, color=colour, alpha=shade, marker=marks[epoch], markersize=4, label=label)
        _over_size(axes, f"sync against {late}", "accuracy, %")
        axes.set_xticks(accuracy.SIZES)
        axes.set_ylim(30, 90)
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def training_time(rows: list[Row]) -> Figure:
    figure, panels = _panels(3, width=3.9)
    for axes, rate in zip(panels, reversed(RATES_MBIT), strict=False):
        for pace, colour in _PACES.items():
            for leader, (name, mark, line) in _LEADERS.items():
                found = chosen(rows, mbit=rate, pace=pace)
                look = {"color": colour, "marker": mark, "linestyle": line, "label": f"{pace}, {name}"}
                _series(axes, found, lambda row, leader=leader: EPOCHS[-1] * row[leader] / 60, **look)  # type: ignore[misc]
        _over_size(axes, f"30 epochs, {rate:g} Mb/s", "minutes")
    panels[0].legend()
    for rate, colour in zip(RATES_MBIT, (_GREEN, _GREY), strict=True):
        for leader, (name, mark, line) in _LEADERS.items():
            sizes = sorted({int(row["workers"]) for row in chosen(rows, mbit=rate)})
            ratios = [ratio(rows, leader, workers=size, mbit=rate) or 0.0 for size in sizes]
            label = f"{rate:g} Mb/s, {name}"
            panels[2].plot(sizes, ratios, color=colour, marker=mark, linestyle=line, markersize=4, label=label)
    _over_size(panels[2], "ASYNC-30 / SYNC-20", "ratio of times")
    panels[2].axhline(1, color="black", linewidth=1)
    panels[2].legend()
    return figure


def saturated(rows: list[Row]) -> Figure:
    figure, panels = _panels(3, width=3.9)
    for axes, rate in zip(panels, reversed(RATES_MBIT), strict=False):
        for pace, colour in _PACES.items():
            found = chosen(rows, what="curve", mbit=rate, pace=pace)
            _series(axes, found, lambda row: row["buc"], color=colour, marker="o", label=pace)
            reported = paper.SATURATION[rate, pace]
            if reported is not None:
                axes.axvline(reported, color=colour, linestyle=":", label=f"paper: {pace} saturated")
        _over_size(axes, f"BUC, {rate:g} Mb/s", "n / t_sync, 1/s")
        axes.legend()
    for pace, colour in _PACES.items():
        found = chosen(rows, what="curve", mbit=RATES_MBIT[0], pace=pace)
        _series(panels[2], found, lambda row: row["throughput"], color=colour, marker="o", label=pace)
        judged = one(rows, what="rule", mbit=RATES_MBIT[0], pace=pace, rule="confidence")
        if judged and judged["knee"] is not None:
            panels[2].axvline(judged["knee"], color=colour, linestyle=":", label=f"knee, {pace}")
    _over_size(panels[2], f"throughput, {RATES_MBIT[0]:g} Mb/s", "batches a second")
    panels[2].legend(loc="lower right")
    return figure


def split(rows: list[Row]) -> Figure:
    figure, panels = _panels(1, width=8.0)
    axes = panels[0]
    colours = dict(zip(splitting.SHAPES, ("#9db8d8", _BLUE, _ORANGE, "#8fcca3", _GREEN, "#6b4ea0"), strict=True))
    width = 0.8 / len(splitting.SHAPES)
    for place, shape in enumerate(splitting.SHAPES):
        minutes = [row["training_s"] / 60 for row in chosen(rows, shape=shape)]
        at = [number + (place - (len(splitting.SHAPES) - 1) / 2) * width for number in range(len(minutes))]
        axes.bar(at, minutes, width, color=colours[shape], label=shape)
    axes.set_xticks(range(len(paper.TREES)), [f"1-{leads}-{workers}" for workers, leads in paper.TREES.items()])
    axes.set_ylabel("minutes for 30 epochs")
    axes.set_title("Splitting the leader's role, 100 Mb/s")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def stragglers(rows: list[Row]) -> Figure:
    cases = sorted({(row["leader"], row["mbit"]) for row in rows})
    figure, panels = _panels(len(cases), width=3.6)
    for axes, (leader, rate) in zip(panels, cases, strict=True):
        found = chosen(rows, leader=leader, mbit=rate, stragglers=2)
        at = range(len(found))
        axes.bar([x - 0.2 for x in at], [row["lent_s"] for row in found], 0.4, color=_BLUE, label="lent")
        axes.bar([x + 0.2 for x in at], [row["fixed_s"] for row in found], 0.4, color=_ORANGE, label="fixed shares")
        axes.set_xticks(list(at), [row["pace"] for row in found])
        axes.set_title(f"{'as the paper' if leader == 'paper' else 'Shoal'}, {rate:g} Mb/s")
        axes.set_ylabel("seconds an epoch")
        axes.set_ylim(top=1.3 * max(row["fixed_s"] for row in found))
    panels[0].legend(ncols=2, loc="upper right")
    return figure


def batch_size(rows: list[Row]) -> Figure:
    figure, panels = _panels(2)
    looks = dict(zip(sorted({row["workers"] for row in rows}), ("o", "s", "^", "v", "D"), strict=False))
    for workers, mark in looks.items():
        found = sorted(chosen(rows, workers=workers), key=lambda row: int(row["batch_size"]))
        minutes = [row["training_s"] / 60 for row in found]
        panels[0].plot([row["batch_size"] for row in found], minutes, marker=mark, label=crew(workers))
        learned = [row for row in found if row["accuracy"] is not None]
        if learned:
            shares = [100 * row["accuracy"] for row in learned]
            panels[1].plot([row["batch_size"] for row in learned], shares, marker=mark, label=crew(workers))
    for axes, title, what in zip(panels, ("time", "accuracy"), ("minutes for 30 epochs", "%"), strict=True):
        axes.set_xscale("log", base=2)
        axes.set_xticks(
            sorted({row["batch_size"] for row in rows}), sorted({str(row["batch_size"]) for row in rows}, key=int)
        )
        axes.set_xlabel("batch size")
        axes.set_ylabel(what)
        axes.set_title(title)
        axes.legend()
    panels[0].set_ylim(bottom=0)
    return figure


def families(rows: list[Row]) -> Figure:
    figure, (axes,) = _panels(1, width=6.0)
    malware = [row for row in rows if row["family"]]
    axes.bar([row["family"] for row in malware], [row["apps"] for row in malware], 0.8, color=_BLUE, label="DREBIN")
    told = [row for row in malware if row.get("reported")]
    places, sizes = [row["family"] for row in told], [row["reported"] for row in told]
    axes.plot(places, sizes, "o", color=_ORANGE, markersize=4, label="paper, as far as its text says")
    axes.set_yscale("log")
    axes.set_xlabel("family of malware, the largest first")
    axes.set_ylabel("apps")
    axes.legend(loc="upper right")
    return figure


PLOTS: Plots = {
    "families": of_one("families", families),
    "batch_time": of_one("batch_time", batch_time),
    "accuracy": of_one("accuracy", accuracies),
    "training_time": of_one("training_time", training_time),
    "saturated": of_one("saturated", saturated),
    "splitting": of_one("splitting", split),
    "stragglers": of_one("stragglers", stragglers),
    "batch_size": of_one("batch_size", batch_size),
}
