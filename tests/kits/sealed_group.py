"""A group of devices that seal updates, and its leader, without a network: for tests of the protocol itself."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from shoal.sealing import pair
from shoal.sealing.device import ENTROPY_BYTES, GroupPlace, SealedUpdate, seal
from shoal.sealing.fixed import FixedPoint, word_type
from shoal.sealing.graph import shape_of
from shoal.sealing.group import MaskGraph
from shoal.sealing.label import Label
from shoal.sealing.opening import SumOpening, unmask


def drawn(seed: int, what: str, size: int) -> bytes:
    """So many bytes that are the same in every run."""
    made, count = b"", 0
    while len(made) < size:
        made += hashlib.sha256(f"{seed} {what} {count}".encode()).digest()
        count += 1
    return made[:size]


class SealedGroup:
    def __init__(
        self,
        devices: int,
        *,
        seed: int = 0,
        least: int = 3,
        colluding: float = 0.0,
        lost: float = 0.3,
        bits: int = 32,
    ) -> None:
        self.seed = seed
        self.names = [f"device-{place:03}" for place in range(devices)]
        self.private = [drawn(seed, f"private {name}", 32) for name in self.names]
        self.members = tuple((name, pair.public_of(key)) for name, key in zip(self.names, self.private, strict=True))
        nonces = tuple(drawn(seed, f"nonce {name}", 16) for name in self.names)
        liars = math.ceil(round(devices * colluding, 9))
        self.group = MaskGraph.of(shape_of(devices, liars, lost), nonces, least=least)
        self.fixed = FixedPoint(bound=3, devices=devices, bits=bits)

    def label(self, **changed: object) -> Label:
        fields: dict[str, object] = {
            "origin": "herd",
            "job": "job",
            "term": 1,
            "formation": 0,
            "group": 1,
            "members": self.members,
            "bound": self.fixed.bound,
            "weight_most": 1,
            "base": bytes(32),
        }
        return Label(**{**fields, **changed})  # type: ignore[arg-type]

    def seat(self, place: int, label: bytes) -> GroupPlace:
        keys = {
            other: pair.pair_key(self.private[place], self.members[place], self.members[other])
            for other in range(len(self.members))
            if other != place
        }
        return GroupPlace(self.group, place, label, keys)

    def sealed(
        self, place: int, update: np.ndarray, label: bytes, *, again: int = 0
    ) -> tuple[np.ndarray, bytes, SealedUpdate]:
        entropy = drawn(self.seed, f"entropy {place} {again} {label.hex()}", ENTROPY_BYTES)
        return seal(self.seat(place, label), update, fixed=self.fixed, entropy=entropy)

    def encoded(self, place: int, update: np.ndarray, label: bytes) -> np.ndarray:
        """What the device adds masks to."""
        entropy = drawn(self.seed, f"entropy {place} 0 {label.hex()}", ENTROPY_BYTES)
        return self.fixed.encode(update, factor=1.0, chance=entropy[32:64])


def updates_of(devices: int, size: int, *, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 0.1, size).astype(np.float32) for _ in range(devices)]


def ask(opening: SumOpening, states: dict[int, SealedUpdate], member: int) -> None:
    """Have one member open its part."""
    request = opening.request(member)
    vanished = states[member].envelopes_of(request.vanished, request.vanished_envelopes)
    part = states[member].open(request.macs, request.envelopes, vanished)
    opening.on_opened(member, part, request.vanished)


def run(
    party: SealedGroup,
    updates: list[np.ndarray],
    *,
    before_upload: frozenset[int] = frozenset(),
    before_agree: frozenset[int] = frozenset(),
    before_open: frozenset[int] = frozenset(),
) -> tuple[np.ndarray, np.ndarray] | None:
    """The opened sum and the true one; None: too few are left, and nothing was opened."""
    label = party.label().digest()
    total, truth = (np.zeros(updates[0].size, word_type(party.fixed.bits)) for _ in range(2))
    states: dict[int, SealedUpdate] = {}
    seals: dict[int, bytes] = {}
    for place in range(len(updates)):
        if place not in before_upload:
            words, seals[place], states[place] = party.sealed(place, updates[place], label)
            total += words
            truth += party.encoded(place, updates[place], label)
    if len(seals) < party.group.least:
        return None
    opening = SumOpening(party.group, seals, label)
    for place in sorted(opening.present - before_agree):
        opening.on_agreed(place, states[place].agree(opening.present))
    if not opening.may_open:
        return None
    opening.begin()
    for place in sorted(opening.agreed - before_open):
        ask(opening, states, place)
    if not opening.is_enough and opening.begin_again():
        for place in sorted(opening.opened):
            ask(opening, states, place)
    if not opening.is_enough:
        return None
    unmask(total, opening.masks(), label)
    return total, truth
