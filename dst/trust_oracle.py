"""What a version of a robust plan must be made of, from its updates themselves. Shares no code with the rules.

Written from the papers' definitions, in vectors where the leader works in products of them: neighbours by their
distances, a geometric median by Weiszfeld's steps, updates cut back towards the last mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

import numpy as np

#: A device's part in a version: its updates with their examples, as they count.
Voices = Mapping[str, Sequence[tuple[float, np.ndarray]]]


#: Two updates are equally far if their squared distances differ by less than this share of a usual square; and how far
#: a leader, whose products are of float32 numbers, may be off with that.
SAME = 1e-5
SAME_OFF = (1.0, 0.9, 1.1)


def outvoted(voices: Voices, *, share: float) -> list[np.ndarray]:
    """The mean of a version under nearest-neighbour mixing and a geometric median. Several, where rounding decides
    whether two updates are equally far."""
    rows = np.array([_own_mean(voices[node]) for node in sorted(voices)])
    means = [_outvoted(rows, share=share, same=SAME * off) for off in SAME_OFF]
    return [means[0], *(mean for mean in means[1:] if not np.array_equal(mean, means[0]))]


def nearest_to(found: np.ndarray, means: Sequence[np.ndarray]) -> np.ndarray:
    return min(means, key=lambda mean: float(np.linalg.norm(mean - found)))


def _outvoted(rows: np.ndarray, *, share: float, same: float) -> np.ndarray:
    count = len(rows)
    liars = max(0, min(math.ceil(share * count - 1e-9), (count - 1) // 2))
    usual = float(np.median([row @ row for row in rows]))
    mixed = np.array([_mean_of_nearest(rows, row, count - liars, same=same * usual) for row in rows])
    least = 1e-3 * math.sqrt(float(np.median([row @ row for row in mixed]))) + 1e-100
    middle = mixed.mean(axis=0)
    for _ in range(64):
        shares = [1 / max(float(np.linalg.norm(row - middle)), least) for row in mixed]
        middle = sum(each * row for each, row in zip(shares, mixed, strict=True)) / sum(shares)
    return np.asarray(middle)


def _own_mean(updates: Sequence[tuple[float, np.ndarray]]) -> np.ndarray:
    total = sum(examples for examples, _ in updates)
    return np.asarray(sum(examples * update for examples, update in updates) / total)


def _mean_of_nearest(rows: np.ndarray, row: np.ndarray, count: int, *, same: float) -> np.ndarray:
    squared = np.array([float((other - row) @ (other - row)) for other in rows])
    edge = sorted(squared)[count - 1]
    inside = [other for other, far in zip(rows, squared, strict=True) if far < edge - same]
    # Those that are equally far share the places that are left.
    on_edge = [other for other, far in zip(rows, squared, strict=True) if abs(far - edge) <= same]
    left = count - len(inside)
    return np.asarray((sum(inside, np.zeros(row.size)) + left * np.mean(on_edge, axis=0)) / count)


@dataclass(slots=True)
class Clip:
    """What a leader knows of clipping after a version."""

    centre: np.ndarray
    far: dict[str, float] = field(default_factory=dict)
    radius: float | None = None

    def next(
        self,
        updates: Sequence[tuple[str, float, np.ndarray]],
        cuts: Sequence[tuple[float, np.ndarray] | None],
    ) -> tuple[np.ndarray, Clip]:
        """The mean of a version of these updates in their order (device, examples, update), and what is known then.
        ``cuts``: how much was kept of some, from which centre, where they were cut before they came."""
        far, total = dict(self.far), np.zeros(self.centre.size)
        for (node, examples, update), cut in zip(updates, cuts, strict=True):
            centre = self.centre if cut is None else cut[1]
            way = update - centre
            far[node] = float(np.linalg.norm(way))
            radius = self.radius if self.radius is not None else median_low(far.values())
            usual = min(1.0, radius / far[node]) if far[node] else 1.0
            total += examples * (centre + (usual if cut is None else cut[0]) * way)
        mean = total / sum(examples for _, examples, _ in updates)
        return mean, Clip(mean, far, median_low(far.values()) if len(far) >= 3 else None)
