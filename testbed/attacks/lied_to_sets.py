"""What a leader and the members that collude with it can take off masked words, if it shows members different sets.

The leader asks everybody everything, with each MAC and envelope that there is. Then it does the algebra: a sum of words
can be read if it has lost the mask of each member's own, and each edge between a member in it and one that is not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from shoal.roles.worker.worker import Worker
from shoal.sealing import pair
from shoal.sealing.graph import graph_seed
from shoal.sealing.group import MAC_BYTES, SEED_BYTES, bits_of, members_of
from shoal.sealing.label import Label
from shoal.sealing.shamir import SHARE_BYTES, candidates
from shoal.sealing.stream import add_all
from shoal.wire.messages import Agree, Agreed, Open, Opened
from testbed.attacks.lied_to import SealGroup

_NO_MAC = bytes(MAC_BYTES)


class Joined:
    """All that a leader and some members know of one group. Members are named by their places."""

    def __init__(self, group: SealGroup, label: Label, colluders: Iterable[int] = ()) -> None:
        self.group, self.graph = group, group.graph
        self.colluders = frozenset(colluders)
        self._label = label.digest()
        uploads = group.uploads
        self._words = {place: np.array(update.tensors["words"]) for place, update in uploads.items()}
        self._seals = {
            place: bytes(update.tensors["seals"].tobytes()[: group.graph.seals_bytes(place)])
            for place, update in uploads.items()
        }
        #: (who said it, for whom) -> the MAC, whatever set it is of.
        self._macs: dict[tuple[int, int], bytes] = {}
        self._edges: dict[frozenset[int], bytes] = {}
        #: Of whose own seed, or of whose edge to whom -> by whose place.
        self._shares: dict[tuple[int, int | None], dict[int, bytes]] = {}
        #: Members that opened their part.
        self.opened: set[int] = set()
        self._keys = {place: self._keys_of(place) for place in self.colluders & self._words.keys()}
        for place, keys in self._keys.items():
            self._collude(place, keys)

    def _keys_of(self, place: int) -> Mapping[int, bytes]:
        role = self.group.stage.devices[self.group.members[place].node].role
        assert isinstance(role, Worker)
        kept = role._sealing._kept
        return kept[1]._seat.keys if kept is not None else {}

    def _collude(self, place: int, keys: Mapping[int, bytes]) -> None:
        """All that a member can open with its keys."""
        for other in self.graph.near[place]:
            self._edges[frozenset((place, other))] = pair.edge_seed(keys[other], self._label)
            if other not in self._words:
                continue
            seals = self._seals[other]
            own = self.graph.own_envelope(other, seals, place)
            self._note(other, None, place, pair.unclose(keys[other], self._label, other, b"own", own))
            edges = pair.unclose(
                keys[other], self._label, other, b"edges", self.graph.edges_envelope(other, seals, place)
            )
            shared = [each for each in self.graph.near[other] if each != place]
            for at, each in enumerate(shared):
                self._note(other, each, place, edges[SHARE_BYTES * at :][:SHARE_BYTES])

    def _note(self, owner: int, edge_to: int | None, holder: int, share: bytes) -> None:
        self._shares.setdefault((owner, edge_to), {})[holder + 1] = share

    # Questions -------------------------------------------------------------------------------------------

    def ask(self, sets: Mapping[int, frozenset[int]]) -> None:
        """Tell each of these members a set of its own, and ask it to open that."""
        for place, present in sets.items():
            agree = Agree(**self.group.head, present=bits_of(present, self.graph.size))  # type: ignore[arg-type]
            if (agreed := self.group.ask(place, agree, Agreed)) is not None:
                for at, other in enumerate(self.graph.others(place, present)):
                    self._macs[place, other] = agreed.macs[MAC_BYTES * at :][:MAC_BYTES]
        for place, present in sets.items():
            self._ask_open(place, present)

    def _mac(self, sender: int, to: int, present: frozenset[int]) -> bytes:
        if (keys := self._keys.get(sender)) is not None:
            told = hashlib.sha256(bits_of(present, self.graph.size)).digest()
            return pair.agree_mac(keys[to], self._label, sender, told)
        return self._macs.get((sender, to), _NO_MAC)

    def _ask_open(self, place: int, present: frozenset[int]) -> None:
        graph, size = self.graph, self.graph.size
        near, absent = graph.present_near(place, present), graph.absent_near(place, present)
        seals = self._seals
        question = Open(
            **self.group.head,  # type: ignore[arg-type]
            macs=b"".join(self._mac(other, place, present) for other in graph.others(place, present)),
            envelopes=b"".join(graph.own_envelope(other, seals[other], place) for other in near),
            # As if all of them had vanished, so that it gives all that it ever would.
            vanished=bits_of(near, size),
            vanished_envelopes=b"".join(graph.edges_envelope(other, seals[other], place) for other in near),
        )
        if (opened := self.group.ask(place, question, Opened)) is None:
            return
        self.opened.add(place)
        for at, other in enumerate(near):
            self._note(other, None, place, opened.shares[SHARE_BYTES * at :][:SHARE_BYTES])
        for at, other in enumerate(absent):
            self._edges[frozenset((place, other))] = opened.edges[SEED_BYTES * at :][:SEED_BYTES]
        wanted = [(one, out) for one in members_of(opened.vanished, size) for out in graph.absent_near(one, present)]
        for at, (one, out) in enumerate(wanted):
            self._note(one, out, place, opened.vanished_edges[SHARE_BYTES * at :][:SHARE_BYTES])

    # Algebra ---------------------------------------------------------------------------------------------

    def own_of(self, place: int) -> bytes | None:
        """The seed of a member's own mask, if it is known."""
        return self._joined(place, None)

    def edge_of(self, one: int, other: int) -> bytes | None:
        if (seed := self._edges.get(frozenset((one, other)))) is not None:
            return seed
        for owner, to in ((one, other), (other, one)):
            if (seed := self._joined(owner, to)) is not None:
                self._edges[frozenset((one, other))] = seed
                return seed
        return None

    def _joined(self, owner: int, edge_to: int | None) -> bytes | None:
        shares, needed = self._shares.get((owner, edge_to), {}), self.graph.shape.threshold
        if len(shares) < needed:
            return None
        own, edges = self.graph.commitments(owner, self._seals[owner])
        commit = own if edge_to is None else edges[edge_to]
        for seed in candidates(shares, needed=needed):
            if pair.commitment(seed, self._label) == commit:
                return seed
        return None

    def lone(self, members: Iterable[int]) -> np.ndarray:
        """The sum of these members' updates, with every mask off that is known: noise, if one is not."""
        inside = frozenset(members)
        words = np.sum([self._words[place] for place in sorted(inside)], axis=0, dtype=self._words[min(inside)].dtype)
        masks: list[tuple[bytes, bool]] = []
        for place in inside:
            if (own := self.own_of(place)) is not None:
                masks.append((pair.mask_key(own, self._label), True))
            for other in self.graph.near[place]:
                if other not in inside and (edge := self.edge_of(place, other)) is not None:
                    masks.append((pair.mask_key(edge, self._label), place < other))
        add_all(words, masks)
        return np.asarray(self.group.fixed.decode(words, times=1.0), dtype=np.float64)

    def pieces(self) -> Iterator[frozenset[int]]:
        """The smallest sets of honest members whose sum can be read: the connected pieces of unknown edges."""
        left = set(self._words) - self.colluders
        honest = frozenset(left)
        while left:
            piece, edge = set[int](), {left.pop()}
            while edge:
                one = edge.pop()
                piece.add(one)
                near = set(self.graph.near[one]) & honest - piece
                edge |= {other for other in near if self.edge_of(one, other) is None}
            left -= piece
            silent = {other for one in piece for other in self.graph.near[one] if other not in self._words}
            if not silent and all(self.own_of(place) is not None for place in piece):
                yield frozenset(piece)


def ring_order(group: SealGroup) -> list[int]:
    """The places of a group in the order of its ring."""
    seed = graph_seed(tuple(one.nonce for one in group.members))
    return sorted(range(group.graph.size), key=lambda place: hashlib.sha256(seed + place.to_bytes(4, "big")).digest())
