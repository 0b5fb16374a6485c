"""The leader's side of one sealed sum: it asks members for shares, and takes the masks off with their answers. Pure.

The leader holds no key. It opens a sum with the shares that members give it, and with nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.errors import PeerViolation
from shoal.sealing.group import MAC_BYTES, SEED_BYTES, MaskGraph
from shoal.sealing.shamir import SHARE_BYTES, candidates

_NO_MAC = bytes(MAC_BYTES)


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What a member is given to open its part."""

    macs: bytes
    envelopes: bytes
    #: Neighbours that vanished after their upload, and whose edges do not all cancel.
    vanished: tuple[int, ...]
    vanished_envelopes: bytes


@dataclass(frozen=True, slots=True)
class Mask:
    """A seed, and whether its words were added to the sum or taken off."""

    seed: bytes = field(repr=False)
    was_added: bool


class SumOpening:
    """From the moment the set of uploads is fixed to the seeds of all masks that are left in their sum."""

    def __init__(self, group: MaskGraph, seals: Mapping[int, bytes], label: bytes = b"") -> None:
        self.group = group
        self.label = label
        #: Member of the sum -> what came with its words.
        self._seals = dict(seals)
        self.present = frozenset(seals)
        self._macs: dict[int, dict[int, bytes]] = {}
        #: (member, absent neighbour) -> the seed of the edge.
        self._edges: dict[tuple[int, int], bytes] = {}
        self._own_shares: dict[int, dict[int, bytes]] = {}
        self._edge_shares: dict[tuple[int, int], dict[int, bytes]] = {}
        #: Members that answered each of the two.
        self.agreed: set[int] = set()
        self.opened: set[int] = set()
        #: Set once devices are asked to open: nobody is waited for any longer to agree.
        self.vanished: frozenset[int] = frozenset()

    def on_agreed(self, member: int, macs: bytes, edges: bytes) -> None:
        near, absent = self.group.present_near(member, self.present), self.group.absent_near(member, self.present)
        if len(macs) != MAC_BYTES * len(near) or len(edges) != SEED_BYTES * len(absent):
            raise PeerViolation("an agreement of another size than its group's")
        self._macs[member] = {other: macs[MAC_BYTES * at :][:MAC_BYTES] for at, other in enumerate(near)}
        for at, other in enumerate(absent):
            self._edges[member, other] = edges[SEED_BYTES * at :][:SEED_BYTES]
        self.agreed.add(member)

    @property
    def may_open(self) -> bool:
        """Each member that answered has enough neighbours that did."""
        needed = self.group.shape.threshold
        return bool(self.agreed) and all(self._agreed_near(member) + 1 >= needed for member in self.agreed)

    def _agreed_near(self, member: int) -> int:
        return sum(other in self.agreed for other in self.group.present_near(member, self.present))

    def begin(self) -> None:
        """Members that have not agreed by now have vanished."""
        self.vanished = self.present - self.agreed

    def request(self, member: int) -> OpenRequest:
        near = self.group.present_near(member, self.present)
        vanished = tuple(o for o in near if o in self.vanished and self.group.absent_near(o, self.present))
        return OpenRequest(
            macs=b"".join(self._macs.get(other, {}).get(member, _NO_MAC) for other in near),
            envelopes=b"".join(self.group.own_envelope(other, self._seals[other], member) for other in near),
            vanished=vanished,
            vanished_envelopes=b"".join(
                self.group.edges_envelope(other, self._seals[other], member) for other in vanished
            ),
        )

    def on_opened(self, member: int, shares: bytes, edges: bytes) -> None:
        near = self.group.present_near(member, self.present)
        wanted = [
            (other, absent)
            for other in self.request(member).vanished
            for absent in self.group.absent_near(other, self.present)
        ]
        if len(shares) != SHARE_BYTES * len(near) or len(edges) != SHARE_BYTES * len(wanted):
            raise PeerViolation("an opening of another size than its group's")
        for at, other in enumerate(near):
            self._own_shares.setdefault(other, {})[member + 1] = shares[SHARE_BYTES * at :][:SHARE_BYTES]
        for at, edge in enumerate(wanted):
            self._edge_shares.setdefault(edge, {})[member + 1] = edges[SHARE_BYTES * at :][:SHARE_BYTES]
        self.opened.add(member)

    @property
    def is_enough(self) -> bool:
        """There are as many shares of each mask as it takes."""
        needed = self.group.shape.threshold
        wanted = [(other, absent) for other in self.vanished for absent in self.group.absent_near(other, self.present)]
        return all(len(self._own_shares.get(member, ())) >= needed for member in self.present) and all(
            len(self._edge_shares.get(edge, ())) >= needed for edge in wanted
        )

    def masks(self) -> list[Mask]:
        """Every mask that is left in the sum. Raises PeerViolation where shares make no mask of a member."""
        found = []
        for member in sorted(self.present):
            own, _ = self.group.commitments(member, self._seals[member])
            found.append(Mask(self._joined(member, self._own_shares[member], own), was_added=True))
        for (member, other), seed in sorted(self._edges.items()):
            self._check_edge(member, other, seed)
            found.append(Mask(seed, was_added=member < other))
        for (member, other), shares in sorted(self._edge_shares.items()):
            _, edges = self.group.commitments(member, self._seals[member])
            found.append(Mask(self._joined(member, shares, edges[other]), was_added=member < other))
        return found

    def _joined(self, member: int, shares: Mapping[int, bytes], commit: bytes) -> bytes:
        from shoal.sealing.pair import commitment

        for seed in candidates(shares, needed=self.group.shape.threshold):
            if commitment(seed, self.label) == commit:
                return seed
        raise PeerViolation(f"no {self.group.shape.threshold} shares make the mask that member {member} committed to")

    def _check_edge(self, member: int, other: int, seed: bytes) -> None:
        from shoal.sealing.pair import commitment

        if commitment(seed, self.label) != self.group.commitments(member, self._seals[member])[1][other]:
            raise PeerViolation(f"member {member} gave another edge than it committed to")


def unmask(total: np.ndarray, masks: list[Mask], label: bytes, *, start: int = 0) -> None:
    """Take the masks off a sum, in place; ``start``: it is a part of the sum that begins there."""
    from shoal.sealing.pair import mask_key
    from shoal.sealing.stream import add_all

    add_all(total, [(mask_key(mask.seed, label), mask.was_added) for mask in masks], start=start)
