"""A hub's ledger of one block: which of its leases are free, with a device, or in the sum. Pure state; time is an
argument.

A hub assigns the leases of its block to its devices; each assignment is a ``Sublet``. A lease moves free -> sublet ->
taken, and back to free if its device gives it up or is late. Taken means that its update is in the hub's sum. It
stays there: no update can be removed from a sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.errors import Misuse


@dataclass(frozen=True, slots=True)
class Sublet:
    """A lease of a block that a device has now, with its start and its deadline."""

    device: str
    since_s: float
    until_s: float


class BlockLedger:
    def __init__(self, leases: Iterable[int], devices: Sequence[str]) -> None:
        self._free = sorted(leases)
        self._sublet: dict[int, Sublet] = {}
        #: Lease -> the device whose update for it is in the sum.
        self.taken: dict[int, str] = {}
        #: Lease -> why it last came back.
        self._reasons: dict[int, str] = {}
        #: Devices without a lease that may get one, in the order in which the hub asks them.
        self._idle = list(dict.fromkeys(devices))
        #: Seconds that a device took for its last lease.
        self.took_s: dict[str, float] = {}

    # State -----------------------------------------------------------------------------------------

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    @property
    def outstanding(self) -> int:
        """Number of leases that may still return an update."""
        return len(self._sublet)

    @property
    def idle(self) -> tuple[str, ...]:
        return tuple(self._idle)

    @property
    def next_deadline_s(self) -> float | None:
        return min((sublet.until_s for sublet in self._sublet.values()), default=None)

    def holder(self, lease: int) -> str | None:
        """Return the device that has this lease now, or None."""
        sublet = self._sublet.get(lease)
        return sublet.device if sublet is not None else None

    def sublets(self) -> list[Sublet]:
        """Return every lease that a device has now."""
        return list(self._sublet.values())

    def returned(self) -> dict[int, str]:
        """Return the leases that are not in the sum, and why they last came back."""
        missing = sorted([*self._free, *self._sublet])
        return {lease: self._reasons.get(lease, "no device had time for it") for lease in missing}

    # Changes ---------------------------------------------------------------------------------------

    def sublet(self, device: str, *, now_s: float, until_s: float) -> int:
        """Give the next free lease to a device that has none."""
        if device not in self._idle or not self._free:
            raise Misuse(f"{device} cannot get a lease of this block: it is not idle, or no lease is free")
        self._idle.remove(device)
        lease = self._free.pop(0)
        self._sublet[lease] = Sublet(device, now_s, until_s)
        return lease

    def take(self, lease: int, device: str, *, now_s: float) -> None:
        """Record that the update of this lease is in the sum. Its device may get another lease."""
        sublet = self._sublet.get(lease)
        if sublet is None or sublet.device != device:
            raise Misuse(f"lease {lease} is not assigned to {device}")
        del self._sublet[lease]
        self.taken[lease] = device
        self.took_s[device] = now_s - sublet.since_s
        self._idle.append(device)

    def drop(self, device: str, reason: str) -> None:
        """Exclude a device from this block. Its lease becomes free; its earlier updates stay in the sum."""
        if device in self._idle:
            self._idle.remove(device)
        for lease in [lease for lease, sublet in self._sublet.items() if sublet.device == device]:
            self._release(lease, reason)

    def expire(self, now_s: float) -> list[str]:
        """Free the leases whose time is over. Return their devices. They may still be training, so they get no other
        lease."""
        late = [(lease, sublet) for lease, sublet in sorted(self._sublet.items()) if sublet.until_s <= now_s]
        for lease, sublet in late:
            self._release(lease, f"{sublet.device} did not return it in {now_s - sublet.since_s:.1f} s")
        return [sublet.device for _, sublet in late]

    def check(self) -> None:
        """Raise Misuse if the ledger contradicts itself. For tests and simulations."""
        leases = [*self._free, *self._sublet, *self.taken]
        holders = [sublet.device for sublet in self._sublet.values()]
        if len(set(leases)) != len(leases) or len(set(holders)) != len(holders) or set(holders) & set(self._idle):
            raise Misuse("a lease of a block is in two states, or a device has two leases of it")

    def _release(self, lease: int, reason: str) -> None:
        del self._sublet[lease]
        self._reasons[lease] = reason
        self._free = sorted([*self._free, lease])
