"""The plots of README.md, each from its experiment's rows. Needs matplotlib; measures nothing."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from papers.harness.plots import Plots
from papers.harness.rows import Row, chosen, of_one, one

#: Told apart also without colour: each line has a mark of its own.
_LOOKS: dict[str, dict[str, Any]] = {
    "add": {"color": "#1f5fa8", "marker": "s"},
    "subtract": {"color": "#777777", "marker": "o"},
    "multiply": {"color": "#2f8f4e", "marker": "D"},
    "divide": {"color": "#b03a2e", "marker": "v"},
    "dot": {"color": "#d1720c", "marker": "^"},
    "product": {"color": "#000000", "marker": "*"},
}


def operations(rows: list[Row]) -> Figure:
    """Figures 4.1 to 4.6, of this machine."""
    figure = Figure(figsize=(6.4, 3.6))
    axes = figure.add_subplot(1, 1, 1)
    for kind, look in _LOOKS.items():
        found = sorted(chosen(rows, kind=kind), key=lambda row: int(row["bytes"]))
        label = "product of matrices" if kind == "product" else kind
        axes.plot([row["bytes"] for row in found], [row["gflops"] for row in found], label=label, markersize=5, **look)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("bytes of each array")
    axes.set_ylabel("billion operations a second")
    axes.legend(fontsize=7, loc="center right")
    return figure


def communication(rows: list[Row]) -> Figure:
    """Table 4.1: what the analyst sends and receives."""
    figure = Figure(figsize=(6.4, 2.4))
    axes = figure.add_subplot(1, 1, 1)
    row = one(rows, role="analyst")
    assert row is not None
    names = ("thesis, Table 4.1", "outer products, as they are", "tiles")
    for place, key in enumerate(("thesis_", "", "tiles_")):
        parts = (row[f"{key}issued_gb"], row[f"{key}returned_gb"])
        axes.barh(place - 0.2, parts[0], height=0.35, color="#1f5fa8", label="issued" if not place else None)
        axes.barh(place + 0.2, parts[1], height=0.35, color="#d1720c", label="returned" if not place else None)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("GB at the analyst, for 60,000 images and 128 neurons")
    axes.legend(fontsize=7)
    return figure


PLOTS: Plots = {"communication": of_one("communication", communication), "operations": of_one("operations", operations)}
