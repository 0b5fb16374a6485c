"""The leader's side of one sealed sum: it asks members for shares and uses them to remove the masks. Pure.

The leader has no key. It can open a sum only with the shares that members give it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.errors import PeerViolation
from shoal.sealing.group import HELPER_ENVELOPE_BYTES, MAC_BYTES, SEED_BYTES, MaskGraph, OpenedPart
from shoal.sealing.shamir import SHARE_BYTES, candidates

_NO_MAC = bytes(MAC_BYTES)


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """The request to one member to open its part of the sum."""

    macs: bytes
    envelopes: bytes
    #: Neighbours that vanished after their upload, and whose edges do not all cancel.
    vanished: tuple[int, ...]
    vanished_envelopes: bytes


@dataclass(frozen=True, slots=True)
class Mask:
    """A seed, and whether its words were added to the sum or subtracted."""

    seed: bytes = field(repr=False)
    was_added: bool


class SumOpening:
    """The opening of one sum: from a fixed set of uploads to the seeds of all masks that remain in their sum."""

    def __init__(self, group: MaskGraph, seals: Mapping[int, bytes], label: bytes = b"") -> None:
        self.group = group
        self.label = label
        #: Member of the sum -> the seals that came with its words.
        self._seals = dict(seals)
        self.present = frozenset(seals)
        self._macs: dict[int, dict[int, bytes]] = {}
        #: (member, absent neighbour) -> the seed of the edge.
        self._edges: dict[tuple[int, int], bytes] = {}
        self._own_shares: dict[int, dict[int, bytes]] = {}
        self._edge_shares: dict[tuple[int, int], dict[int, bytes]] = {}
        #: Members that answered the request to agree, and the request to open.
        self.agreed: set[int] = set()
        self.opened: set[int] = set()
        #: Members of the sum that stopped answering. The leader asks their neighbours for their edges.
        self.vanished: frozenset[int] = frozenset()
        #: Member that opened -> the vanished neighbours whose edges it gave.
        self._opened_for: dict[int, frozenset[int]] = {}

    def on_agreed(self, member: int, macs: bytes) -> None:
        others = self.group.others(member, self.present)
        if len(macs) != MAC_BYTES * len(others):
            raise PeerViolation("the agreement has the wrong size for its group")
        self._macs[member] = {other: macs[MAC_BYTES * at :][:MAC_BYTES] for at, other in enumerate(others)}
        self.agreed.add(member)

    @property
    def may_open(self) -> bool:
        """Whether enough members agreed for each of them to open its part."""
        return len(self.agreed) >= self.group.shape.agreed

    def begin(self) -> None:
        """Treat members that have not agreed by now as vanished."""
        self.vanished = self.present - self.agreed

    def begin_again(self) -> bool:
        """Treat members that have not opened by now as vanished too. Return whether their neighbours can give what is
        missing, so that the leader must ask them once more."""
        before, self.vanished = self.vanished, self.vanished | (self.present - self.opened)
        return any(self.group.absent_near(member, self.present) for member in self.vanished - before)

    @property
    def awaited(self) -> set[int]:
        """Members that were asked to open and have not given everything yet."""
        told = self._opened_for
        missing = {one for one in self.opened if not set(self._vanished_near(one)) <= told[one]}
        return missing | (self.agreed - self.opened - self.vanished)

    def _vanished_near(self, member: int) -> tuple[int, ...]:
        """Return the vanished neighbours of a member whose edges do not all cancel."""
        near = self.group.present_near(member, self.present)
        return tuple(other for other in near if other in self.vanished and self.group.absent_near(other, self.present))

    def request(self, member: int) -> OpenRequest:
        near, others = self.group.present_near(member, self.present), self.group.others(member, self.present)
        vanished = self._vanished_near(member)
        return OpenRequest(
            macs=b"".join(self._macs.get(other, {}).get(member, _NO_MAC) for other in others),
            envelopes=b"".join(self.group.own_envelope(other, self._seals[other], member) for other in near),
            vanished=vanished,
            vanished_envelopes=b"".join(
                self.group.edges_envelope(other, self._seals[other], member) for other in vanished
            ),
        )

    def on_opened(self, member: int, part: OpenedPart, vanished: tuple[int, ...]) -> None:
        """Record a member's part. ``vanished``: the neighbours whose edge shares the part has. Raises PeerViolation if
        the part does not fit this sum."""
        near, absent_near = self.group.present_near(member, self.present), self.group.absent_near(member, self.present)
        if not set(vanished) <= set(near):
            raise PeerViolation("the opening has edges of members that are not neighbours in the sum")
        wanted = [(other, absent) for other in vanished for absent in self.group.absent_near(other, self.present)]
        told = (len(part.shares), len(part.edges), len(part.vanished_edges))
        if told != (SHARE_BYTES * len(near), SEED_BYTES * len(absent_near), SHARE_BYTES * len(wanted)):
            raise PeerViolation("the opening has the wrong size for its group")
        for at, other in enumerate(near):
            self._own_shares.setdefault(other, {})[member + 1] = part.shares[SHARE_BYTES * at :][:SHARE_BYTES]
        for at, other in enumerate(absent_near):
            self._edges[member, other] = part.edges[SEED_BYTES * at :][:SEED_BYTES]
        for at, edge in enumerate(wanted):
            share = part.vanished_edges[SHARE_BYTES * at :][:SHARE_BYTES]
            self._edge_shares.setdefault(edge, {})[member + 1] = share
        self.opened.add(member)
        self._opened_for[member] = self._opened_for.get(member, frozenset()) | set(vanished)

    @property
    def is_enough(self) -> bool:
        """Whether there are enough shares for each mask."""
        needed = self.group.shape.threshold
        edges = ((one, absent) for one in self.present for absent in self.group.absent_near(one, self.present))
        return all(len(self._own_shares.get(member, ())) >= needed for member in self.present) and all(
            edge in self._edges or len(self._edge_shares.get(edge, ())) >= needed for edge in edges
        )

    def masks(self) -> list[Mask]:
        """Return every mask that remains in the sum. Raises PeerViolation if the shares do not make a member's mask."""
        found = []
        for member in sorted(self.present):
            own, edges = self.group.commitments(member, self._seals[member])
            found.append(Mask(self._joined(member, self._own_shares[member], own), was_added=True))
            for other in self.group.absent_near(member, self.present):
                found.append(Mask(self._edge(member, other, edges[other]), was_added=member < other))
        return found

    def _edge(self, member: int, other: int, commit: bytes) -> bytes:
        """Return the edge's seed as its member gave it, or else from the shares of the member's neighbours."""
        from shoal.sealing.pair import commitment

        seed = self._edges.get((member, other))
        if seed is not None and commitment(seed, self.label) == commit:
            return seed
        return self._joined(member, self._edge_shares.get((member, other), {}), commit)

    def _joined(self, member: int, shares: Mapping[int, bytes], commit: bytes) -> bytes:
        from shoal.sealing.pair import commitment

        for seed in candidates(shares, needed=self.group.shape.threshold):
            if commitment(seed, self.label) == commit:
                return seed
        raise PeerViolation(f"the shares of member {member} do not restore the mask that it committed to")


def covers_in(seals: Iterable[bytes]) -> list[Mask]:
    """Return the covers of a sum's members whose words went to aggregators, where a helper opens the sum. ``seals``:
    what came with the words of each member."""
    covers = (each[HELPER_ENVELOPE_BYTES:] for each in seals)
    return [Mask(cover, was_added=True) for cover in covers if cover]


def unmask(total: np.ndarray, masks: list[Mask], label: bytes, *, start: int = 0) -> None:
    """Remove the masks from a sum, in place. ``start`` is the index at which this part of the sum begins."""
    from shoal.sealing.pair import mask_key
    from shoal.sealing.stream import add_all

    add_all(total, [(mask_key(mask.seed, label), mask.was_added) for mask in masks], start=start)
