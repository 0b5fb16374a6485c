"""Sealed updates at an aggregator: masked words, which it adds up modulo 2^32 or 2^16 without the masks.

Words look like noise to it, and so does their sum: there is no norm to check and nothing to decode. A sum is of the
leases that the leader names and of no other piece, since the leader opens it for exactly these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.errors import PeerViolation
from shoal.sealing.fixed import word_type
from shoal.wire.messages import UpdateShard


@dataclass(frozen=True, slots=True)
class _Piece:
    group: int
    lease: int
    words: np.ndarray


class SealedTray:
    def __init__(self, size: int, bits: int) -> None:
        self._size = size
        self._type = word_type(bits)
        #: Member -> its piece of the newest group. Groups of a leader grow, and formations belong to one leader.
        self._pieces: dict[str, _Piece] = {}
        #: Pieces of groups up to this number were summed up, or are of no use any more.
        self._summed = 0

    def take(self, member: str, shard: UpdateShard) -> None:
        """Keep a piece; a late copy of an older one is not kept. Raises PeerViolation for what is none."""
        words = shard.tensors.get("words")
        if list(shard.tensors) != ["words"] or words is None or words.dtype != self._type:
            raise PeerViolation(f"a piece of a sealed update is one tensor words of {self._type}")
        if words.shape != (self._size,) or shard.group < 1:
            raise PeerViolation(f"a piece of {words.shape} words of group {shard.group}; the part has {self._size}")
        kept = self._pieces.get(member)
        if shard.group > self._summed and (kept is None or shard.group > kept.group):
            # A copy: the driver uses the memory of a message again for the next one.
            self._pieces[member] = _Piece(shard.group, shard.lease, np.array(words))

    def total(self, group: int, leases: Sequence[int]) -> tuple[tuple[int, ...], np.ndarray]:
        """The leases of this group among these whose pieces are here, and the sum of them. It is made once: pieces of
        this group and of older ones are gone then."""
        wanted, total = set(leases), np.zeros(self._size, dtype=self._type)
        found = []
        for _, piece in sorted(self._pieces.items()):
            if piece.group == group and piece.lease in wanted:
                np.add(total, piece.words, out=total)
                found.append(piece.lease)
        self._summed = max(self._summed, group)
        self._pieces = {member: piece for member, piece in self._pieces.items() if piece.group > group}
        return tuple(found), total
