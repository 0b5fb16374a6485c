"""Which devices of a group mask with which, how many of them open a mask, and how many must agree. Pure.

In groups of up to ``COMPLETE_MAX`` devices each device masks with every other. In larger groups each device has k
neighbours on a ring (Bell et al. 2020). The number of neighbours follows from a count and not from a probability:
whichever devices collude, whichever are missing, and wherever they are on the ring, the honest devices of a sum stay
connected. The proof is in docs/sealed-protocol.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from shoal.errors import Misuse

#: Groups up to this size are complete graphs.
COMPLETE_MAX = 32

#: Largest number of devices in a group. Each device receives the keys of all others in one message.
GROUP_MAX = 256

_NEIGHBOURS_LEAST = 4


@dataclass(frozen=True, slots=True)
class GraphShape:
    """The number of neighbours of each device in a group, and the limits that members enforce against the leader."""

    devices: int
    #: 0 if a helper opens sums: then no device masks with another.
    neighbours: int
    #: Neighbours whose shares open a mask.
    threshold: int
    #: Members, including the device itself, that must have agreed to the same set before the device opens anything.
    #: They are counted over the entire group: 2 * agreed > devices + liars leaves room for only one set.
    agreed: int
    #: Members that may collude with the leader, and members that may be missing in a sum.
    liars: int
    gone: int

    @property
    def is_complete(self) -> bool:
        return self.neighbours == self.devices - 1

    def least(self, said: int) -> int:
        """Return the fewest members of a sum that may be opened, if the plan asks for at least ``said``. It takes two
        honest members to hide each other, and a ring stays connected only if no more are missing than the plan
        allows."""
        on_ring = 0 if self.is_complete or not self.neighbours else self.devices - self.gone
        return max(said, self.liars + 2, on_ring)


@lru_cache(maxsize=1024)
def shape_of(devices: int, liars: int, lost: float) -> GraphShape:
    """Return the cheapest shape for this many devices, of which ``liars`` may collude and a share ``lost`` may be
    missing. Raises Misuse if no shape keeps updates secret."""
    _check_size(devices)
    gone = int(round(devices * lost, 9))
    # Two sets of members that agree have an honest member in common, so they agreed to the same set.
    agreed = (devices + liars) // 2 + 1
    # A ring falls apart only if two runs of k / 2 members are removed. Colluding members never have enough shares of a
    # mask.
    neighbours = max(_NEIGHBOURS_LEAST, liars + gone + 2)
    neighbours += neighbours % 2
    if devices > COMPLETE_MAX and neighbours < devices - 1 and agreed <= devices - gone:
        return GraphShape(devices, neighbours, neighbours - 1 - gone, agreed, liars, gone)
    if agreed > devices - 1:
        raise Misuse(
            f"{liars} of {devices} devices in a sum may collude, so the sum hides nobody. Let more devices take"
            " part, or name a smaller share that may collude"
        )
    return GraphShape(devices, devices - 1, agreed, agreed, liars, gone)


def helped_shape(devices: int, liars: int) -> GraphShape:
    """Return the shape if a helper opens sums: no device masks with another. Raises Misuse if the group is too
    large."""
    _check_size(devices)
    return GraphShape(devices, 0, 0, 0, liars, 0)


def _check_size(devices: int) -> None:
    if devices > GROUP_MAX:
        raise Misuse(f"a sealed sum has at most {GROUP_MAX} devices, not {devices}")


def neighbours_of(shape: GraphShape, seed: bytes) -> tuple[tuple[int, ...], ...]:
    """Return the neighbours of each device. Every member contributes to the seed after the members are known."""
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
    """Return one seed made from the members' random nonces."""
    return _digest(b"shoal seal graph 1\0" + b"".join(map(_digest, nonces)))


def _digest(data: bytes) -> bytes:
    # Imported here: every trainer process reads a plan and none of them seals. OpenSSL would take 3 MB of a small
    # device.
    import hashlib

    return hashlib.sha256(data).digest()
