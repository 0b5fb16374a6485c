"""Workers that train without waiting for each other, in virtual time: a heap of arrivals. Knows no torch and no files.

What is decided here is who comes when, and nothing else: an update is chosen, coded, read back, damped and applied by
the parts of ``shoal`` that a worker and a leader have. A worker pulls right after its push, as in the paper. Versions
are arrays that nobody writes to, and 200 workers that hold 200 of them hold no copies.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from benchmarks.momentum_step import momentum_step
from shoal.compress.codec import Codec
from shoal.compress.feedback import Feedback
from shoal.compress.sparse import Sparse
from shoal.errors import Misuse, ShoalError
from shoal.learning.layout import Layout
from shoal.learning.parameter_staleness import ParameterStaleness, scale_of
from shoal.learning.partial import Partial
from shoal.wire import coded, frames
from shoal.wire.messages import Update

Arrivals = Literal["cycles", "memoryless"]
Rule = Literal["none", "update", "parameter"]

#: Updates at most this old are damped by exact counts, whatever the codec: here there is memory for it.
_EXACT_VERSIONS = 1024


#: To the image the same accuracy, as often as this: a model that learns does not do that on thousands of images.
_DEAD_AFTER = 5


class Learner(Protocol):
    def gradient(self, model: np.ndarray, examples: np.ndarray) -> np.ndarray: ...
    def accuracy(self, model: np.ndarray) -> float: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """What a worker sends, and what a late update is worth: 1/τ, 1/σ of each parameter, or 1."""

    codec: str
    rule: Rule
    rate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Crowd:
    """Who works, and when an update arrives."""

    workers: int
    batch: int
    #: ``cycles``: from pull to push it takes 0.2 + U(0, 2); ``memoryless``: an exponential time. Means are 1.2 and 1.
    arrivals: Arrivals = "cycles"
    #: Shares of the workers, and how much faster than the slowest they are.
    classes: tuple[tuple[float, float], ...] = ((1.0, 1.0),)
    crash_chance: float = 0.0
    seed: int = 0


@dataclass(kw_only=True, slots=True)
class Tally:
    """What came of a run so far."""

    updates: int = 0
    entries: int = 0
    #: The coded update, and with everything that is sent around it.
    update_bytes: int = 0
    frame_bytes: int = 0
    crashed: int = 0
    #: Sums over updates: τ, 1/max(1, τ), and the mean σ of the places of an update.
    staleness: float = 0.0
    inverse_staleness: float = 0.0
    place_staleness: float = 0.0
    examined: list[Examined] = field(default_factory=list)
    #: Why it ended early: training that diverges is refused.
    trouble: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Examined:
    """A model on the test images, and what had been sent until then."""

    updates: int
    accuracy: float
    entries: int
    update_bytes: int
    frame_bytes: int
    crashed: int


def played(
    learner: Learner,
    model: np.ndarray,
    layout: Layout,
    hands: Sequence[np.ndarray],
    *,
    method: Method,
    crowd: Crowd,
    every: int,
    updates_max: int,
    wanted: float = 2.0,
    told: Callable[[Examined], None] = lambda examined: None,
) -> Tally:
    """Train until the accuracy is ``wanted``, or for so many updates; examine the model every so many."""
    leader = _Leader(model, layout, method)
    senders = _Senders(learner, layout, hands, method, crowd)
    tally = Tally()
    for worker, version, held in _pushes(crowd, leader, tally):
        try:
            sent = senders.update(worker, version, held)
            leader.take(sent, tally)
        except ShoalError as refused:
            tally.trouble = str(refused)
            break
        tally.update_bytes += coded.bytes_of(sent.tensors)
        tally.frame_bytes += sum(len(frame) for frame in frames.frames(sent))
        tally.updates += 1
        if tally.updates % every == 0 or tally.updates == updates_max:
            found = Examined(
                updates=tally.updates,
                accuracy=learner.accuracy(leader.model),
                entries=tally.entries,
                update_bytes=tally.update_bytes,
                frame_bytes=tally.frame_bytes,
                crashed=tally.crashed,
            )
            tally.examined.append(found)
            told(found)
            if _is_dead(tally.examined):
                tally.trouble = "the model answers the same, whatever it learns"
            if found.accuracy >= wanted or tally.trouble:
                break
        if tally.updates == updates_max:
            break
    return tally


def _is_dead(examined: Sequence[Examined]) -> bool:
    """Units that give nothing for any image have no gradient either: with all of them gone, nothing changes."""
    last = [found.accuracy for found in examined[-_DEAD_AFTER:]]
    return len(last) == _DEAD_AFTER and len(set(last)) == 1


def _pushes(crowd: Crowd, leader: _Leader, tally: Tally) -> Iterator[tuple[int, int, np.ndarray]]:
    """Who pushes next, and the version it pulled: each pulls the newest once its push was taken."""
    chance = np.random.default_rng([crowd.seed, 2])
    crashes = np.random.default_rng([crowd.seed, 3])
    speeds = speeds_of(crowd)
    pulled = [(leader.version, leader.model)] * crowd.workers
    heap = [(_cycle(crowd.arrivals, chance) / speed, worker) for worker, speed in enumerate(speeds)]
    heapq.heapify(heap)
    while heap:
        at, worker = heapq.heappop(heap)
        yield worker, *pulled[worker]
        if crashes.random() < crowd.crash_chance:
            tally.crashed += 1
            pulled[worker] = (0, pulled[worker][1][:0])
            continue
        pulled[worker] = (leader.version, leader.model)
        heapq.heappush(heap, (at + _cycle(crowd.arrivals, chance) / speeds[worker], worker))


def _cycle(arrivals: Arrivals, chance: np.random.Generator) -> float:
    return 0.2 + 2.0 * chance.random() if arrivals == "cycles" else float(chance.exponential())


def speeds_of(crowd: Crowd) -> list[float]:
    """One for each worker: hands are dealt by chance, so that classes may come in order."""
    if abs(sum(share for share, _ in crowd.classes) - 1) > 1e-9:
        raise Misuse(f"the shares of classes make {sum(share for share, _ in crowd.classes):g}, not 1")
    speeds: list[float] = []
    for share, speed in crowd.classes[:-1]:
        speeds += [speed] * round(share * crowd.workers)
    return speeds + [crowd.classes[-1][1]] * (crowd.workers - len(speeds))


class _Senders:
    """The workers' side: a gradient of some own examples, coded."""

    def __init__(
        self, learner: Learner, layout: Layout, hands: Sequence[np.ndarray], method: Method, crowd: Crowd
    ) -> None:
        if len(hands) != crowd.workers:
            raise Misuse(f"examples for {len(hands)} workers, there are {crowd.workers}")
        self._learner, self._hands, self._batch = learner, hands, crowd.batch
        self._codec, self._rate = Codec.parse(method.codec), np.float32(-method.rate)
        self._sizes = coded.sizes_of(layout)
        self._chances = [np.random.default_rng([crowd.seed, 4, worker]) for worker in range(crowd.workers)]
        self._kept = [Feedback(layout.size) for _ in range(crowd.workers)] if self._codec.feedback else []

    def update(self, worker: int, version: int, model: np.ndarray) -> Update:
        examples = self._chances[worker].choice(self._hands[worker], self._batch, replace=False)
        total = self._learner.gradient(model, examples) * self._rate
        if self._kept:
            total = self._kept[worker].add(total)
        tensors = coded.encode(self._codec, total, self._sizes)
        if self._kept:
            self._kept[worker].sent(coded.decode(self._codec, tensors, self._sizes))
        return Update(job="adacomp", term=1, lease=version, version=version, examples=self._batch, tensors=tensors)


