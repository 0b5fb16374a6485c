"""Sums that a helper opens: exact for any set of uploads, and no envelope opens for anything but its own label."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealed_group import SealedGroup, drawn, updates_of

from shoal.errors import PeerViolation
from shoal.sealing import pair
from shoal.sealing.device import ENTROPY_BYTES, rounding_of
from shoal.sealing.group import HELPER_ENVELOPE_BYTES
from shoal.sealing.helped import seal_for_helper, sum_of_masks

SIZE = 137
PRIVATE = drawn(0, "helper", 32)
HELPER = ("helper", pair.public_of(PRIVATE))


class Helped:
    """Devices that seal for one helper under one label."""

    def __init__(self, devices: int, *, seed: int, bits: int = 32, **changed: object) -> None:
        self.party = SealedGroup(devices, seed=seed, bits=bits)
        self.label = self.party.label(**changed).digest()
        self.bits, self.seed = bits, seed
        self.keys = {place: pair.pair_key(PRIVATE, HELPER, member) for place, member in enumerate(self.party.members)}

    def entropy(self, place: int) -> bytes:
        return drawn(self.seed, f"entropy {place} {self.label.hex()}", ENTROPY_BYTES)

    def sealed(self, place: int, update: np.ndarray) -> tuple[np.ndarray, bytes]:
        key = pair.pair_key(self.party.private[place], self.party.members[place], HELPER)
        return seal_for_helper(
            update,
            key=key,
            label=self.label,
            place=place,
            fixed=self.party.fixed,
            entropy=self.entropy(place),
        )

    def masks(self, envelopes: dict[int, bytes]) -> np.ndarray:
        return sum_of_masks(self.keys, envelopes, self.label, words=SIZE, bits=self.bits)


@given(
    devices=st.integers(3, 12),
    bits=st.sampled_from((16, 32)),
    seed=st.integers(0, 1 << 20),
    came=st.sets(st.integers(0, 11), min_size=1),
)
def test_the_sum_of_whichever_uploads_came_is_exact(devices: int, bits: int, seed: int, came: set[int]) -> None:
    helped = Helped(devices, seed=seed, bits=bits)
    present = sorted(place for place in came if place < devices)
    updates = updates_of(devices, SIZE, seed=seed)
    sealed = {place: helped.sealed(place, updates[place]) for place in present}
    total = sum((words for words, _ in sealed.values()), np.zeros(SIZE, f"<u{bits // 8}"))
    opened = total - helped.masks({place: envelope for place, (_, envelope) in sealed.items()})
    chances = {place: rounding_of(helped.entropy(place)) for place in present}
    plain = (helped.party.fixed.encode(updates[place], factor=1.0, chance=chances[place]) for place in present)
    assert np.array_equal(opened, sum(plain, np.zeros_like(total)))


@pytest.mark.parametrize("bits", [32, 16])
def test_an_upload_is_uniform_and_tells_nothing_of_its_update(bits: int) -> None:
    words, envelope = Helped(6, seed=0, bits=bits).sealed(0, np.zeros(100_000, np.float32))
    assert len(envelope) == HELPER_ENVELOPE_BYTES
    counts = np.bincount(words.view(np.uint8), minlength=256)
    chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    # 255 degrees of freedom: between these in all but one case of a million.
    assert 160 < chi_square < 380


@pytest.mark.parametrize(
    "changed",
    [
        {"term": 2},
        {"group": 2},
        {"job": "another"},
        {"base": b"\1" * 32},
        {"places": b"\1" * 32},
        {"origin": "another"},
        {"bound": 4},
    ],
)
def test_an_envelope_opens_under_its_own_label_alone(changed: dict[str, object]) -> None:
    own, other = Helped(4, seed=1), Helped(4, seed=1, **changed)
    _, envelope = own.sealed(2, np.zeros(SIZE, np.float32))
    assert own.masks({2: envelope}).any()
    with pytest.raises(PeerViolation, match="member 2 did not close for this group"):
        other.masks({2: envelope})


@given(at=st.integers(0, HELPER_ENVELOPE_BYTES - 1), place=st.integers(0, 3))
def test_an_envelope_of_another_device_or_with_a_bit_changed_does_not_open(at: int, place: int) -> None:
    helped = Helped(4, seed=2)
    _, envelope = helped.sealed(1, np.zeros(SIZE, np.float32))
    spoilt = envelope[:at] + bytes([envelope[at] ^ 1]) + envelope[at + 1 :]
    with pytest.raises(PeerViolation):
        helped.masks({1: spoilt})
    if place != 1:
        with pytest.raises(PeerViolation):
            helped.masks({place: envelope})


def test_a_helper_that_began_again_opens_nothing_of_before() -> None:
    helped = Helped(4, seed=3)
    _, envelope = helped.sealed(0, np.zeros(SIZE, np.float32))
    private = drawn(1, "helper", 32)
    mine = ("helper", pair.public_of(private))
    helped.keys = {place: pair.pair_key(private, mine, member) for place, member in enumerate(helped.party.members)}
    with pytest.raises(PeerViolation):
        helped.masks({0: envelope})
