"""The words of a group that went to aggregators: who has which, their sums, and which members those are of.

A part of the leader's sealing. An aggregator sums words up and knows no mask. Its sum is worth something only if it is
known to the last word whose it is: a member counts if all aggregators that have its words summed them up, and a sum
counts if every member in it does. So every part of the whole is of the same members, and devices are asked to open the
sum for exactly these. All sums are at the leader before any device agrees to anything: from then on an aggregator may
be lost, and nothing is lost with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.errors import PeerViolation
from shoal.wire.messages import ReduceResult


@dataclass(frozen=True, slots=True)
class WordsSum:
    """The sum of an aggregator, and the leases in it."""

    leases: frozenset[int]
    words: np.ndarray = field(repr=False, compare=False)


def counted(
    hops: Mapping[int, Collection[str]], sums: Mapping[str, WordsSum]
) -> tuple[frozenset[int], dict[str, WordsSum]]:
    """The leases whose words are whole in these sums, by the aggregators that each went to; and the sums with
    only such leases. A sum with any other lease in it cannot be used, and then others may be of use no longer."""
    kept = dict(sums)
    while True:
        whole = frozenset(
            lease
            for lease, nodes in hops.items()
            if nodes and all(node in kept and lease in kept[node].leases for node in nodes)
        )
        usable = {node: each for node, each in kept.items() if each.leases <= whole}
        if len(usable) == len(kept):
            return whole, kept
        kept = usable


class GroupSums:
    """The sums of one group, from its binding on."""

    def __init__(self, formation: int, parts: Mapping[str, slice], hops: Mapping[int, tuple[str, ...]]) -> None:
        #: The formation that words go by, or 0 if all words of this group go straight to the leader.
        self.formation = formation
        #: Aggregator -> its part of the model, as it was when the group was bound.
        self._parts = dict(parts)
        #: Lease -> the aggregators that its words go to.
        self._hops = dict(hops)
        #: Aggregator -> the leases that it was asked to sum up.
        self.asked: dict[str, tuple[int, ...]] = {}
        self.asked_s = 0.0
        self._came: dict[str, WordsSum] = {}
        #: Aggregators whose sum does not come any more.
        self.lost: set[str] = set()

    def goes_by(self, lease: int) -> int:
        """Return the formation that the words of this lease go by, or 0 if they go straight to the leader."""
        return self.formation if lease in self._hops else 0

    def ask(self, reported: Collection[int], *, now_s: float) -> dict[str, tuple[int, ...]]:
        """Return what each aggregator has to sum up, now that it is known whose words came there."""
        self.asked_s = now_s
        for node in self._parts:
            leases = tuple(sorted(lease for lease in reported if node in self._hops.get(lease, ())))
            if leases:
                self.asked[node] = leases
        return self.asked

    @property
    def awaited(self) -> list[str]:
        return [node for node in self.asked if node not in self._came and node not in self.lost]

    def on_reduce_result(self, sender: str, message: ReduceResult, words_type: np.dtype[np.unsignedinteger]) -> None:
        """Raises PeerViolation for anything but the sum of words that this aggregator was asked for."""
        part, asked, words = self._parts[sender], self.asked[sender], message.tensors.get("words")
        leases = frozenset(message.leases)
        if not leases or not leases <= set(asked) or len(leases) != len(message.leases):
            raise PeerViolation(f"its sum is of leases {message.leases[:8]}; it was asked about {asked[:8]}")
        if list(message.tensors) != ["words"] or words is None or words.dtype != words_type:
            raise PeerViolation(f"its sum is not one tensor 'words' of {words_type}")
        if words.shape != (part.stop - part.start,):
            raise PeerViolation(f"its sum has the shape {words.shape}; its share has {part.stop - part.start} words")
        self._came[sender] = WordsSum(leases, np.array(words))

    @property
    def lacking(self) -> set[int]:
        """Leases that a worker reported and that an aggregator which answered does not have."""
        return {lease for node, each in self._came.items() for lease in self.asked[node] if lease not in each.leases}

    def settle(self, total: np.ndarray) -> frozenset[int]:
        """Add the sums that can be used to what came straight here. Returns the leases in them."""
        whole, sums = counted({lease: self._hops[lease] for each in self.asked.values() for lease in each}, self._came)
        for node, each in sorted(sums.items()):
            part = total[self._parts[node]]
            np.add(part, each.words, out=part)
        self._came.clear()
        return whole
