"""A leader that shows devices different sets of members, at the functions of the protocol: what it recovers of one
update is noise."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from sealed_group import SealedGroup, updates_of

from shoal.errors import PeerViolation
from shoal.sealing import pair
from shoal.sealing.device import SealedUpdate
from shoal.sealing.group import MAC_BYTES, SEED_BYTES, bits_of
from shoal.sealing.shamir import SHARE_BYTES, join
from shoal.sealing.stream import add_all

pytestmark = pytest.mark.timeout(120)

#: Values of an update: those of the tests are at most about 0.5, and a word of noise is hundreds.
VALUES = 200
NOISE_LEAST = 10.0


class SplitLeader:
    """Tells most members of all updates, and a few others each of a set without the target. It has everything that
    colluding members know: their MACs for any set, their edges and their shares."""

    def __init__(self, devices: int, colluders: int, *, share: float, is_counted: bool = True) -> None:
        """``is_counted``: devices count how many members agreed to the same set."""
        self.group = SealedGroup(devices, seed=devices, least=8, colluding=share)
        agreed = self.group.group.shape.agreed
        if not is_counted:
            self.group.group = replace(self.group.group, shape=replace(self.group.group.shape, agreed=1))
        self.updates, self.label = updates_of(devices, VALUES), self.group.label().digest()
        sealed = [self.group.sealed(place, update, self.label) for place, update in enumerate(self.updates)]
        self.words = [words for words, *_ in sealed]
        self.seals = [seals for _, seals, _ in sealed]
        self.states: list[SealedUpdate] = [state for *_, state in sealed]
        self.bad = frozenset(range(colluders))
        graph = self.group.group
        honest = [place for place in range(devices) if place not in self.bad]
        misled = honest[: devices - agreed]
        self.target = misled[0]
        everybody = frozenset(range(devices))
        self.sets = dict.fromkeys(range(devices), everybody)
        for place in misled:
            others = [*self.bad, *(each for each in honest if each not in (place, self.target))]
            self.sets[place] = frozenset([place, *others[: graph.least - 1]])
        self.macs: dict[int, bytes] = {}
        self.shares: dict[int, bytes] = {}
        self.edges: dict[int, bytes] = {}
        self.refused = 0

    def _key(self, one: int, other: int) -> bytes:
        members = self.group.members
        return pair.pair_key(self.group.private[one], members[one], members[other])

    def _mac(self, sender: int, to: int) -> bytes:
        graph, told = self.group.group, self.sets[to]
        if sender in self.bad:
            digest = hashlib.sha256(bits_of(told, graph.size)).digest()
            return pair.agree_mac(self._key(sender, to), self.label, sender, digest)
        if sender not in self.macs or to not in self.sets[sender]:
            return bytes(MAC_BYTES)
        return self.macs[sender][MAC_BYTES * graph.others(sender, self.sets[sender]).index(to) :][:MAC_BYTES]

    def asks(self) -> None:
        graph, target = self.group.group, self.target
        honest = [place for place in range(graph.size) if place not in self.bad]
        for place in honest:
            try:
                self.macs[place] = self.states[place].agree(self.sets[place])
            except PeerViolation:
                self.refused += 1
        for place in honest:
            present = self.sets[place]
            near = graph.present_near(place, present)
            macs = b"".join(self._mac(other, place) for other in graph.others(place, present))
            envelopes = b"".join(graph.own_envelope(other, self.seals[other], place) for other in near)
            vanished = {other: graph.edges_envelope(other, self.seals[other], place) for other in near}
            try:
                part = self.states[place].open(macs, envelopes, vanished)
            except PeerViolation:
                self.refused += 1
                continue
            if target in near:
                self.shares[place + 1] = part.shares[SHARE_BYTES * near.index(target) :][:SHARE_BYTES]
            for at, other in enumerate(graph.absent_near(place, present)):
                if target in (place, other):
                    self.edges[other if place == target else place] = part.edges[SEED_BYTES * at :][:SEED_BYTES]

    def recovered(self) -> np.ndarray:
        """The target's update as far as masks can be taken off."""
        graph, target, words = self.group.group, self.target, self.words[self.target].copy()
        known = dict(self.edges)
        for place in self.bad & set(graph.near[target]):
            known[place] = pair.edge_seed(self._key(place, target), self.label)
            envelope = graph.own_envelope(target, self.seals[target], place)
            self.shares[place + 1] = pair.unclose(self._key(place, target), self.label, target, b"own", envelope)
        needed = graph.shape.threshold
        own = join(dict(sorted(self.shares.items())[:needed])) if len(self.shares) >= needed else None
        masks = [(pair.mask_key(seed, self.label), other > target) for other, seed in known.items()]
        if own is not None:
            masks.append((pair.mask_key(own, self.label), True))
        add_all(words, masks)
        return self.group.fixed.decode(words, times=1.0)


@pytest.mark.parametrize(
    ("devices", "colluders"), [(16, 0), (16, 2), (24, 0), (24, 3), (32, 0), (32, 4), (64, 0), (64, 7)]
)
def test_sets_that_differ_give_noise(devices: int, colluders: int) -> None:
    leader = SplitLeader(devices, colluders, share=0.1)
    leader.asks()
    off = float(np.abs(leader.recovered() - leader.updates[leader.target]).max())
    assert off > NOISE_LEAST
    assert leader.refused > 0


def test_a_group_of_eight_has_no_set_to_hide_a_target_in() -> None:
    """All eight have to be in the sum, so that every set without the target is refused at once."""
    leader = SplitLeader(8, 0, share=0.1)
    assert leader.group.group.least == 8
    with pytest.raises(PeerViolation, match="at least 8"):
        leader.states[1].agree(frozenset(range(1, 8)))


def test_the_attack_works_where_nobody_counts_who_agreed() -> None:
    """Without that check the same leader reads one update: this is what it is for."""
    leader = SplitLeader(24, 3, share=0.1, is_counted=False)
    leader.asks()
    off = float(np.abs(leader.recovered() - leader.updates[leader.target]).max())
    assert off < 1e-4
