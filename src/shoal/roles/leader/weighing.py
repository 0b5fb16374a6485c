"""Updates that are weighed against each other before they are a version, where a plan is robust. A part of the leader.

``nearest`` keeps an update of each device until the version is made: the one place where a leader's memory grows with
its workers, up to ``DEVICES_MAX`` of them. A driver says where those lie (``Room``); in a file, on a real leader.
``clip`` adds updates up as they come, each cut back to a usual distance from the last version's mean.

Every device has one voice in a version, however many updates and examples it brings: a fast liar is still one liar.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Protocol

import numpy as np

from shoal.compress.sparse import Sparse, add_to
from shoal.learning.partial import Partial
from shoal.learning.robust import clip_factor, distances, gram, liars_borne, nearest_weights, weighted_sum
from shoal.trust import DEVICES_LEAST, Trust

#: Memory for so many rows of so many float32 values.
Room = Callable[[int, int], np.ndarray]

#: Rows that a tray begins with. It doubles as devices come, and keeps its memory.
_ROWS_FIRST = 16

#: A device is weighed down if it has less than this part of an equal share, or keeps less of its way.
_WEIGHED_DOWN = 0.5

#: A partial takes no update of no weight.
_KEPT_LEAST = 1e-30

#: Devices whose last distance ``clip`` remembers.
_DISTANCES_MAX = 1024


@dataclass(frozen=True, slots=True)
class WeighedDown:
    """A device whose update counted for little in a version, and why."""

    node: str
    reason: str


class Weighing(Protocol):
    @property
    def weight(self) -> float:
        """Examples of all updates of the coming version."""
        ...

    @property
    def devices(self) -> int:
        """Devices that have a voice in the coming version."""
        ...

    def add(self, node: str, update: np.ndarray | Sparse, *, weight: float, scale: float) -> None:
        """Take in a checked update of this device."""
        ...

    def mean(self) -> tuple[np.ndarray, list[WeighedDown]]:
        """What the version is made of, and the devices that counted for little in it."""
        ...

    def clear(self) -> None:
        """Begin the next version."""
        ...


def in_memory(rows: int, size: int) -> np.ndarray:
    """Room in this process: for small models, and where nothing is real."""
    return np.empty((rows, size), dtype=np.float32)


def weighing_of(trust: Trust, size: int, room: Room = in_memory) -> Weighing | None:
    """How updates of a job are weighed; None: by their examples alone."""
    if trust.rule == "nearest":
        return NearestWeighing(size, share=trust.share, room=room)
    return ClippedWeighing(size) if trust.rule == "clip" else None


class NearestWeighing:
    def __init__(self, size: int, *, share: float, room: Room) -> None:
        self._size, self._share, self._room = size, share, room
        self._updates = np.empty((0, size), dtype=np.float32)
        #: Device -> its examples in this version. Its row is its place here.
        self._examples: dict[str, float] = {}
        self._rows: dict[str, int] = {}
        self.weight = 0.0

    @property
    def devices(self) -> int:
        return len(self._rows)

    def add(self, node: str, update: np.ndarray | Sparse, *, weight: float, scale: float) -> None:
        before = self._examples.get(node, 0.0)
        self._examples[node] = before + weight
        self.weight += weight
        part = weight / (before + weight)
        if node not in self._rows:
            self._rows[node] = len(self._rows)
            self._make_room()
            self._updates[self._rows[node]] = 0.0
        row = self._updates[self._rows[node]]
        if before:
            # Where nobody waits for anybody, a device may come twice in a version: then its mean has its voice.
            row *= np.float32(1.0 - part)
        if isinstance(update, Sparse):
            add_to(row, Sparse(update.size, update.places, update.values * np.float32(part * scale)))
        elif part * scale == 1.0:
            row[:] = update
        else:
            row += update * np.float32(part * scale)

    def _make_room(self) -> None:
        rows = len(self._updates)
        if len(self._rows) > rows:
            larger = self._room(max(_ROWS_FIRST, 2 * rows), self._size)
            larger[:rows] = self._updates
            self._updates = larger

    def mean(self) -> tuple[np.ndarray, list[WeighedDown]]:
        updates = self._updates[: len(self._rows)]
        products = gram(updates)
        weights = nearest_weights(products, liars=liars_borne(len(updates), self._share))
        far = distances(products, weights)
        usual = float(np.median(far))
        down = [
            WeighedDown(node, _far_reason(weights[row] * len(updates), far[row], usual, len(updates)))
            for node, row in sorted(self._rows.items())
            if weights[row] * len(updates) < _WEIGHED_DOWN
        ]
        return weighted_sum(updates, weights), down

    def clear(self) -> None:
        self._rows.clear()
        self._examples.clear()
        self.weight = 0.0


def _far_reason(share: float, distance: float, usual: float, devices: int) -> str:
    times = f"{distance / usual:.2g} times" if usual else "infinitely"
    return f"counts {100 * share:.0f} % of an equal share: {times} as far from the others as half of {devices} devices"


class ClippedWeighing:
    def __init__(self, size: int) -> None:
        self._partial = Partial(size)
        #: The mean of the last version. A new leader begins without, as the first did.
        self._centre = np.zeros(size, dtype=np.float32)
        #: Device -> how far its last update was from the centre. Each has one voice in what is usual.
        self._distances: OrderedDict[str, float] = OrderedDict()
        #: What was usual when the version began; None: too few were heard, and those of this version say it.
        self._radius: float | None = None
        #: How much of the centre stands in for the parts that were cut off.
        self._of_centre = 0.0
        #: Device -> the least that it kept of its way in this version.
        self._kept: dict[str, float] = {}

    @property
    def weight(self) -> float:
        return self._partial.weight

    @property
    def devices(self) -> int:
        return len(self._kept)

    def add(self, node: str, update: np.ndarray | Sparse, *, weight: float, scale: float) -> None:
        distance = _distance(update, scale, self._centre)
        self._distances[node] = distance
        self._distances.move_to_end(node)
        if len(self._distances) > _DISTANCES_MAX:
            self._distances.popitem(last=False)
        radius = self._radius if self._radius is not None else self._usual()
        factor = max(clip_factor(distance, radius=radius), _KEPT_LEAST)
        self._partial.add(update, weight=weight, scale=scale * factor)
        self._of_centre += weight * (1.0 - factor)
        self._kept[node] = min(factor, self._kept.get(node, 1.0))

    def _usual(self) -> float:
        return median_low(self._distances.values())

    def mean(self) -> tuple[np.ndarray, list[WeighedDown]]:
        mean = self._partial.mean()
        if self._of_centre:
            mean += self._centre * np.float32(self._of_centre / self._partial.weight)
        down = [
            WeighedDown(node, f"cut to {100 * kept:.0f} % of its way: {1 / kept:.2g} times as far as is usual")
            for node, kept in sorted(self._kept.items())
            if kept < _WEIGHED_DOWN
        ]
        self._centre = mean
        return mean, down

    def clear(self) -> None:
        self._partial.clear()
        self._of_centre = 0.0
        self._kept.clear()
        self._radius = self._usual() if len(self._distances) >= DEVICES_LEAST else None


def _distance(update: np.ndarray | Sparse, scale: float, centre: np.ndarray) -> float:
    """‖s·u - c‖"""
    if not isinstance(update, Sparse):
        apart = update * np.float32(scale)
        apart -= centre
        return math.sqrt(float(np.dot(apart, apart)))
    # Where it says nothing it is zero.
    here = centre[update.places]
    apart = update.values * np.float32(scale) - here
    elsewhere = max(0.0, float(np.dot(centre, centre)) - float(np.dot(here, here)))
    return math.sqrt(float(np.dot(apart, apart)) + elsewhere)


class Reputations:
    """How often each device was weighed down; says so at once, and then ever more seldom."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        #: Devices that were weighed down in the last version, and why.
        self.now: dict[str, str] = {}

    def on_version(self, version: int, down: Sequence[WeighedDown]) -> list[str]:
        """Returns what to record of this version: each device at its 1st, 2nd, 4th, 8th time and so on."""
        self.now = {}
        told: list[str] = []
        for each in down:
            times = self._times[each.node] = self._times[each.node] + 1
            often = f", {times} times so far" if times > 1 else ""
            self.now[each.node] = f"weighed down in version {version}{often}: {each.reason}"
            if times & (times - 1) == 0:
                told.append(f"{each.node} is {self.now[each.node]}")
        return told
