"""Bytes up to a target with ``led``: words at places that all devices agree on, against all of an update. A part of
``benchmarks.trust``.

Eight devices, two batches of 32 a lease, momentum 0.6 at the leader, the network and 3,000 test images of the design's
prototype. Places, rounding, bound and what devices hold back are Shoal's own parts; masks are left out, since they
cancel to the bit (``exact``), and what goes with them is counted by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shoal.cli.render.sealed import extra_bytes
from shoal.compress.codec import Codec
from shoal.compress.feedback import Feedback
from shoal.compress.led import LedPlaces
from shoal.compress.sparse import Sparse
from shoal.learning.outer import OuterState, outer_step
from shoal.plan import Plan
from shoal.sealing.fixed import BOUND_FIRST, FixedPoint, bound_after, word_type
from shoal.sealing.graph import shape_of

DEVICES, STEPS, BATCH = 8, 2, 32
#: The accuracy that is waited for, how often it is looked at, and after how many versions it is given up.
TARGET, EVERY, VERSIONS_MAX = 0.88, 10, 600


@dataclass(frozen=True, slots=True)
class Task:
    first: Callable[[np.random.Generator], np.ndarray]
    #: A model, and the chance that chooses examples -> the update of each device.
    updates: Callable[[np.ndarray, np.random.Generator], np.ndarray]
    accuracy: Callable[[np.ndarray], float]


class LedSum:
    """The mean of sealed updates at places that all devices agree on, and what each device holds back."""

    def __init__(self, codec: Codec, size: int, *, seed: int) -> None:
        self._places = LedPlaces(size, share_ppm=codec.share_ppm, seed=seed)
        self._kept = [Feedback(size) for _ in range(DEVICES)]
        self._bits, self._bound, self._seed = codec.word_bits, BOUND_FIRST[codec.word_bits], seed
        self._versions = 0

    @property
    def bytes_each(self) -> int:
        return self._places.count * self._bits // 8

    def mean(self, updates: np.ndarray) -> np.ndarray:
        places, fixed = self._places.next(), FixedPoint(self._bound, DEVICES, self._bits)
        total = np.zeros(places.size, word_type(self._bits))
        self._versions += 1
        for device, (kept, update) in enumerate(zip(self._kept, updates, strict=True)):
            chance = hashlib.sha256(f"{self._seed} {self._versions} {device}".encode()).digest()
            words = fixed.encode(kept.add(update)[places], factor=1.0, chance=chance)
            kept.sent(Sparse(update.size, places, kept.kept[places].copy()))
            total += words
        mean = fixed.decode(total, times=1.0 / DEVICES)
        self._bound = bound_after(mean, bits=self._bits, before=self._bound)
        self._places.opened(mean)
        return Sparse(updates.shape[1], places, mean).dense()


def versions_to_target(name: str, task: Task, *, seed: int) -> tuple[int, int]:
    """How many versions the target takes, and the bytes of an update; all of it under ``dense``."""
    rng, rule, codec = np.random.default_rng(seed), Plan(momentum=0.6).outer_rule, Codec.parse(name)
    model = task.first(rng)
    state = OuterState.zeros(rule, model.size)
    led = LedSum(codec, model.size, seed=seed) if codec.form == "led" else None
    for version in range(1, VERSIONS_MAX + 1):
        updates = task.updates(model, rng)
        mean = updates.mean(0) if led is None else led.mean(updates)
        change, state = outer_step(rule, state, mean)
        model = model + change
        if version % EVERY == 0 and task.accuracy(model) >= TARGET:
            break
    return version, model.nbytes if led is None else led.bytes_each


def summary(found: dict[tuple[str, int], tuple[int, int]]) -> dict[str, object]:
    """Bytes of all seeds together, of those of ``dense``; by (codec, seed)."""
    seals = extra_bytes(shape_of(DEVICES, 1, 0.3))

    def total(name: str, *, beside: int = 0) -> int:
        return sum(versions * (size + beside) for (of, _), (versions, size) in found.items() if of == name)

    def versions(name: str) -> list[int]:
        return [versions for (of, _), (versions, _) in found.items() if of == name]

    result: dict[str, object] = {"dense_versions": versions("dense")}
    for name, key in (("led5%+ef", "led5"), ("led10%+ef", "led10")):
        result[f"{key}_versions"] = versions(name)
        result[f"{key}_bytes"] = total(name) / total("dense")
        # Beside the words of so small a model what opens the sum weighs as much as they do.
        result[f"{key}_bytes_with_seals"] = total(name, beside=seals) / total("dense", beside=seals)
    return result
