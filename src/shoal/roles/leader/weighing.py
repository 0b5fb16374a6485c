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
from shoal.learning.robust import (
    clip_factor,
    distances,
    gram,
    liars_borne,
    nearest_weights,
    squared_distance,
    weighted_sum,
)
from shoal.trust import DEVICES_LEAST, Trust

#: Allocates memory for a number of rows of float32 values.
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


@dataclass(frozen=True, slots=True)
class WeightsGiven:
    """How much each update of a sum counts that aggregators make. Nothing is remembered of it until that sum comes."""

    nodes: tuple[str, ...]
    #: What each update counts for: a factor of its scale.
    voices: tuple[float, ...]
    #: The share of its distance from the centre that each update keeps. Empty if nothing is clipped.
    kept: tuple[float, ...] = ()
    #: The distance of each update from the centre, if updates are clipped by it.
    far: tuple[float, ...] = ()
    down: tuple[WeighedDown, ...] = ()

    def of(self, place: int) -> WeightsGiven:
        """Return the weights of one clipped update."""
        part = slice(place, place + 1)
        return WeightsGiven(self.nodes[part], self.voices[part], self.kept[part], self.far[part])

    @classmethod
    def together(cls, verdicts: Sequence[WeightsGiven]) -> WeightsGiven:
        """Join the weights of updates that were clipped one by one."""
        return cls(
            tuple(node for each in verdicts for node in each.nodes),
            tuple(voice for each in verdicts for voice in each.voices),
            tuple(kept for each in verdicts for kept in each.kept),
            tuple(far for each in verdicts for far in each.far),
        )


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
        """Return the mean of the version, and the devices that counted for little in it."""
        ...

    def clear(self) -> None:
        """Begin the next version."""
        ...


def in_memory(rows: int, size: int) -> np.ndarray:
    """Room in this process: for small models, and where nothing is real."""
    return np.empty((rows, size), dtype=np.float32)


def weighing_of(trust: Trust, size: int, room: Room = in_memory) -> NearestWeighing | ClippedWeighing | None:
    """Return the weighing of a job's updates, or None if only examples count. Sealed updates are not weighed."""
    if trust.sealed is not None:
        return None
    if trust.rule == "nearest":
        return NearestWeighing(size, share=trust.share, room=room)
    return ClippedWeighing(size) if trust.rule == "clip" else None


class UpdateRows:
    """The updates of the coming version, one row per device."""

    def __init__(self, size: int, *, room: Room) -> None:
        self._size, self._room = size, room
        self._updates = np.empty((0, size), dtype=np.float32)
        #: Device -> its examples in this version. Its row is its place here.
        self._examples: dict[str, float] = {}
        self._rows: dict[str, int] = {}
        self.weight = 0.0

    @property
    def devices(self) -> int:
        return len(self._rows)

    @property
    def updates(self) -> np.ndarray:
        return self._updates[: len(self._rows)]

    @property
    def nodes(self) -> list[str]:
        """The devices, in the order of their rows."""
        return list(self._rows)

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

    def clear(self) -> None:
        self._rows.clear()
        self._examples.clear()
        self.weight = 0.0


class NearestWeighing(UpdateRows):
    def __init__(self, size: int, *, share: float, room: Room) -> None:
        super().__init__(size, room=room)
        self._share = share
        #: What aggregators summed up by their weights: the mean of the whole version, and how it was weighed.
        self._summed: tuple[np.ndarray, WeightsGiven] | None = None

    @property
    def devices(self) -> int:
        return super().devices if self._summed is None else len(self._summed[1].nodes)

    def mean(self) -> tuple[np.ndarray, list[WeighedDown]]:
        if self._summed is not None:
            return self._summed[0], list(self._summed[1].down)
        weights, down = self._weights(self.nodes, gram(self.updates))
        return weighted_sum(self.updates, weights), down

    def _weights(self, nodes: Sequence[str], products: np.ndarray) -> tuple[np.ndarray, list[WeighedDown]]:
        """The weights of these devices, 1 together, and which of them count for little."""
        count = len(nodes)
        weights = nearest_weights(products, liars=liars_borne(count, self._share))
        far = distances(products, weights)
        usual = float(np.median(far))
        down = [
            WeighedDown(node, _far_reason(weights[row] * count, far[row], usual, count))
            for node, row in sorted(zip(nodes, range(count), strict=True))
            if weights[row] * count < _WEIGHED_DOWN
        ]
        return weights, down

    def weigh(self, nodes: Sequence[str], examples: Sequence[float], products: np.ndarray) -> WeightsGiven:
        """Return the weights of updates that are in parts with aggregators, from products of complete ones. A sum there
        is by examples, so the weights are relative to these."""
        weights, down = self._weights(nodes, products)
        total = sum(examples)
        voices = tuple(float(weight) * total / each for weight, each in zip(weights, examples, strict=True))
        return WeightsGiven(tuple(nodes), voices, down=tuple(down))

    def take(self, mean: np.ndarray, *, weight: float, verdict: WeightsGiven) -> None:
        """A sum of aggregators by this verdict: it is the whole version, since in a shard all go the same way."""
        assert not self._rows, "updates of one version came whole and in parts"
        self._summed = (mean, verdict)
        self.weight += weight

    def clear(self) -> None:
        self._summed = None
        super().clear()


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
        #: The typical distance when the version began, or None if too few were known: then this version's decide.
        self._radius: float | None = None
        #: The share of the centre that replaces the clipped parts.
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
        distance = math.sqrt(squared_distance(update, self._centre, scale=scale))
        _note(self._distances, node, distance)
        factor = self._factor(distance, self._distances)
        self._partial.add(update, weight=weight, scale=scale * factor)
        self._of_centre += weight * (1.0 - factor)
        self._kept[node] = min(factor, self._kept.get(node, 1.0))

    def _factor(self, distance: float, known: OrderedDict[str, float]) -> float:
        """Return the share of its distance that an update keeps, given the distances known with it."""
        radius = self._radius if self._radius is not None else median_low(known.values())
        return max(clip_factor(distance, radius=radius), _KEPT_LEAST)

    @property
    def centre(self) -> np.ndarray:
        """Where updates of the coming version are cut back to. No array of it changes later."""
        return self._centre

    def weigh(self, nodes: Sequence[str], examples: Sequence[float], products: np.ndarray) -> WeightsGiven:
        """Return the shares that updates in parts with aggregators keep, from their squared distances to the centre,
        as if they came in this order."""
        known, far = OrderedDict(self._distances), tuple(math.sqrt(each) for each in products)
        kept: list[float] = []
        for node, distance in zip(nodes, far, strict=True):
            _note(known, node, distance)
            kept.append(self._factor(distance, known))
        return WeightsGiven(tuple(nodes), (1.0,) * len(far), tuple(kept), far)

    def take(self, mean: np.ndarray, *, weight: float, verdict: WeightsGiven) -> None:
        """A sum of aggregators, which have cut its updates by this verdict and made up for that by the centre."""
        for node, distance, kept in zip(verdict.nodes, verdict.far, verdict.kept, strict=True):
            _note(self._distances, node, distance)
            self._kept[node] = min(kept, self._kept.get(node, 1.0))
        self._partial.add(mean, weight=weight)

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
        is_known = len(self._distances) >= DEVICES_LEAST
        self._radius = median_low(self._distances.values()) if is_known else None


def _note(distances: OrderedDict[str, float], node: str, distance: float) -> None:
    distances[node] = distance
    distances.move_to_end(node)
    if len(distances) > _DISTANCES_MAX:
        distances.popitem(last=False)


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
