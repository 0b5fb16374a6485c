"""The typical size of an update, and the largest accepted size.

An update's size is its Euclidean norm divided by the root of its local steps: the norm of a walk of s steps grows
between √s and s, so that leases of different sizes can be compared. The bound is a multiple of the median of recently
accepted sizes. It is never below a share of the model's own norm: an almost converged model has tiny updates, and one
hard batch among them may be a hundred times as large and still harmless. Decision 21 has the measurements.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median, median_low
from typing import Any

#: An update may be this many times as large as is usual.
MULTIPLE = 100.0

#: No update is refused that moves the model by less than this share of its reach.
FLOOR_SHARE = 0.1

#: Before anything is usual, an update may move the model as far as its reach: that is no worse than another start.
FIRST_SHARE = 1.0

#: The reach of a model is its norm, and at least this: one whose values are all zero has to begin somewhere.
REACH_LEAST = 10.0

#: Accepted updates that are remembered, and how many of them make a median to go by.
WINDOW = 64
ENOUGH = 8

#: Devices whose first updates are compared until then. Where fewer are there, a large update is put off so often: then
#: those that are there decide what is usual.
FIRST_DEVICES = 3
PUT_OFF_MAX = 3


@dataclass(frozen=True, slots=True)
class Unusual:
    """An update is larger than it may be, for this reason."""

    reason: str
    #: Nobody knows yet what is usual: its sender may be honest, and others have to be heard first.
    is_early: bool = False


class Usual:
    """What is usual in one job. A leader's state; small enough for every checkpoint."""

    def __init__(self) -> None:
        #: Sizes of the updates that were accepted last.
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._median: float | None = None
        #: Node -> the size of its first update, while too few were accepted. Accepted or not: each device has a vote.
        self._first: dict[str, float] = {}
        #: Large updates that waited for more devices to be heard.
        self._put_off = 0
        #: The most steps that an accepted update was made of.
        self._steps_most = 1

    def judge(self, node: str, norm: float, *, steps: int, model_norm: float, devices: int) -> Unusual | None:
        """Return why an update is too large, or None if it is not. ``devices`` is how many may train."""
        reach = max(model_norm, REACH_LEAST)
        if len(self._recent) < ENOUGH:
            self._first.setdefault(node, _size(norm, steps))
            return self._judge_early(norm, steps=steps, reach=reach, devices=devices)
        if norm <= FLOOR_SHARE * reach:
            # Most updates end here. The typical size is computed only if it decides.
            return None
        usual = self._usual()
        if norm <= MULTIPLE * usual * math.sqrt(steps):
            return None
        times = _size(norm, steps) / usual if usual else math.inf
        return Unusual(f"an update of norm {norm:.3g}, {times:.3g} times what is usual; at most {MULTIPLE:g} is merged")

    def _judge_early(self, norm: float, *, steps: int, reach: float, devices: int) -> Unusual | None:
        heard = len(self._first)
        if heard < FIRST_DEVICES and not (heard >= devices and self._put_off >= PUT_OFF_MAX):
            if norm <= FIRST_SHARE * reach:
                return None
            self._put_off += 1
            told = f"an update of norm {norm:.3g} before it is known what is usual; the model's is {reach:.3g}"
            return Unusual(f"{told}: other devices are to be heard first", is_early=True)
        # The lower one of two: to wait with the larger costs a lease, to merge it may cost the model.
        usual = median_low([*self._first.values(), *self._recent])
        if norm <= max(MULTIPLE * usual * math.sqrt(steps), FLOOR_SHARE * reach):
            return None
        told = f"an update of norm {norm:.3g}; the first ones of {len(self._first)} devices are about {usual:.3g}"
        return Unusual(f"{told}, at most {MULTIPLE:g} times that is merged")

    def accepted(self, norm: float, *, steps: int) -> None:
        """An update was merged."""
        self._recent.append(_size(norm, steps))
        self._steps_most = max(self._steps_most, steps)
        self._median = None
        if len(self._recent) >= ENOUGH:
            self._first.clear()

    def limit(self, *, model_norm: float) -> float:
        """The largest norm that any lease may bring, for aggregators, which see updates in the leader's place; infinite
        while nothing is known."""
        if not self._recent:
            return math.inf
        reach = max(model_norm, REACH_LEAST)
        share = FLOOR_SHARE if len(self._recent) >= ENOUGH else FIRST_SHARE
        return max(MULTIPLE * self._usual() * math.sqrt(self._steps_most), share * reach)

    def _usual(self) -> float:
        if self._median is None:
            self._median = median(self._recent)
        return self._median

    # What a new leader begins with ------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        return {"recent": list(self._recent), "steps": self._steps_most}

    @classmethod
    def restored(cls, snapshot: object) -> Usual:
        """Restore it from a snapshot, or start empty if the snapshot is not usable."""
        usual = cls()
        recent, steps = (snapshot.get("recent"), snapshot.get("steps")) if isinstance(snapshot, dict) else ([], 1)
        sizes = [float(size) for size in recent if type(size) in (int, float)] if isinstance(recent, list) else []
        usual._recent.extend(size for size in sizes if 0 <= size < math.inf)
        usual._steps_most = steps if type(steps) is int and steps > 0 else 1
        return usual


def _size(norm: float, steps: int) -> float:
    return norm / math.sqrt(max(1, steps))
