"""How long one merge takes between two devices: the transfer of the partial, then the sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Links(Protocol):
    """d(i, j), in seconds. Both devices are occupied from beginning to end."""

    def merge_s(self, sender: str, receiver: str) -> float: ...


def table_s(names: Sequence[str], links: Links) -> np.ndarray:
    """Return d as an array, sender by receiver; 0 from a device to itself."""
    return np.array(
        [[0.0 if one == other else links.merge_s(one, other) for other in names] for one in names], dtype=np.float64
    ).reshape(len(names), len(names))
