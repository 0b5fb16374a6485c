"""Which examples are in batch i of epoch e. Numpy only: a pure function of seed, epoch and counts.

Every device must agree on this without talking, whatever its numpy, its platform or its byte order, so it does not
use numpy's generators (their streams may change between versions) but splitmix64 (Steele, Lea, Flood 2014), whose
sixty-four bits are defined by three lines of integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from shoal.errors import Misuse

Indices: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

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
