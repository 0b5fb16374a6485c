"""Pictures of a paper's rows: they look alike, and the same rows give the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure


def save_all(drawn: Iterable[tuple[str, Figure | None]], folder: Path) -> list[Path]:
    """One file for each figure that there is, by its name. They are drawn as they are asked for, in the common look."""
    written: list[Path] = []
    with mpl.rc_context({"font.size": 9, "axes.grid": True, "grid.alpha": 0.3, "axes.spines.top": False}):
        for name, figure in drawn:
            if figure is None:
                continue
            figure.tight_layout()
            path = folder / f"{name}.png"
            # Without the moment it was made: the same rows give the same bytes.
            figure.savefig(path, dpi=110, metadata={"Software": None})
            written.append(path)
    return written