class _Leader:
    """The leader's side: an update is read, damped, and makes the next version."""

    def __init__(self, model: np.ndarray, layout: Layout, method: Method) -> None:
        self.model, self.version = model, 0
        self._velocity = np.zeros(0, dtype=np.float32)
        self._partial = Partial(layout.size)
        self._codec, self._rule = Codec.parse(method.codec), method.rule
        self._sizes = coded.sizes_of(layout)
        # The share of places that one update names is how many entries a place has for each version kept.
        entries = -(-_EXACT_VERSIONS * coded.entries_max(self._codec, self._sizes) // layout.size)
        self._touches = ParameterStaleness(layout.size, exact_versions=_EXACT_VERSIONS, entries_per_place=entries)

    def take(self, message: Update, tally: Tally) -> None:
        late = self.version - message.version
        update = coded.decode(self._codec, message.tensors, self._sizes)
        sparse = update if isinstance(update, Sparse) else None
        places = sparse.places if sparse else None
        scale = float(scale_of(np.array(late))) if self._rule == "update" else 1.0
        if self._rule == "parameter":
            touched = self._touches.since(message.version, places)
            tally.place_staleness += float(touched.mean()) if touched.size else 0.0
            update = _scaled(update, scale_of(touched))
        self._partial.clear()
        self._partial.add(
            update.dense() if isinstance(update, Sparse) else update, weight=message.examples, scale=scale
        )
        self.model, self._velocity = momentum_step(
            self.model, self._velocity, self._partial.mean(), momentum=0.0, parameters_size=self.model.size
        )
        if self._rule == "parameter":
            self._touches.note(places)
        self.version += 1
        tally.entries += self.model.size if sparse is None else sparse.places.size
        tally.staleness += late
        tally.inverse_staleness += 1 / max(1, late)


def _scaled(update: Sparse | np.ndarray, scales: np.ndarray) -> Sparse | np.ndarray:
    if isinstance(update, Sparse):
        return Sparse(update.size, update.places, update.values * scales)
    scaled: np.ndarray = update * scales
    return scaled
