"""The same digits for everyone: one folder a client with its own share, and a set that nobody trains on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.data.digits import Pair

CLIENTS = 4
TEST = "test.npz"


def names() -> list[str]:
    return [f"site-{number}" for number in range(1, CLIENTS + 1)]


def write_shares(folder: Path, train: Pair, test: Pair, *, examples: int) -> None:
    """Client i has every fourth example from the i-th on, so many of them: FOLDER/site-1/train.npz and so on."""
    x, y = train
    for first, name in enumerate(names()):
        (folder / name).mkdir(parents=True)
        mine = slice(first, CLIENTS * examples, CLIENTS)
        np.savez(folder / name / "train.npz", x=x[mine], y=y[mine])
    np.savez(folder / TEST, x=test[0], y=test[1])
