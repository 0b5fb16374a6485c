"""Pictures of a paper's rows: they look alike, and the same rows give the same bytes. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from papers.harness.rows import Drawing, Rows

#: By the name of the picture's file.
Plots: TypeAlias = Mapping[str, Drawing[Figure | None]]


def draw_all(plots: Plots, rows: Rows, folder: Path) -> list[Path]:
    """One file for each plot whose experiments were measured."""
    written: list[Path] = []
    with mpl.rc_context({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False}):
        for name, plot in plots.items():
            figure = plot.of(rows)
            if figure is None:
                continue
            figure.tight_layout()
            path = folder / f"{name}.png"
            # Without the moment it was made: the same rows give the same bytes.
            figure.savefig(path, dpi=110, metadata={"Software": None})
            written.append(path)
    return written


def panels(count: int, *, width: float, height: float, beside: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Axes side by side, each so wide, with some room beside them, in inches."""
    figure = Figure(figsize=(width * count + beside, height))
    return figure, [figure.add_subplot(1, count, place + 1) for place in range(count)]
