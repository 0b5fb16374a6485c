"""One update sealed under one label: its masks, and what the device may still reveal about it. Pure; randomness is an
argument.

Whatever a leader asks, a device promises this: under a label it agrees to one set of members. It reveals nothing else
until enough members of the entire group prove that they agreed to the same set. What it reveals then depends only on
that set: shares of the own seeds of members in the set, and the seeds of edges to members outside it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from shoal.errors import Misuse, PeerViolation
from shoal.sealing import pair
from shoal.sealing.fixed import FixedPoint
from shoal.sealing.group import MAC_BYTES, SEED_BYTES, TAG_BYTES, MaskGraph, OpenedPart, bits_of
from shoal.sealing.noise import NoisePoint
from shoal.sealing.shamir import CHANCE_BYTES, SHARE_BYTES, split
from shoal.sealing.stream import add_all, stream

#: Random bytes that sealing one update takes: for the device's own seed, the rounding, and the shares.
ENTROPY_BYTES = 96

_OWN, _EDGES = b"own", b"edges"


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """A device's place in a group, and the keys that it shares with the other members."""

    group: MaskGraph
    place: int
    label: bytes
    #: Other member -> the key that both devices share. Empty if a helper opens sums.
    keys: Mapping[int, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        others = set(range(self.group.size)) - {self.place} if self.group.near[self.place] else set()
        if set(self.keys) != others:
            raise Misuse("GroupPlace.keys must have exactly one key for each other member")


class SealedUpdate:
    """The state that a device keeps for an update that it sealed. The device sends the words and does not keep them."""

    def __init__(self, seat: GroupPlace) -> None:
        self._seat = seat
        #: The set of members that this device agreed to.
        self._present: frozenset[int] | None = None
        #: Indices of the update that the words cover, or None for all of them.
        self.places: np.ndarray | None = None

    @property
    def size(self) -> int:
        """Number of members of the group."""
        return self._seat.group.size

    def envelopes_of(self, members: tuple[int, ...], joined: bytes) -> dict[int, bytes]:
        """Divide ``joined`` into the envelopes with the edges of these members."""
        sizes = [self._seat.group.edges_bytes(member) for member in members]
        if sum(sizes) != len(joined):
            raise PeerViolation("the envelopes with edges have the wrong size for this group")
        ends = list(accumulate(sizes))
        return {member: joined[end - size : end] for member, size, end in zip(members, sizes, ends, strict=True)}

    def agree(self, present: frozenset[int]) -> bytes:
        """Agree that the sum covers these members. Return a MAC for each other of them, in order. The device agrees
        once: it gives the same answer for the same set again and refuses any other set."""
        seat, group = self._seat, self._seat.group
        if self._present is not None and present != self._present:
            raise PeerViolation("the request has another set of members than the one that this device agreed to")
        if seat.place not in present or not present <= frozenset(range(group.size)):
            raise PeerViolation("the set of members lacks this device, or names members that the group does not have")
        if len(present) < group.least:
            raise PeerViolation(
                f"the leader asked for a sum of {len(present)} members, where at least {group.least} hide each other"
            )
        self._present = present
        told = self._told(present)
        return b"".join(
            pair.agree_mac(seat.keys[other], seat.label, seat.place, told)
            for other in group.others(seat.place, present)
        )

    def open(self, macs: bytes, envelopes: bytes, vanished: Mapping[int, bytes]) -> OpenedPart:
        """Open this device's part of the sum that it agreed to, if enough members prove that they agreed to the same
        set. A leader may ask again for neighbours that vanished since then. The answer still depends only on that one
        set.

        ``macs``: the MAC of each other member of the set, in order; zeros for a member that did not answer.
        ``envelopes``: those of present neighbours to this device, in order.
        ``vanished``: the envelopes with shares of edges, from neighbours that vanished after their upload.
        """
        seat, group, present = self._seat, self._seat.group, self._present
        if present is None:
            raise PeerViolation("the leader asked to open a sum before anybody agreed to a set of members")
        near, others = group.present_near(seat.place, present), group.others(seat.place, present)
        if len(macs) != MAC_BYTES * len(others) or len(envelopes) != (SHARE_BYTES + TAG_BYTES) * len(near):
            raise PeerViolation("the request to open has the wrong size for this group")
        told = self._told(present)
        agreed = 1 + sum(
            pair.is_mac(part, seat.keys[other], seat.label, other, told)
            for other, part in zip(others, _cut(macs, MAC_BYTES), strict=True)
        )
        if agreed < group.shape.agreed:
            raise PeerViolation(
                f"{agreed} members agreed to this set; at least {group.shape.agreed} must: the leader shows devices"
                " different sets"
            )
        shares = [
            self._opened(other, _OWN, envelope)
            for other, envelope in zip(near, _cut(envelopes, SHARE_BYTES + TAG_BYTES), strict=True)
        ]
        edges = (pair.edge_seed(seat.keys[other], seat.label) for other in group.absent_near(seat.place, present))
        of_vanished = [self._edges_of(other, envelope, present) for other, envelope in sorted(vanished.items())]
        return OpenedPart(b"".join(shares), b"".join(edges), b"".join(of_vanished))

    def _edges_of(self, vanished: int, envelope: bytes, present: frozenset[int]) -> bytes:
        seat, group = self._seat, self._seat.group
        if vanished not in group.present_near(seat.place, present) or len(envelope) != group.edges_bytes(vanished):
            raise PeerViolation("the request has edges of a member that is not a neighbour in the sum")
        plain = self._opened(vanished, _EDGES, envelope)
        shared = [other for other in group.near[vanished] if other != seat.place]
        shares = dict(zip(shared, _cut(plain, SHARE_BYTES), strict=True))
        return b"".join(shares[other] for other in group.absent_near(vanished, present))

    def _opened(self, sender: int, kind: bytes, envelope: bytes) -> bytes:
        seat = self._seat
        return pair.unclose(seat.keys[sender], seat.label, sender, kind, envelope)

    def _told(self, present: frozenset[int]) -> bytes:
        return hashlib.sha256(bits_of(present, self._seat.group.size)).digest()


def seal(
    seat: GroupPlace,
    update: np.ndarray,
    *,
    fixed: FixedPoint | NoisePoint,
    entropy: bytes,
    figures: np.ndarray | None = None,
) -> tuple[np.ndarray, bytes, SealedUpdate]:
    """Return the masked words of an update, the bytes that go to the leader with them, and the state that the device
    keeps. The masked words of ``figures`` are at the end of those bytes. Use ``entropy`` only once."""
    if len(entropy) != ENTROPY_BYTES:
        raise Misuse(f"sealing takes {ENTROPY_BYTES} random bytes, not {len(entropy)}")
    own, shares = entropy[:SEED_BYTES], entropy[64:]
    words = fixed.encode(update, factor=1.0, chance=rounding_of(entropy))
    label, near = seat.label, seat.group.near[seat.place]
    edges = {other: pair.edge_seed(seat.keys[other], label) for other in near}
    masks = [(pair.mask_key(seed, label), other < seat.place) for other, seed in edges.items()]
    masked = masked_figures(words, figures, [(pair.mask_key(own, label), False), *masks])
    return words, _seals(seat, own, edges, shares) + masked, SealedUpdate(seat)


def masked_figures(words: np.ndarray, figures: np.ndarray | None, masks: Sequence[tuple[bytes, bool]]) -> bytes:
    """Mask the words of an update in place. Return the words of its figures, masked with the next words of the
    streams."""
    add_all(words, masks)
    if figures is None:
        return b""
    masked = figures.copy()
    add_all(masked, masks, start=words.size)
    return masked.tobytes()


def rounding_of(entropy: bytes) -> bytes:
    """Return the part of the entropy that rounds the values and, in a private job, makes the noise."""
    return entropy[32:64]


def _seals(seat: GroupPlace, own: bytes, edges: Mapping[int, bytes], chance: bytes) -> bytes:
    label, near, needed = seat.label, seat.group.near[seat.place], seat.group.shape.threshold
    source, places = stream(chance), [other + 1 for other in near]
    size = CHANCE_BYTES * (needed - 1)
    own_shares = split(own, places, needed=needed, chance=source.update(bytes(size)))
    edge_shares = {
        other: split(seed, places, needed=needed, chance=source.update(bytes(size))) for other, seed in edges.items()
    }
    commits = [pair.commitment(seed, label) for seed in (own, *edges.values())]
    owns = [
        pair.close(seat.keys[to], label, seat.place, _OWN, share) for to, share in zip(near, own_shares, strict=True)
    ]
    others = [
        pair.close(
            seat.keys[to],
            label,
            seat.place,
            _EDGES,
            b"".join(shares[at] for other, shares in edge_shares.items() if other != to),
        )
        for at, to in enumerate(near)
    ]
    return b"".join((*commits, *owns, *others))


def _cut(parts: bytes, size: int) -> list[bytes]:
    return [parts[at : at + size] for at in range(0, len(parts), size)]
