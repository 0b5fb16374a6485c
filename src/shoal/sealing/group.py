"""A group as its members and its leader compute it: places, neighbours, threshold, and sizes of messages.

Pure, and without a secret. Sets of members cross the wire as bits, in the order of places.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.errors import PeerViolation
from shoal.sealing.graph import GraphShape, graph_seed, neighbours_of
from shoal.sealing.shamir import SHARE_BYTES

#: Bytes of a seed, a MAC, a commitment and an envelope's tag. ``pair`` has the same sizes but loads a crypto library.
SEED_BYTES = MAC_BYTES = COMMIT_BYTES = TAG_BYTES = 16

#: Bytes of the envelope with a device's seed, which only the helper can open.
HELPER_ENVELOPE_BYTES = SEED_BYTES + TAG_BYTES


def bits_of(members: Iterable[int], size: int) -> bytes:
    """Return a set of places as bits."""
    bits = bytearray((size + 7) // 8)
    for member in members:
        bits[member // 8] |= 1 << member % 8
    return bytes(bits)


def members_of(bits: bytes, size: int) -> tuple[int, ...]:
    """Return the places that the bits name. Raises PeerViolation if there are too few or too many bits."""
    if len(bits) != (size + 7) // 8 or (size % 8 and bits[-1] >> size % 8):
        raise PeerViolation(f"{len(bits)} bytes name members of a group of {size}")
    return tuple(member for member in range(size) if bits[member // 8] >> member % 8 & 1)


@dataclass(frozen=True, slots=True)
class OpenedPart:
    """A member's answer to the request to open its part of a sum."""

    #: Shares of the own seeds of neighbours that are in the sum, in order.
    shares: bytes = field(repr=False)
    #: The seed of its edge to each neighbour that is not in the sum, in order.
    edges: bytes = field(repr=False)
    #: For each vanished neighbour, in order: shares of those of its edges that do not cancel.
    vanished_edges: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MaskGraph:
    """The members of one sealed sum and who masks with whom."""

    shape: GraphShape
    #: Fewest members of a sum that may be opened.
    least: int
    #: Place -> the places of its neighbours, in order.
    near: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, shape: GraphShape, nonces: tuple[bytes, ...], *, least: int) -> MaskGraph:
        """Build the graph. ``least`` is the plan's fewest members of a sum; the shape may ask for more."""
        return cls(shape, shape.least(least), neighbours_of(shape, graph_seed(nonces)))

    @property
    def size(self) -> int:
        return self.shape.devices

    def seals_bytes(self, place: int, *, is_summed_elsewhere: bool = False) -> int:
        """Return the bytes that an upload has in addition to its words: commitments, and envelopes for each
        neighbour. ``is_summed_elsewhere``: aggregators get its words."""
        near = len(self.near[place])
        if not near:
            # Only the envelope for the helper, and the seed of the cover.
            return HELPER_ENVELOPE_BYTES + SEED_BYTES * is_summed_elsewhere
        return COMMIT_BYTES * (1 + near) + near * (SHARE_BYTES + TAG_BYTES) + near * self.edges_bytes(place)

    def edges_bytes(self, place: int) -> int:
        """Return the size of an envelope with shares of this member's edges."""
        return SHARE_BYTES * (len(self.near[place]) - 1) + TAG_BYTES

    def commitments(self, place: int, seals: bytes) -> tuple[bytes, dict[int, bytes]]:
        """Return the commitments to the member's own seed, and to its edges by neighbour."""
        own, at = seals[:COMMIT_BYTES], COMMIT_BYTES
        edges = {}
        for other in self.near[place]:
            edges[other] = seals[at : at + COMMIT_BYTES]
            at += COMMIT_BYTES
        return own, edges

    def own_envelope(self, place: int, seals: bytes, to: int) -> bytes:
        """Return the envelope with a share of the member's own seed."""
        near = self.near[place]
        size = SHARE_BYTES + TAG_BYTES
        at = COMMIT_BYTES * (1 + len(near)) + size * near.index(to)
        return seals[at : at + size]

    def edges_envelope(self, place: int, seals: bytes, to: int) -> bytes:
        """Return the envelope with shares of the member's edges."""
        near = self.near[place]
        size = self.edges_bytes(place)
        at = (COMMIT_BYTES + SHARE_BYTES + TAG_BYTES) * len(near) + COMMIT_BYTES + size * near.index(to)
        return seals[at : at + size]

    def others(self, place: int, present: frozenset[int]) -> tuple[int, ...]:
        """Return all other members in the sum, neighbours or not."""
        return tuple(sorted(present - {place}))

    def absent_near(self, place: int, present: frozenset[int]) -> tuple[int, ...]:
        """Return this member's neighbours that are not in the sum. The edges to them do not cancel."""
        return tuple(other for other in self.near[place] if other not in present)

    def present_near(self, place: int, present: frozenset[int]) -> tuple[int, ...]:
        return tuple(other for other in self.near[place] if other in present)
