"""The best order of merges, as a yardstick: carried out as a schedule, and for links that are all the same.

The product works out the best order for links that differ (``shoal.flock.pairing.exact``), and needs neither of these.
If all merges take the same, the holder of a sum does not matter: one number for each set is enough, O(3^N).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.chain_schedule import Energy, Schedule, follow
from shoal.flock.pairing.exact import Best, checked, exact, levels
from shoal.flock.pairing.links import Links, table_s
from shoal.flock.pairing.pairs import Holder


def exact_schedule(devices: Sequence[Holder], *, links: Links, energy: Energy | None = None) -> Schedule:
    """The best schedule, carried out. It ignores the energy that devices spent."""
    names = [each.name for each in devices]
    best = exact([each.ready_s for each in devices], merge_s=table_s(names, links))
    pairs = [(names[sender], names[receiver]) for sender, receiver in best.pairs]
    return follow(pairs, devices, links=links, energy=energy)


def exact_equal(ready_s: Sequence[float], *, merge_s: float) -> Best:
    """The best order if every merge takes the same. The first of a set by place receives."""
    count = checked(ready_s)
    held_s = np.full(1 << count, np.inf)
    held_s[1 << np.arange(count)] = ready_s
    kept = np.zeros((1 << count, 1), dtype=np.int64)
    for _, whole, parts in levels(count):
        done_s = np.maximum(held_s[parts], held_s[whole - parts])
        chosen = done_s.argmin(axis=0)
        columns = np.arange(len(whole))
        held_s[whole] = done_s[chosen, columns] + merge_s
        kept[whole, 0] = parts[chosen, columns]
    everyone = (1 << count) - 1
    pairs: list[tuple[int, int]] = []
    _unroll_equal(everyone, kept[:, 0], pairs)
    return Best(makespan_s=float(held_s[everyone]), pairs=tuple(pairs))


def _unroll_equal(whole: int, kept: np.ndarray, pairs: list[tuple[int, int]]) -> int:
    """Append the pairs that make this set, and return the place of its holder."""
    if whole & (whole - 1) == 0:
        return whole.bit_length() - 1
    part = int(kept[whole])
    one, other = _unroll_equal(part, kept, pairs), _unroll_equal(whole - part, kept, pairs)
    receiver, sender = min(one, other), max(one, other)
    pairs.append((sender, receiver))
    return receiver
