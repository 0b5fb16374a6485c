"""Workers that train without waiting for each other, in virtual time. Knows no torch and no files.

``arrivals`` decides who comes when. An update is chosen, coded, read back, damped and applied by the parts of ``shoal``
that a worker and a leader have. A worker pulls right after its push, as in the paper.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from benchmarks.momentum_step import momentum_step
from papers.adacomp.arrivals import Crowd, Queue, as_text, from_text
from shoal.compress.codec import Codec
from shoal.compress.feedback import Feedback
from shoal.compress.sparse import Sparse
from shoal.errors import Misuse, ShoalError
from shoal.learning.layout import Layout
from shoal.learning.parameter_staleness import ParameterStaleness, scale_of
from shoal.learning.partial import Partial
from shoal.wire import coded, frames
from shoal.wire.messages import Update

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


#: A run as it was in the middle: everything that decides how it continues, and its tally as JSON.
State: TypeAlias = dict[str, np.ndarray]


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
    saved: State | None = None,
    save: Callable[[State], None] | None = None,
) -> Tally:
    """Train until the accuracy is ``wanted``, or for ``updates_max`` updates; look at the model after each ``every``.

    ``save`` gets the state after each look. A run with ``saved`` continues from there, to the bit.
    """
    leader = _Leader(model, layout, method)
    senders = _Senders(learner, layout, hands, method, crowd)
    queue = Queue(crowd, leader.version, leader.model)
    tally = Tally()
    if saved is not None:
        queue.read(saved)
        leader.read(saved)
        senders.read(saved)
        tally = _tally(json.loads(str(saved["tally"])))
    while tally.updates < updates_max and (push := queue.next_push(leader.version, leader.model)) is not None:
        try:
            sent = senders.update(push.worker, push.version, push.model)
            leader.take(sent, tally)
        except ShoalError as refused:
            tally.trouble = str(refused)
            break
        tally.crashed += not queue.pushed(push.worker, leader.version, leader.model)
        tally.update_bytes += coded.bytes_of(sent.tensors)
        tally.frame_bytes += sum(len(frame) for frame in frames.frames(sent))
        tally.updates += 1
        if tally.updates % every == 0 or tally.updates == updates_max:
            told(_look(tally, learner.accuracy(leader.model)))
            if tally.examined[-1].accuracy >= wanted or tally.trouble:
                break
            if save is not None:
                save(
                    queue.saved()
                    | leader.saved(queue.oldest)
                    | senders.saved()
                    | {"tally": np.array(json.dumps(asdict(tally)))}
                )
    return tally


def _look(tally: Tally, accuracy: float) -> Examined:
    """Note an accuracy, and that training is over if the model is dead."""
    found = Examined(
        updates=tally.updates,
        accuracy=accuracy,
        entries=tally.entries,
        update_bytes=tally.update_bytes,
        frame_bytes=tally.frame_bytes,
        crashed=tally.crashed,
    )
    tally.examined.append(found)
    if _is_dead(tally.examined):
        tally.trouble = "the model answers the same, whatever it learns"
    return found


def _tally(plain: dict[str, Any]) -> Tally:
    return Tally(**{**plain, "examined": [Examined(**found) for found in plain["examined"]]})


def _is_dead(examined: Sequence[Examined]) -> bool:
    """Units that give nothing for any image have no gradient either: with all of them gone, nothing changes."""
    last = [found.accuracy for found in examined[-_DEAD_AFTER:]]
    return len(last) == _DEAD_AFTER and len(set(last)) == 1


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

    def saved(self) -> State:
        kept = {"feedback": np.stack([feedback.kept for feedback in self._kept])} if self._kept else {}
        return {"sender_chance": as_text(self._chances), **kept}

    def read(self, saved: State) -> None:
        from_text(saved["sender_chance"], self._chances)
        for feedback, kept in zip(self._kept, saved.get("feedback", ()), strict=True):
            # Nothing is kept yet, and nothing of this is sent: all of it stays.
            feedback.add(kept)


class _Leader:
    """The leader's side: an update is read, damped, and makes the next version."""

    def __init__(self, model: np.ndarray, layout: Layout, method: Method) -> None:
        self.model, self.version = model, 0
        self._velocity = np.zeros(0, dtype=np.float32)
        self._partial = Partial(layout.size)
        self._codec, self._rule = Codec.parse(method.codec), method.rule
        self._sizes = coded.sizes_of(layout)
        #: The places that the last versions moved: a run that continues counts them again.
        self._moved: deque[np.ndarray | None] = deque(maxlen=_EXACT_VERSIONS)
        # The share of places that one update names is how many entries a place has for each version kept.
        entries = -(-_EXACT_VERSIONS * coded.entries_max(self._codec, self._sizes) // layout.size)
        self._count = partial(
            ParameterStaleness, layout.size, exact_versions=_EXACT_VERSIONS, entries_per_place=entries
        )
        self._touches = self._count()

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
            self._moved.append(places)
        self.version += 1
        tally.entries += self.model.size if sparse is None else sparse.places.size
        tally.staleness += late
        tally.inverse_staleness += 1 / max(1, late)

    def saved(self, oldest: int | None) -> State:
        """Return the model, and which places moved since the oldest version that a worker holds."""
        late = self.version - (self.version if oldest is None else oldest)
        if self._rule == "parameter" and late > len(self._moved):
            raise Misuse(f"a worker holds a version {late} back; only the last {len(self._moved)} can be counted again")
        moved = list(self._moved)[-late:] if late and self._moved else []
        # For each version how many places it moved, or -1 if it moved all of them.
        sizes = [-1 if places is None else places.size for places in moved]
        named = [places for places in moved if places is not None]
        return {
            "model": self.model,
            "velocity": self._velocity,
            "version": np.array(self.version),
            "moved_sizes": np.array(sizes, np.int64),
            "moved": np.concatenate(named).astype(np.uint32) if named else np.zeros(0, np.uint32),
        }

    def read(self, saved: State) -> None:
        self.model, self._velocity, self.version = saved["model"], saved["velocity"], int(saved["version"])
        sizes = saved["moved_sizes"].tolist()
        cuts = np.cumsum([max(0, size) for size in sizes])[:-1]
        lists = np.split(saved["moved"], cuts) if sizes else []
        self._moved.extend(None if size < 0 else places for size, places in zip(sizes, lists, strict=True))
        self._touches = self._count(version=self.version - len(self._moved))
        for places in self._moved:
            self._touches.note(places)


def _scaled(update: Sparse | np.ndarray, scales: np.ndarray) -> Sparse | np.ndarray:
    if isinstance(update, Sparse):
        return Sparse(update.size, update.places, update.values * scales)
    scaled: np.ndarray = update * scales
    return scaled
