"""One update sealed under one label: its masks, and what the device may still say of it. Pure; chance is an argument.

The promise of a device, whatever a leader asks: under a label it agrees to one set of members, and says nothing but
that until enough members of the whole group prove that they agreed to the same set. What it gives then follows from
that set only: shares of the own seeds of members in the set, and edges to members outside it.
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

#: The chance that sealing one update takes: the device's own seed, the rounding, and the shares.
ENTROPY_BYTES = 96

_OWN, _EDGES = b"own", b"edges"


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """A device's place in a group, and the secrets that it shares with the other members."""

    group: MaskGraph
    place: int
    label: bytes
    #: Other member -> the key of the two. Where a helper opens sums, a device shares none with other members.
    keys: Mapping[int, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        others = set(range(self.group.size)) - {self.place} if self.group.near[self.place] else set()
        if set(self.keys) != others:
            raise Misuse("a seat has a key for each other member")


class SealedUpdate:
    """What a device keeps of an update that it sealed. Its words are sent and not kept."""

    def __init__(self, seat: GroupPlace) -> None:
        self._seat = seat
        #: The set that this device agreed to.
        self._present: frozenset[int] | None = None
        #: The places that the words are of; None: all.
        self.places: np.ndarray | None = None

    @property
    def size(self) -> int:
        """Members of the group."""
        return self._seat.group.size

    def envelopes_of(self, members: tuple[int, ...], joined: bytes) -> dict[int, bytes]:
        """The envelopes with edges of these members, which came in one piece."""
        sizes = [self._seat.group.edges_bytes(member) for member in members]
        if sum(sizes) != len(joined):
            raise PeerViolation("edges of another size than this group's")
        ends = list(accumulate(sizes))
        return {member: joined[end - size : end] for member, size, end in zip(members, sizes, ends, strict=True)}

    def agree(self, present: frozenset[int]) -> bytes:
        """Agree that the sum is of these members: a MAC for each other of them, in order. Once: another set is refused,
        the same is answered alike."""
        seat, group = self._seat, self._seat.group
        if self._present is not None and present != self._present:
            raise PeerViolation("another set of members than the one that this device agreed to")
        if seat.place not in present or not present <= frozenset(range(group.size)):
            raise PeerViolation("a set that this device is not in, or of members that there are not")
        if len(present) < group.least:
            raise PeerViolation(f"a sum of {len(present)} members, where at least {group.least} hide each other")
        self._present = present
        told = self._told(present)
        return b"".join(
            pair.agree_mac(seat.keys[other], seat.label, seat.place, told)
            for other in group.others(seat.place, present)
        )

    def open(self, macs: bytes, envelopes: bytes, vanished: Mapping[int, bytes]) -> OpenedPart:
        """Open this device's part of the sum that it agreed to, once enough members prove that they agreed to the same.
        A leader may ask again for neighbours that vanished since: what is given follows from that one set.

        ``macs``: what each other member that is present agreed to, in order, zeros for one that said nothing;
        ``envelopes``: those of present neighbours to this device, in order; ``vanished``: those with shares of edges of
        neighbours that vanished after their upload.
        """
        seat, group, present = self._seat, self._seat.group, self._present
        if present is None:
            raise PeerViolation("asked to open before anybody agreed on what")
        near, others = group.present_near(seat.place, present), group.others(seat.place, present)
        if len(macs) != MAC_BYTES * len(others) or len(envelopes) != (SHARE_BYTES + TAG_BYTES) * len(near):
            raise PeerViolation("an opening of another size than this group's")
        told = self._told(present)
        agreed = 1 + sum(
            pair.is_mac(part, seat.keys[other], seat.label, other, told)
            for other, part in zip(others, _cut(macs, MAC_BYTES), strict=True)
        )
        if agreed < group.shape.agreed:
            raise PeerViolation(
                f"{agreed} of at least {group.shape.agreed} members were told of the same set: the leader shows devices"
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
            raise PeerViolation("edges of a member that is no neighbour in the sum")
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
    """The masked words of an update, what goes to the leader with them, and what the device keeps. The masked words of
    ``figures`` come last in what goes with them. ``entropy`` is used once."""
    if len(entropy) != ENTROPY_BYTES:
        raise Misuse(f"sealing takes {ENTROPY_BYTES} bytes of chance, not {len(entropy)}")
    own, shares = entropy[:SEED_BYTES], entropy[64:]
    words = fixed.encode(update, factor=1.0, chance=rounding_of(entropy))
    label, near = seat.label, seat.group.near[seat.place]
    edges = {other: pair.edge_seed(seat.keys[other], label) for other in near}
    masks = [(pair.mask_key(seed, label), other < seat.place) for other, seed in edges.items()]
    masked = masked_figures(words, figures, [(pair.mask_key(own, label), False), *masks])
    return words, _seals(seat, own, edges, shares) + masked, SealedUpdate(seat)


def masked_figures(words: np.ndarray, figures: np.ndarray | None, masks: Sequence[tuple[bytes, bool]]) -> bytes:
    """Mask the words of an update in place, and return those of its figures masked by what follows in the streams."""
    add_all(words, masks)
    if figures is None:
        return b""
    masked = figures.copy()
    add_all(masked, masks, start=words.size)
    return masked.tobytes()


def rounding_of(entropy: bytes) -> bytes:
    """The part of what sealing takes that values are rounded with, and that noise is drawn from."""
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
