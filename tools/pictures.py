"""The pictures of the documents: which there are, and the text of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pictures_failures
import pictures_layers
import pictures_round
import pictures_screen
import pictures_topologies
import pictures_trust

FOLDER = "docs/images"
DRAWN: dict[str, Callable[[], str]] = {
    "round.svg": pictures_round.round_,
    "topologies.svg": pictures_topologies.side_by_side,
    "seconds-per-batch.svg": pictures_topologies.seconds_per_batch,
    "failures.svg": pictures_failures.drawn,
    "screen.svg": pictures_screen.drawn,
    "who-sees-what.svg": pictures_trust.drawn,
    "sealed-sum.svg": pictures_round.sealed,
    "layers.svg": pictures_layers.drawn,
}


def write(root: Path) -> list[Path]:
    """Write every picture below ``root``. Return their files."""
    files = []
    for name, drawn in DRAWN.items():
        file = root / FOLDER / name
        file.write_text(drawn(), encoding="utf-8")
        files.append(file)
    return files
