"""Who comes when: workers that pull a model, train and push, in virtual time. Knows no model's values and no torch."""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from shoal.errors import Misuse

Arrivals = Literal["cycles", "memoryless"]
Start = Literal["in turn", "together"]

#: ``in turn``: the time until the last worker has begun. Cycles take 0.2 to 2.2.
STARTING = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Crowd:
    """Who works, and when an update arrives."""

    workers: int
    batch: int
    #: ``cycles``: from pull to push it takes 0.2 + U(0, 2); ``memoryless``: an exponential time. Means are 1.2 and 1.
    arrivals: Arrivals = "cycles"
    #: ``in turn``: one worker begins after the other and pulls the newest model then. ``together``: all pull version 0.
    start: Start = "in turn"
    #: Shares of the workers, and how much faster than the slowest they are.
    classes: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    crash_chance: float = 0.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Push:
    """A worker that pushes, and the version that it pulled."""

    worker: int
    version: int
    model: np.ndarray


class Queue:
    """The events to come, and the version that each worker holds: shared arrays, so that 200 workers hold no copies."""

    def __init__(self, crowd: Crowd, version: int, model: np.ndarray) -> None:
        self._crowd, self._speeds = crowd, speeds_of(crowd)
        self._chance = np.random.default_rng([crowd.seed, 2])
        self._crashes = np.random.default_rng([crowd.seed, 3])
        #: A worker without a version has not begun: its event is its first pull.
        self._held: dict[int, tuple[int, np.ndarray]] = {}
        self._events: list[tuple[float, int]] = []
        self._now = 0.0
        if crowd.start == "together":
            for worker in range(crowd.workers):
                self._pull(worker, version, model)
        else:
            self._events = [(STARTING * worker / crowd.workers, worker) for worker in range(crowd.workers)]

    @property
    def oldest(self) -> int | None:
        """The oldest version that a worker holds, or None if no worker holds one."""
        return min((version for version, _ in self._held.values()), default=None)

    def next_push(self, version: int, model: np.ndarray) -> Push | None:
        """Return who pushes next, or None if nobody is left. Workers that begin before that pull this version."""
        while self._events:
            self._now, worker = heapq.heappop(self._events)
            if worker in self._held:
                of, held = self._held[worker]
                return Push(worker=worker, version=of, model=held)
            self._pull(worker, version, model)
        return None

    def pushed(self, worker: int, version: int, model: np.ndarray) -> bool:
        """Let a worker whose push was taken pull this version. Return False if it crashes instead."""
        if self._crashes.random() < self._crowd.crash_chance:
            del self._held[worker]
            return False
        self._pull(worker, version, model)
        return True

    def _pull(self, worker: int, version: int, model: np.ndarray) -> None:
        self._held[worker] = (version, model)
        takes = _cycle(self._crowd.arrivals, self._chance) / self._speeds[worker]
        heapq.heappush(self._events, (self._now + takes, worker))

    # Saved and read again -------------------------------------------------------------------------

    def saved(self) -> dict[str, np.ndarray]:
        """Return everything that decides what comes next."""
        versions = dict(sorted(self._held.values(), key=lambda held: held[0]))
        return {
            "events": np.array(self._events, dtype=np.float64).reshape(-1, 2),
            "held": np.array([(worker, of) for worker, (of, _) in self._held.items()], np.int64).reshape(-1, 2),
            "versions": np.array(list(versions), np.int64),
            "models": np.stack(list(versions.values())) if versions else np.zeros((0, 0), np.float32),
            "now": np.array(self._now),
            "queue_chance": as_text([self._chance, self._crashes]),
        }

    def read(self, saved: dict[str, np.ndarray]) -> None:
        """Continue from what ``saved`` returned."""
        models = dict(zip(saved["versions"].tolist(), saved["models"], strict=True))
        self._held = {worker: (of, models[of]) for worker, of in saved["held"].tolist()}
        # Sorted, a list is a heap. Times are unique, so that workers come in the same order.
        self._events = sorted((at, int(worker)) for at, worker in saved["events"].tolist())
        self._now = float(saved["now"])
        from_text(saved["queue_chance"], [self._chance, self._crashes])


def as_text(chances: Sequence[np.random.Generator]) -> np.ndarray:
    """Return the states of generators as an array of text."""
    return np.array([json.dumps(chance.bit_generator.state) for chance in chances])


def from_text(saved: np.ndarray, chances: Sequence[np.random.Generator]) -> None:
    """Give generators the states that ``as_text`` returned."""
    for text, chance in zip(saved.tolist(), chances, strict=True):
        state: dict[str, Any] = json.loads(text)
        chance.bit_generator.state = state


def _cycle(arrivals: Arrivals, chance: np.random.Generator) -> float:
    return 0.2 + 2.0 * chance.random() if arrivals == "cycles" else float(chance.exponential())


def speeds_of(crowd: Crowd) -> list[float]:
    """Return a speed for each worker. Examples are dealt at random, so that classes may come in order."""
    if abs(sum(share for share, _ in crowd.classes) - 1) > 1e-9:
        raise Misuse(f"the shares of classes make {sum(share for share, _ in crowd.classes):g}, not 1")
    speeds: list[float] = []
    for share, speed in crowd.classes[:-1]:
        speeds += [speed] * round(share * crowd.workers)
    return speeds + [crowd.classes[-1][1]] * (crowd.workers - len(speeds))
