"""The plots of README.md, each from its experiments' rows. Needs matplotlib; measures nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from papers.adacomp import paper
from papers.adacomp.experiments import MEASURED
from papers.adacomp.tables import ARRIVALS, NAMES, RULES
from papers.harness.plots import Plots, panels
from papers.harness.rows import Drawing, Row, Rows, chosen, one

#: Told apart also without colour: each line has a mark of its own.
_LOOKS: dict[str, dict[str, Any]] = {
    "asgd": {"color": "#777777", "marker": "o"},
    "comp-asgd-10": {"color": "#d1720c", "marker": "v"},
    "comp-asgd-1": {"color": "#b03a2e", "marker": "^"},
    "adacomp-10": {"color": "#2f8f4e", "marker": "D"},
    "adacomp-1": {"color": "#1f5fa8", "marker": "s"},
}
_BARE = {"linestyle": "--", "markerfacecolor": "none"}

_panels = partial(panels, width=4.6, height=3.4, beside=1.8)


def accuracy(rows: Rows) -> Figure | None:
    """Figure 3: over updates, and over what was sent. Further seeds and starts are pale."""
    found = [row for row in rows.get("headline", []) if row["curve"]]
    if not found:
        return None
    figure, (over_updates, over_bytes) = _panels(2)
    named: set[str] = set()
    # What was measured in turn is drawn in full, and the start of all at once pale beside it.
    for row in sorted(found, key=lambda row: (row["start"], row["seed"])):
        look: dict[str, Any] = dict(_LOOKS[row["method"]])
        look |= {"alpha": 0.45} if row["method"] in named else {"label": NAMES[row["method"]]}
        named.add(row["method"])
        _curve(over_updates, row, lambda point: point[0] / 1000, **look)
        _curve(over_bytes, row, lambda point: point[2] / 1e9, **look)
    over_updates.set_xlabel("thousands of updates")
    over_bytes.set_xlabel("GB of coded updates")
    over_bytes.set_xscale("log")
    over_bytes.axvline(paper.ADACOMP_BYTES / 1e9, color="black", linestyle=":", linewidth=1)
    place = (paper.ADACOMP_BYTES / 1e9, 98.6)
    over_bytes.annotate("paper: AdaComp", place, (-3, 0), textcoords="offset points", ha="right")
    over_bytes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def tuned(rows: Rows) -> Figure | None:
    """The paper's rate and rule against the best without one, for each kind of arrivals."""
    figure, panels = _panels(2)
    drawn = False
    for axes, arrivals in zip(panels, ARRIVALS, strict=True):
        papers = chosen(rows.get("headline" if arrivals == "cycles" else "memoryless", []), start="together", seed=0)
        bare = chosen(rows.get("tuned", []), arrivals=arrivals, rule="none", seed=0)
        for method in ("adacomp-1", "asgd", "comp-asgd-1"):
            without = sorted(chosen(bare, method=method), key=_quickest)[:1]
            for row in (*chosen(papers, method=method), *without):
                rule = "no rule" if row["rule"] == "none" else f"rule {RULES[row['rule']]}"
                look = _LOOKS[method] | (_BARE if row["rule"] == "none" else {})
                label = f"{NAMES[method]}, α = {row['rate']:g}, {rule}"
                _curve(axes, row, lambda point: point[0] / 1000, label=label, **look)
                drawn = True
        axes.set_title(ARRIVALS[arrivals])
        axes.set_xlabel("thousands of updates")
        axes.legend(loc="lower right")
    return figure if drawn else None


def trouble(rows: Rows) -> Figure | None:
    """Table II and Figure 4 as curves."""
    all_of = [*rows.get("crashes", []), *rows.get("classes", [])]
    sizes = [images for images in (60_000, 12_000) if one(all_of, images=images)]
    if not sizes:
        return None
    figure, panels = _panels(len(sizes))
    for axes, images in zip(panels, sizes, strict=True):
        kinds = (
            ("as they are", one(all_of, images=images, classes=False, crash_chance=0.0, workers=paper.WORKERS)),
            ("crashes", one(all_of, images=images, crash_chance=paper.CRASH_CHANCE)),
            ("three classes", one(all_of, images=images, classes=True)),
        )
        for (label, row), method in zip(kinds, ("adacomp-1", "comp-asgd-1", "adacomp-10"), strict=True):
            if row:
                _curve(axes, row, lambda point: point[0] / 1000, label=label, **_LOOKS[method])
        axes.set_title(f"AdaComp, 1 %, {images:,} images")
        axes.set_xlabel("thousands of updates")
    panels[0].legend(loc="lower right")
    return figure


def _quickest(row: Row) -> tuple[float, float]:
    """First those that got to the target, then by how near they came."""
    return float(row["updates_to_target"] or math.inf), -float(row["best"])


def _curve(axes: Axes, row: Row, over: Callable[[list[float]], float], **look: Any) -> None:
    points = row["curve"]
    at, shares = [over(point) for point in points], [100 * point[1] for point in points]
    axes.plot(at, shares, markersize=3, markevery=max(1, len(points) // 8), linewidth=1.2, **look)
    axes.axhline(100 * paper.TARGET, color="black", linewidth=0.8)
    axes.set_ylim(80, 100)
    axes.set_ylabel("accuracy, %")


PLOTS: Plots = {
    "accuracy": Drawing(("headline",), accuracy),
    "tuned": Drawing(MEASURED, tuned),
    "trouble": Drawing(("crashes", "classes"), trouble),
}
