"""A hub's ledger of one block: which of its leases are free, sublet or in the sum. Pure state; time is an argument.

A lease moves free -> sublet -> taken, and back to free if its device gives it up or is late. Taken means that its
update is in the hub's sum, and it stays there: no update can be taken out of a sum again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.errors import Misuse


@dataclass(frozen=True, slots=True)
class Sublet:
    """A lease of a block that a device has, since when and until when."""

    device: str
    since_s: float
    until_s: float


class BlockLedger:
    def __init__(self, leases: Iterable[int], devices: Sequence[str]) -> None:
        self._free = sorted(leases)
        self._sublet: dict[int, Sublet] = {}
        #: Lease -> the device whose update of it is in the sum.
        self.taken: dict[int, str] = {}
        #: Lease -> why it last came back.
        self._reasons: dict[int, str] = {}
        #: Devices that may be sublet a lease: those that have none, in the order in which they are asked.
        self._idle = list(dict.fromkeys(devices))
        #: How long a device took for its last lease.
        self.took_s: dict[str, float] = {}

    # What there is -------------------------------------------------------------------------------

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    @property
    def outstanding(self) -> int:
        """Leases that may still bring an update."""
        return len(self._sublet)

    @property
    def idle(self) -> tuple[str, ...]:
        return tuple(self._idle)

    @property
    def next_deadline_s(self) -> float | None:
        return min((sublet.until_s for sublet in self._sublet.values()), default=None)

    def holder(self, lease: int) -> str | None:
        """The device that has this lease now."""
        sublet = self._sublet.get(lease)
        return sublet.device if sublet is not None else None

    def sublets(self) -> list[Sublet]:
        """Every lease that a device has now."""
        return list(self._sublet.values())

    def returned(self) -> dict[int, str]:
        """Leases that are not in the sum, and why they last came back."""
        missing = sorted([*self._free, *self._sublet])
        return {lease: self._reasons.get(lease, "no device had time for it") for lease in missing}

    # What happens to it ----------------------------------------------------------------------------

    def sublet(self, device: str, *, now_s: float, until_s: float) -> int:
        """Give the next free lease to a device that has none."""
        if device not in self._idle or not self._free:
            raise Misuse(f"{device} cannot be sublet a lease of this block now")
        self._idle.remove(device)
        lease = self._free.pop(0)
        self._sublet[lease] = Sublet(device, now_s, until_s)
        return lease

    def take(self, lease: int, device: str, *, now_s: float) -> None:
        """The update of this lease is in the sum. Its device may be sublet another."""
        sublet = self._sublet.get(lease)
        if sublet is None or sublet.device != device:
            raise Misuse(f"lease {lease} is not sublet to {device}")
        del self._sublet[lease]
        self.taken[lease] = device
        self.took_s[device] = now_s - sublet.since_s
        self._idle.append(device)

    def drop(self, device: str, reason: str) -> None:
        """A device takes no further part in this block. What it holds is free; what it brought stays in the sum."""
        if device in self._idle:
            self._idle.remove(device)
        for lease in [lease for lease, sublet in self._sublet.items() if sublet.device == device]:
            self._release(lease, reason)

    def expire(self, now_s: float) -> list[str]:
        """Free the leases whose time is over. Returns their devices, which may be at it still: they get no other."""
        late = [(lease, sublet) for lease, sublet in sorted(self._sublet.items()) if sublet.until_s <= now_s]
        for lease, sublet in late:
            self._release(lease, f"{sublet.device} did not return it in {now_s - sublet.since_s:.1f} s")
        return [sublet.device for _, sublet in late]

    def check(self) -> None:
        """Raise if the ledger contradicts itself. For tests and simulations."""
        leases = [*self._free, *self._sublet, *self.taken]
        holders = [sublet.device for sublet in self._sublet.values()]
        if len(set(leases)) != len(leases) or len(set(holders)) != len(holders) or set(holders) & set(self._idle):
            raise Misuse("a lease of a block is in two states, or a device has two leases of it")

    def _release(self, lease: int, reason: str) -> None:
        del self._sublet[lease]
        self._reasons[lease] = reason
        self._free = sorted([*self._free, lease])
