"""Which examples are in batch i of epoch e. Numpy only: a pure function of seed, epoch and counts.

Every device must agree on this without talking, whatever its numpy, its platform or its byte order, so it does not
use numpy's generators (their streams may change between versions) but splitmix64 (Steele, Lea, Flood 2014), whose
sixty-four bits are defined by three lines of integer arithmetic.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from shoal.errors import Misuse

Indices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

#: Shards that are shuffled together where a plan says nothing of a device's disk: 64 MB of them.
WINDOW_SHARDS = 8

GAMMA = 0x9E3779B97F4A7C15
MASK = 0xFFFFFFFFFFFFFFFF


def splitmix64(state: int) -> int:
    """The output of splitmix64 for one state; a bijection on 64 bits."""
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


def epoch_order(count: int, *, seed: int, epoch: int) -> Indices:
    """The order in which an epoch visits ``count`` examples.

    Example i has as its key the i-th output of a splitmix64 stream seeded with mix(seed, epoch); examples are
    visited by ascending key. The outputs of one stream are distinct, so no tie ever needs breaking.
    """
    if count < 0:
        raise Misuse(f"a set has no negative number of examples: {count}")
    states = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA) + np.uint64(mix(seed, epoch))
    keys = (states ^ (states >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    keys ^= keys >> np.uint64(31)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


def batch_count(examples: int, batch_size: int) -> int:
    """Batches in an epoch. The last one may be short; it is kept, so that an epoch is every example once."""
    if examples < 0 or batch_size < 1:
        raise Misuse(f"{examples} examples do not make batches of {batch_size}")
    return -(-examples // batch_size)


def examples_in(batches: Iterable[int], *, examples: int, batch_size: int) -> int:
    """How many examples these batches hold together."""
    return sum(min(batch_size, examples - batch * batch_size) for batch in batches)


def batch_indices(order: Indices, batch: int, batch_size: int) -> Indices:
    """The examples of one batch of an epoch, in the order they are stacked."""
    batches = batch_count(len(order), batch_size)
    if not 0 <= batch < batches:
        raise Misuse(f"there is no batch {batch}: the epoch has {batches} of {batch_size}")
    return order[batch * batch_size : (batch + 1) * batch_size]


# Sets larger than a device ------------------------------------------------------------------------------


def window_shards(*, cache_bytes: int, shard_bytes: int) -> int:
    """Shards that are shuffled together, on a device that keeps so many bytes (0: all) of shards up to this size.

    Two windows fit: a batch may lie across two, and the next is fetched while one is trained.
    """
    if not cache_bytes:
        return WINDOW_SHARDS
    return max(1, min(WINDOW_SHARDS, cache_bytes // (2 * max(1, shard_bytes))))


def window_order(rows: Sequence[int], *, seed: int, epoch: int, window: int) -> Indices:
    """The order in which an epoch visits the examples of shards that hold so many rows each, as ``WindowShuffle``."""
    return WindowShuffle(rows, seed=seed, window=window).indices(epoch, 0, sum(rows))


class WindowShuffle:
    """An epoch in windows: shards in a shuffled order, and rows shuffled among every ``window`` shards of it.

    Every example is visited once, and a batch lies in few shards. A pure function of seed, epoch and the shards' sizes;
    the order of one window is computed alone, so that it takes the memory of a window and not of the set.
    """

    def __init__(self, rows: Sequence[int], *, seed: int, window: int) -> None:
        if window < 1 or any(count < 0 for count in rows):
            raise Misuse(f"a window of {window} shards: it has at least one, and no shard holds fewer than 0 rows")
        self._rows = np.array(rows, np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._rows)]).astype(np.int64)
        self._seed = seed
        self._window = window
        self._epoch: tuple[int, Indices, Indices] | None = None
        self._shuffled: tuple[int, int, Indices] | None = None

    def indices(self, epoch: int, start: int, stop: int) -> Indices:
        """The examples at places ``start`` to ``stop`` (not included) of an epoch."""
        order, ends = self._windows(epoch)
        parts: list[Indices] = []
        for number in self._touched(ends, start, stop):
            begin = int(ends[number - 1]) if number else 0
            rows = self._rows_of(epoch, number, order)
            parts.append(rows[max(0, start - begin) : stop - begin])
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def batch(self, epoch: int, batch: int, batch_size: int) -> Indices:
        """The examples of one batch of an epoch, in the order they are stacked."""
        count = int(self._starts[-1])
        batches = batch_count(count, batch_size)
        if not 0 <= batch < batches:
            raise Misuse(f"there is no batch {batch}: the epoch has {batches} of {batch_size}")
        return self.indices(epoch, batch * batch_size, min(count, (batch + 1) * batch_size))

    def shards(self, epoch: int, batches: Iterable[int], batch_size: int) -> tuple[int, ...]:
        """The shards in which these batches lie, in the order in which they are first needed."""
        found: dict[int, None] = {}
        for batch in batches:
            homes = np.searchsorted(self._starts, self.batch(epoch, batch, batch_size), side="right") - 1
            found |= dict.fromkeys(homes.tolist())
        return tuple(found)

    def ahead(self, epoch: int, batch: int, batch_size: int) -> Iterator[int]:
        """The shards in the order in which they are visited after a batch, to the end of the next epoch."""
        order, ends = self._windows(epoch)
        window = int(np.searchsorted(ends, min((batch + 1) * batch_size, int(self._starts[-1]) - 1), side="right"))
        following, _ = self._windows(epoch + 1)
        return iter(itertools.chain(order[window * self._window :].tolist(), following.tolist()))

    def _windows(self, epoch: int) -> tuple[Indices, Indices]:
        """The shards in the order of an epoch, and where each window of them ends."""
        if self._epoch is None or self._epoch[0] != epoch:
            order = epoch_order(len(self._rows), seed=mix(self._seed, 0), epoch=epoch)
            # Where the last shard of each window ends; the last window may have fewer.
            last = np.minimum(np.arange(self._window, len(order) + self._window, self._window), len(order)) - 1
            ends = np.cumsum(self._rows[order])[last]
            self._epoch = (epoch, order, ends)
        return self._epoch[1], self._epoch[2]

    def _touched(self, ends: Indices, start: int, stop: int) -> range:
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(ends, stop, side="left"))
        return range(first, min(last + 1, len(ends)))

    def _rows_of(self, epoch: int, number: int, order: Indices) -> Indices:
        """The examples of one window in the order in which they are visited."""
        if self._shuffled is None or self._shuffled[:2] != (epoch, number):
            shards = order[number * self._window : (number + 1) * self._window]
            rows = np.concatenate([np.arange(self._starts[shard], self._starts[shard + 1]) for shard in shards])
            shuffled = rows[epoch_order(len(rows), seed=mix(self._seed, 1 + number), epoch=epoch)]
            self._shuffled = (epoch, number, shuffled)
        return self._shuffled[2]
