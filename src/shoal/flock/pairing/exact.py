"""The best order of merges for a few devices, if all ready times are known: dynamic programming over sets and holders.

Any member of a set S can hold the sum over S. Let f(S, h) be the earliest time when h holds it: f({i}, i) = r_i, and

    f(S, h) = min over S = A ∪ B, h in A, s in B, of   max(f(A, h), f(B, s)) + d(s, h).

The two parts have no device in common, so their orders are independent. That is O(3^N N²): a tenth of a second for ten
devices.

In general the problem is NP-hard; larger clusters look ahead only over their next few merges (``ahead``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

from shoal.errors import Misuse

#: More devices would take minutes and gigabytes.
DEVICES_MOST = 12

#: Numbers processed at a time: they stay in a core's cache.
_BLOCK = 1 << 17


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """An order whose last merge ends as early as possible."""

    makespan_s: float
    #: (sender, receiver), by index. A pair comes after the pairs whose results it merges.
    pairs: tuple[tuple[int, int], ...]


def exact(ready_s: Sequence[float], *, merge_s: np.ndarray) -> Best:
    """Return the best order for links that differ: ``merge_s[i, j]`` is the time from i to j."""
    count = checked(ready_s)
    if merge_s.shape != (count, count):
        raise Misuse(f"merge_s has the shape {merge_s.shape} for {count} devices: give one row and column per device")
    held_s = np.full((1 << count, count), np.inf)
    held_s[1 << np.arange(count), np.arange(count)] = ready_s
    kept = np.zeros((1 << count, count), dtype=np.int64)
    sender = np.zeros((1 << count, count), dtype=np.int64)
    for members, whole, parts in levels(count):
        size = members.shape[1]
        # (part, set, sender, receiver): the receiver's part and the sender's.
        receives = held_s[parts[:, :, None], members]
        brings = held_s[(whole - parts)[:, :, None], members]
        way_s = merge_s[members[:, :, None], members[:, None, :]]
        done_s = np.maximum(receives[:, :, None, :], brings[:, :, :, None])
        done_s += way_s
        flat = done_s.transpose(1, 3, 0, 2).reshape(len(whole), size, -1)
        chosen = flat.argmin(axis=2)
        rows = np.arange(len(whole))[:, None]
        held_s[whole[:, None], members] = np.take_along_axis(flat, chosen[:, :, None], axis=2)[:, :, 0]
        kept[whole[:, None], members] = parts[chosen // size, rows]
        sender[whole[:, None], members] = members[rows, chosen % size]
    everyone = (1 << count) - 1
    root = int(held_s[everyone].argmin())
    pairs: list[tuple[int, int]] = []
    _unroll(everyone, root, kept, sender, pairs)
    return Best(makespan_s=float(held_s[everyone, root]), pairs=tuple(pairs))


def levels(count: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the sets of two devices, of three and so on, in blocks: their members, the sets as bits, and all possible
    parts of them.

    ``parts[p, s]`` are the bits of the p-th part of the s-th set.
    """
    return [block for size in range(2, count + 1) for block in _level(count, size)]


@lru_cache(maxsize=4 * DEVICES_MOST)
def _level(count: int, size: int) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]:
    sets = np.array(list(combinations(range(count), size)), dtype=np.int64)
    # All parts except the empty one and the entire set.
    local = np.arange(1, (1 << size) - 1, dtype=np.int64)
    is_in = (local[:, None] >> np.arange(size)) & 1
    step = max(1, _BLOCK // (len(local) * size * size))
    blocks = []
    for start in range(0, len(sets), step):
        members = sets[start : start + step]
        bits = np.int64(1) << members
        blocks.append((members, bits.sum(axis=1), is_in @ bits.T))
    return tuple(blocks)


def _unroll(whole: int, holder: int, kept: np.ndarray, sender: np.ndarray, pairs: list[tuple[int, int]]) -> None:
    if whole & (whole - 1) == 0:
        return
    part, other = int(kept[whole, holder]), int(sender[whole, holder])
    _unroll(part, holder, kept, sender, pairs)
    _unroll(whole - part, other, kept, sender, pairs)
    pairs.append((other, holder))


def checked(ready_s: Sequence[float]) -> int:
    """Return the number of devices. Raises Misuse if no exact order can be computed for them."""
    count = len(ready_s)
    if not 1 <= count <= DEVICES_MOST:
        raise Misuse(f"there are {count} devices; an exact order is for 1 to {DEVICES_MOST}: look ahead instead")
    if not np.isfinite(ready_s).all():
        raise Misuse("an exact order needs the time when each device is ready; it must be finite")
    return count
