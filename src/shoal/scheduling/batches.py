"""Which examples are in batch i of epoch e. Numpy only: a pure function of seed, epoch and counts.

Every device must get the same answer without communication, whatever its numpy version, platform or byte order. So
this does not use numpy's generators, whose streams may change between versions. It uses splitmix64 (Steele, Lea, Flood
2014): three lines of integer arithmetic define its 64 bits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from shoal.errors import Misuse

Indices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

#: Shards that are shuffled together if the plan does not limit a device's disk: 64 MB of them.
WINDOW_SHARDS = 8

GAMMA = 0x9E3779B97F4A7C15
MASK = 0xFFFFFFFFFFFFFFFF


def splitmix64(state: int) -> int:
    """Return the output of splitmix64 for one state; a bijection on 64 bits."""
    mixed = (state + GAMMA) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    return mixed ^ (mixed >> 31)


def mix(*numbers: int) -> int:
    """Fold numbers into one 64-bit seed; order matters."""
    folded = 0
    for number in numbers:
        folded = splitmix64(folded ^ (number & MASK))
    return folded


def outputs(count: int, *, seed: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the first ``count`` outputs of the splitmix64 stream that begins at ``seed``. They are distinct."""
    states = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA) + np.uint64(seed)
    mixed = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def epoch_order(count: int, *, seed: int, epoch: int) -> Indices:
    """Return the order in which an epoch visits ``count`` examples.

    The key of example i is the i-th output of a splitmix64 stream seeded with mix(seed, epoch); examples are
    visited by ascending key. The outputs of one stream are distinct, so no tie ever needs breaking.
    """
    if count < 0:
        raise Misuse(f"the number of examples is {count}; it must be 0 or more")
    keys = outputs(count, seed=mix(seed, epoch))
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


def batch_count(examples: int, batch_size: int) -> int:
    """Return the batches in an epoch. The last one may be short; it is kept, so that an epoch has every example
    once."""
    if examples < 0 or batch_size < 1:
        raise Misuse(f"{examples} examples cannot be divided into batches of {batch_size}; both must be positive")
    return -(-examples // batch_size)


def examples_in(batches: Iterable[int], *, examples: int, batch_size: int) -> int:
    """Return the number of examples in these batches."""
    return sum(min(batch_size, examples - batch * batch_size) for batch in batches)


def batch_indices(order: Indices, batch: int, batch_size: int) -> Indices:
    """Return the examples of one batch of an epoch, in the order they are stacked."""
    batches = batch_count(len(order), batch_size)
    if not 0 <= batch < batches:
        raise Misuse(f"batch {batch} does not exist: the epoch has {batches} batches of {batch_size}")
    return order[batch * batch_size : (batch + 1) * batch_size]


# Sets larger than a device ------------------------------------------------------------------------------


def window_shards(*, cache_bytes: int, shard_bytes: int) -> int:
    """Return how many shards are shuffled together on a device that keeps ``cache_bytes`` of shards (0 means all).

    Two windows fit: a batch may span two, and the device fetches the next while it trains one.
    """
    if not cache_bytes:
        return WINDOW_SHARDS
    return max(1, min(WINDOW_SHARDS, cache_bytes // (2 * max(1, shard_bytes))))


class WindowShuffle:
    """An epoch in windows: shards in a shuffled order, with the rows of every ``window`` shards shuffled together.

    Every example is visited once, and a batch is in few shards. A pure function of seed, epoch and the shards' sizes.
    The order of each window is computed separately, which takes the memory of one window and not of the entire set.
    """

    def __init__(self, rows: Sequence[int], *, seed: int, window: int) -> None:
        if window < 1 or any(count < 0 for count in rows):
            raise Misuse(
                f"the window is {window} shards; it must be at least one, and each shard must have 0 rows or more"
            )
        self._rows = np.array(rows, np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._rows)]).astype(np.int64)
        self._seed = seed
        self._window = window
        self._epoch: tuple[int, Indices, Indices] | None = None
        self._shuffled: tuple[int, int, Indices] | None = None

    def indices(self, epoch: int, start: int, stop: int) -> Indices:
        """Return the examples at positions ``start`` to ``stop`` (exclusive) of an epoch."""
        order, ends = self._windows(epoch)
        parts: list[Indices] = []
        for number in self._touched(ends, start, stop):
            begin = int(ends[number - 1]) if number else 0
            rows = self._rows_of(epoch, number, order)
            parts.append(rows[max(0, start - begin) : stop - begin])
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def batch(self, epoch: int, batch: int, batch_size: int) -> Indices:
        """Return the examples of one batch of an epoch, in the order they are stacked."""
        count = int(self._starts[-1])
        batches = batch_count(count, batch_size)
        if not 0 <= batch < batches:
            raise Misuse(f"batch {batch} does not exist: the epoch has {batches} batches of {batch_size}")
        return self.indices(epoch, batch * batch_size, min(count, (batch + 1) * batch_size))

    def shards(self, epoch: int, batches: Iterable[int], batch_size: int) -> tuple[int, ...]:
        """Return the shards that contain these batches, in the order in which they are first needed."""
        found: dict[int, None] = {}
        for batch in batches:
            homes = np.searchsorted(self._starts, self.batch(epoch, batch, batch_size), side="right") - 1
            found |= dict.fromkeys(homes.tolist())
        return tuple(found)

    def ahead(self, epoch: int, batch: int, batch_size: int) -> Iterator[int]:
        """Yield the shards in the order in which they are visited after a batch, to the end of the next epoch."""
        order, ends = self._windows(epoch)
        window = int(np.searchsorted(ends, min((batch + 1) * batch_size, int(self._starts[-1]) - 1), side="right"))
        following, _ = self._windows(epoch + 1)
        return iter(itertools.chain(order[window * self._window :].tolist(), following.tolist()))

    def _windows(self, epoch: int) -> tuple[Indices, Indices]:
        """Return the shards in the order of an epoch, and where each window of them ends."""
        if self._epoch is None or self._epoch[0] != epoch:
            order = epoch_order(len(self._rows), seed=mix(self._seed, 0), epoch=epoch)
            # Where the last shard of each window ends; the last window may have fewer shards.
            last = np.minimum(np.arange(self._window, len(order) + self._window, self._window), len(order)) - 1
            ends = np.cumsum(self._rows[order])[last]
            self._epoch = (epoch, order, ends)
        return self._epoch[1], self._epoch[2]

    def _touched(self, ends: Indices, start: int, stop: int) -> range:
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left"))
        return range(first, min(last + 1, len(ends)))

    def _rows_of(self, epoch: int, number: int, order: Indices) -> Indices:
        """Return the examples of one window in the order in which they are visited."""
        if self._shuffled is None or self._shuffled[:2] != (epoch, number):
            shards = order[number * self._window : (number + 1) * self._window]
            rows = np.concatenate([np.arange(self._starts[shard], self._starts[shard + 1]) for shard in shards])
            shuffled = rows[epoch_order(len(rows), seed=mix(self._seed, 1 + number), epoch=epoch)]
            self._shuffled = (epoch, number, shuffled)
        return self._shuffled[2]
