"""Which devices of a group mask with which, how many of them open a mask, and how many must agree. Pure.

Up to ``COMPLETE_MAX`` devices each masks with every other. In larger groups each has k neighbours on a ring (Bell et
al. 2020). How many is counted, not left to chance: whichever devices collude and whichever are missing, and wherever
they are on the ring, the honest devices of a sum stay connected. The proof is in docs/sealed-protocol.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from shoal.errors import Misuse

#: Groups up to this size are complete graphs.
COMPLETE_MAX = 32

#: Devices of one group. Each is told of all others in one message.
GROUP_MAX = 256

_NEIGHBOURS_LEAST = 4


@dataclass(frozen=True, slots=True)
class GraphShape:
    """How many neighbours each device of a group has, and the numbers that its members hold a leader to."""

    devices: int
    #: 0 if a helper opens sums: then no device masks with another.
    neighbours: int
    #: Neighbours whose shares open a mask.
    threshold: int
    #: Members, the device itself included, that must have been told of the same set before it opens anything. They are
    #: counted over the whole group, so that 2 * agreed > devices + liars leaves room for one set only.
    agreed: int
    #: Members that may tell the leader all they know, and members that may be missing in a sum.
    liars: int
    gone: int

    @property
    def is_complete(self) -> bool:
        return self.neighbours == self.devices - 1

    @property
    def losses_borne(self) -> int:
        """Of a complete group: devices that may vanish at the worst moment."""
        return self.devices - 1 - self.threshold

    def least(self, said: int) -> int:
        """The fewest members of a sum that is opened, where the plan says at least ``said``. Two honest members hide
        each other; and a ring stays connected only if no more are missing than the plan allows."""
        on_ring = 0 if self.is_complete or not self.neighbours else self.devices - self.gone
        return max(said, self.liars + 2, on_ring)


@lru_cache(maxsize=1024)
def shape_of(devices: int, liars: int, lost: float) -> GraphShape:
    """The cheapest shape for so many devices, of which ``liars`` may collude and a share may be lost. Raises Misuse if
    none keeps a secret."""
    _check_size(devices)
    gone = int(round(devices * lost, 9))
    # Two sets of members that agree share more than the liars, so that they agree on one thing only.
    agreed = (devices + liars) // 2 + 1
    # A ring falls apart only where two runs of k / 2 members are taken out, and liars never have the shares of a mask.
    neighbours = max(_NEIGHBOURS_LEAST, liars + gone + 2)
    neighbours += neighbours % 2
    if devices > COMPLETE_MAX and neighbours < devices - 1 and agreed <= devices - gone:
        return GraphShape(devices, neighbours, neighbours - 1 - gone, agreed, liars, gone)
    if agreed > devices - 1:
        raise Misuse(
            f"in a sum of {devices} devices {liars} may collude: that hides nobody. Let more devices take part, or name"
            " a smaller share that may collude"
        )
    return GraphShape(devices, devices - 1, agreed, agreed, liars, gone)


def helped_shape(devices: int, liars: int) -> GraphShape:
    """The shape where a helper opens sums: no device masks with another. Raises Misuse if a group is too large."""
    _check_size(devices)
    return GraphShape(devices, 0, 0, 0, liars, 0)


def _check_size(devices: int) -> None:
    if devices > GROUP_MAX:
        raise Misuse(f"a sealed sum is of at most {GROUP_MAX} devices, not {devices}")


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
