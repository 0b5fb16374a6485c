"""Which devices of a group mask with which, and how many of them open a mask. Pure; chance comes from the members.

Up to ``COMPLETE_MAX`` devices each masks with every other. In larger groups each has k neighbours on a ring in random
order (Bell et al. 2020), few enough to be cheap and many enough that next to no group is unlucky: k and the threshold
follow from exact hypergeometric tails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from shoal.errors import Misuse

#: Groups up to this size are complete graphs, for which a leader that lies is borne.
COMPLETE_MAX = 32

#: Devices of one group. Each is told of all others in one message.
GROUP_MAX = 256

#: The chance that more than the sum can be learnt of a group, and that a group has to be made again for its losses.
LEAK_CHANCE = 2.0**-40
VOID_CHANCE = 2.0**-10

_NEIGHBOURS_LEAST = 4


@dataclass(frozen=True, slots=True)
class GraphShape:
    """How many neighbours each device of a group has, and how many of them it takes to open its mask."""

    devices: int
    neighbours: int
    threshold: int

    @property
    def is_complete(self) -> bool:
        return self.neighbours == self.devices - 1

    @property
    def losses_borne(self) -> int:
        """Of a complete group: devices that may vanish at the worst moment."""
        return self.devices - 1 - self.threshold


@lru_cache(maxsize=1024)
def shape_of(devices: int, colluding: float, lost: float) -> GraphShape:
    """The cheapest shape that bears these shares. Raises Misuse where none keeps a secret."""
    if devices > GROUP_MAX:
        raise Misuse(f"a sealed sum is of at most {GROUP_MAX} devices, not {devices}")
    liars = math.ceil(round(devices * colluding, 9))
    gone = int(round(devices * lost, 9))
    if devices > COMPLETE_MAX:
        for neighbours in range(_NEIGHBOURS_LEAST, devices - 1, 2):
            if (threshold := _threshold(devices, neighbours, liars, gone)) is not None:
                return GraphShape(devices, neighbours, threshold)
    # Two sets of devices that agree on something share more than the liars, so that they agree on one thing only.
    threshold = (devices + liars) // 2 + 1
    if threshold > devices - 1:
        raise Misuse(
            f"in a sum of {devices} devices {liars} may collude: that hides nobody. Let more devices take part, or name"
            " a smaller share that may collude"
        )
    return GraphShape(devices, devices - 1, threshold)


def helped_shape(devices: int) -> GraphShape:
    """Where a helper opens sums: nobody masks with anybody. Raises Misuse for a group that is too large."""
    if devices > GROUP_MAX:
        raise Misuse(f"a sealed sum is of at most {GROUP_MAX} devices, not {devices}")
    return GraphShape(devices, 0, 0)


def _threshold(devices: int, neighbours: int, liars: int, gone: int) -> int | None:
    """The least threshold that liars reach next to never, and that is reached in spite of losses; None: none is."""
    others = devices - 1
    if devices * _at_least(others, min(others, liars + gone), neighbours, neighbours) >= LEAK_CHANCE:
        # A device whose honest neighbours are all lost has nothing but its own mask.
        return None
    for threshold in range(2, neighbours + 1):
        if devices * _at_least(others, liars, neighbours, threshold) < LEAK_CHANCE:
            is_reached = devices * (1 - _at_least(others, others - gone, neighbours, threshold)) < VOID_CHANCE
            return threshold if is_reached else None
    return None


def _at_least(all_of: int, marked: int, drawn: int, least: int) -> float:
    """The chance that of so many drawn at least ``least`` are marked (hypergeometric)."""
    ways = sum(
        math.comb(marked, hits) * math.comb(all_of - marked, drawn - hits)
        for hits in range(least, min(drawn, marked) + 1)
    )
    return ways / math.comb(all_of, drawn)


def neighbours_of(shape: GraphShape, seed: bytes) -> tuple[tuple[int, ...], ...]:
    """Device -> its neighbours. The seed is made of what every member drew, after it was known who they are."""
    devices = range(shape.devices)
    if shape.is_complete:
        return tuple(tuple(other for other in devices if other != device) for device in devices)
    order = sorted(devices, key=lambda device: _digest(seed + device.to_bytes(4, "big")))
    near: list[set[int]] = [set() for _ in devices]
    for at, device in enumerate(order):
        for step in range(1, shape.neighbours // 2 + 1):
            other = order[(at + step) % shape.devices]
            near[device].add(other)
            near[other].add(device)
    return tuple(tuple(sorted(those)) for those in near)


def graph_seed(nonces: Sequence[bytes]) -> bytes:
    """What the members drew, as one seed."""
    return _digest(b"shoal seal graph 1\0" + b"".join(map(_digest, nonces)))


def _digest(data: bytes) -> bytes:
    # Here: every trainer's process reads a plan, none seals, and OpenSSL would hold 3 MB of a small device's memory.
    import hashlib

    return hashlib.sha256(data).digest()
