"""Sealed sums: exact for any losses above the threshold, uniform words, devices that refuse what would tell more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sealed_group import SealedGroup, ask, drawn, run, updates_of

from shoal.errors import PeerViolation
from shoal.sealing import pair
from shoal.sealing.fixed import BOUND_ABOVE, BOUND_MAX, FixedPoint, bound_after, word_type
from shoal.sealing.opening import SumOpening, unmask
from shoal.sealing.shamir import SHARE_BYTES, candidates, join, split

SIZE = 137


@given(
    devices=st.integers(3, 12),
    bits=st.sampled_from((16, 32)),
    seed=st.integers(0, 1 << 20),
    fates=st.lists(st.sampled_from((0, 0, 0, 0, 0, 1, 2, 3)), min_size=12, max_size=12),
)
def test_the_sum_is_exact_whatever_is_lost_at_any_phase_or_nothing_is_opened(
    devices: int, bits: int, seed: int, fates: list[int]
) -> None:
    party = SealedGroup(devices, seed=seed, bits=bits)
    lost = [frozenset(place for place in range(devices) if fates[place] == fate) for fate in (1, 2, 3)]
    opened = run(
        party, updates_of(devices, SIZE, seed=seed), before_upload=lost[0], before_agree=lost[1], before_open=lost[2]
    )
    left = devices - sum(map(len, lost))
    if left > party.group.shape.threshold:
        assert opened is not None
    if opened is not None:
        assert np.array_equal(*opened)


@pytest.mark.parametrize("lost", [0, 4])
def test_a_large_group_masks_with_neighbours_alone_and_is_exact(lost: int) -> None:
    party = SealedGroup(48, seed=3, colluding=0.1)
    assert not party.group.shape.is_complete
    some = [frozenset(range(at, at + lost)) for at in (0, 10, 20)]
    opened = run(party, updates_of(48, SIZE), before_upload=some[0], before_agree=some[1], before_open=some[2])
    assert opened is not None
    assert np.array_equal(*opened)


@given(devices=st.integers(3, 9), seed=st.integers(0, 1 << 20), order=st.randoms(use_true_random=False))
def test_words_add_up_to_the_same_bits_in_any_order_and_shape(devices: int, seed: int, order: object) -> None:
    party, label = SealedGroup(devices, seed=seed), SealedGroup(devices, seed=seed).label().digest()
    words = [party.sealed(place, each, label)[0] for place, each in enumerate(updates_of(devices, SIZE, seed=seed))]
    star = np.sum(words, axis=0, dtype="<u4")
    groups = [np.sum(words[at::2], axis=0, dtype="<u4") for at in range(2)]
    mixed = list(words)
    order.shuffle(mixed)  # type: ignore[attr-defined]
    chain = mixed.pop()
    while mixed:
        chain = chain + mixed.pop()
    assert np.array_equal(star, groups[0] + groups[1])
    assert np.array_equal(star, chain)


@pytest.mark.parametrize("bits", [32, 16])
def test_an_upload_is_uniform_and_tells_nothing_of_its_update(bits: int) -> None:
    party = SealedGroup(6, bits=bits)
    label = party.label().digest()
    words, _, _ = party.sealed(0, np.zeros(100_000, np.float32), label)
    assert words.nbytes == 100_000 * bits // 8
    counts = np.bincount(words.view(np.uint8), minlength=256)
    chi_square = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    # 255 degrees of freedom: between these in all but one case of a million.
    assert 160 < chi_square < 380


@pytest.mark.parametrize("bits", [32, 16])
def test_a_part_is_unmasked_alone_to_the_same_bits(bits: int) -> None:
    """ChaCha20 begins at any block: an aggregator that holds a part of a sum makes that part of the masks."""
    party, updates = SealedGroup(5, bits=bits), updates_of(5, 1001)
    label = party.label().digest()
    made = [party.sealed(place, update, label) for place, update in enumerate(updates)]
    total = np.sum([words for words, _, _ in made], axis=0, dtype=word_type(bits))
    opening = SumOpening(party.group, {place: seals for place, (_, seals, _) in enumerate(made)}, label)
    states = {place: state for place, (_, _, state) in enumerate(made)}
    _agree_all(opening, states)
    for place in range(5):
        ask(opening, states, place)
    whole = total.copy()
    unmask(whole, opening.masks(), label)
    for start, stop in ((0, 33), (33, 700), (700, 1001)):
        part = total[start:stop].copy()
        unmask(part, opening.masks(), label, start=start)
        assert np.array_equal(part, whole[start:stop])


def _agree_all(opening: SumOpening, states: dict[int, object]) -> None:
    for place in sorted(opening.present):
        opening.on_agreed(place, states[place].agree(opening.present))  # type: ignore[attr-defined]
    opening.begin()


def _uploads(party: SealedGroup, devices: int) -> tuple[bytes, dict[int, bytes], dict[int, object]]:
    label = party.label().digest()
    made = [party.sealed(place, update, label) for place, update in enumerate(updates_of(devices, SIZE))]
    return label, {p: seals for p, (_, seals, _) in enumerate(made)}, {p: state for p, (_, _, state) in enumerate(made)}


def test_a_split_view_is_refused() -> None:
    """Half of the devices are told that device 0 is in the sum and half that it is not: neither set is opened."""
    party = SealedGroup(8)
    label, seals, states = _uploads(party, 8)
    everyone, without = frozenset(range(8)), frozenset(range(1, 8))
    macs: dict[int, bytes] = {}
    for place in range(1, 8):
        told = everyone if place < 4 else without
        macs[place] = states[place].agree(told)  # type: ignore[attr-defined]
    for place in range(1, 8):
        present = everyone if place < 4 else without
        opening = SumOpening(party.group, {p: seals[p] for p in present}, label)
        for other in sorted(present - {0}):
            if (other < 4) == (place < 4):
                # What the others of its half said is all that fits.
                opening.on_agreed(other, macs[other])
        opening.begin()
        request = opening.request(place)
        with pytest.raises(PeerViolation, match="different sets"):
            states[place].open(request.macs, request.envelopes, {})  # type: ignore[attr-defined]


def test_a_device_agrees_to_one_set_and_answers_it_alike() -> None:
    party = SealedGroup(5)
    _, _, states = _uploads(party, 5)
    state = states[2]
    first = state.agree(frozenset({0, 1, 2, 3}))  # type: ignore[attr-defined]
    assert state.agree(frozenset({0, 1, 2, 3})) == first  # type: ignore[attr-defined]
    # The edge to device 4 may be given: its share is never given, whatever set is named next.
    with pytest.raises(PeerViolation, match="another set"):
        state.agree(frozenset(range(5)))  # type: ignore[attr-defined]
    with pytest.raises(PeerViolation, match="wrong size"):
        state.open(bytes(16 * 4), bytes(33 * 4), {})  # type: ignore[attr-defined]


@pytest.mark.parametrize("present", [{0, 1}, {0, 1, 3}, {1, 2, 9}])
def test_a_set_below_the_least_or_without_this_device_is_refused(present: set[int]) -> None:
    party = SealedGroup(5)
    _, _, states = _uploads(party, 5)
    with pytest.raises(PeerViolation):
        states[2].agree(frozenset(present))  # type: ignore[attr-defined]


def test_nothing_is_opened_before_devices_agreed() -> None:
    party = SealedGroup(4)
    _, _, states = _uploads(party, 4)
    with pytest.raises(PeerViolation, match="before anybody agreed"):
        states[0].open(bytes(48), bytes(99), {})  # type: ignore[attr-defined]


def test_both_lists_are_refused() -> None:
    """A member is in the sum or lost: a device that is named as lost has its edges given and no share."""
    party = SealedGroup(6)
    label, seals, states = _uploads(party, 6)
    present = frozenset(range(5))
    opening = SumOpening(party.group, {place: seals[place] for place in present}, label)
    _agree_all(opening, states)
    request = opening.request(0)
    envelope = party.group.edges_envelope(5, seals[5], 0)
    with pytest.raises(PeerViolation, match="not a neighbour in the sum"):
        states[0].open(request.macs, request.envelopes, {5: envelope})  # type: ignore[attr-defined]
    # Nor does it open the share of the lost device in the place of another.
    swapped = party.group.own_envelope(5, seals[5], 0) + request.envelopes[33:]
    with pytest.raises(PeerViolation, match="did not close"):
        states[0].open(request.macs, swapped, {})  # type: ignore[attr-defined]


def test_a_wrong_share_is_found_and_done_without() -> None:
    party = SealedGroup(6, lost=0.0)
    label, seals, states = _uploads(party, 6)
    opening = SumOpening(party.group, seals, label)
    _agree_all(opening, states)
    for place in range(6):
        ask(opening, states, place)
    right = opening.masks()
    opening._own_shares[1][1] = bytes(SHARE_BYTES)
    assert opening.masks() == right
    for place in (1, 3, 4, 5, 6):
        opening._own_shares[1][place] = bytes(SHARE_BYTES)
    with pytest.raises(PeerViolation, match="member 1"):
        opening.masks()


def test_a_leader_that_gives_two_models_gets_no_sum() -> None:
    party, updates = SealedGroup(4), updates_of(4, SIZE)
    one, other = party.label().digest(), party.label(base=bytes([1]) * 32).digest()
    words = [party.sealed(p, update, one if p else other)[0] for p, update in enumerate(updates)]
    total = np.sum(words, axis=0, dtype="<u4")
    truth = np.sum([party.encoded(p, u, one if p else other) for p, u in enumerate(updates)], axis=0, dtype="<u4")
    for place in range(4):
        label = one if place else other
        entropy = drawn(party.seed, f"entropy {place} 0 {label.hex()}", 16)
        unmask(total, [_mask(entropy)], label)
    # With every own mask off, the edges between the two models do not cancel.
    assert not np.any(total == truth)


def _mask(seed: bytes) -> object:
    from shoal.sealing.opening import Mask

    return Mask(seed, was_added=True)


def test_no_part_of_a_label_may_be_left_out() -> None:
    party = SealedGroup(4)
    label = party.label()
    changes = {
        "origin": "other",
        "job": "other",
        "term": 2,
        "formation": 1,
        "group": 2,
        "members": label.members[:3],
        "bound": 4,
        "weight_most": 2,
        "base": bytes([1]) * 32,
        "places": bytes([1]) * 32,
    }
    digests = {party.label(**{name: value}).digest() for name, value in changes.items()} | {label.digest()}
    assert len(digests) == len(changes) + 1
    assert set(changes) == set(type(label).__slots__)


def test_the_same_label_twice_shows_what_changed_and_a_new_term_does_not() -> None:
    """Why a label is never used twice: with one own seed, the masks of two updates are the same."""
    party, updates = SealedGroup(4), updates_of(2, SIZE)
    label = party.label().digest()
    steps = [party.encoded(0, update, label) for update in updates]
    first, again = (party.sealed(0, update, label)[0] for update in updates)
    assert np.array_equal(first - again, steps[0] - steps[1])
    new_term = party.sealed(0, updates[1], party.label(term=2).digest())[0]
    assert not np.any(first - new_term == steps[0] - steps[1])


# Parts ------------------------------------------------------------------------------------------------------


@given(
    secret=st.binary(min_size=16, max_size=16),
    needed=st.integers(2, 8),
    more=st.integers(0, 6),
    seed=st.integers(0, 1 << 30),
)
def test_any_shares_that_are_enough_make_the_secret(secret: bytes, needed: int, more: int, seed: int) -> None:
    places = [3 * place + 1 for place in range(needed + more)]
    shares = split(secret, places, needed=needed, chance=drawn(seed, "shares", 32 * (needed - 1)))
    chosen = dict(zip(places[more:], shares[more:], strict=True))
    assert join(chosen) == secret
    assert next(candidates(dict(zip(places, shares, strict=True)), needed=needed)) == secret


@given(
    values=st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40),
    devices=st.integers(1, 256),
    bound=st.integers(-6, 6),
    factor=st.floats(0.01, 1.0),
    bits=st.sampled_from((16, 32)),
    seed=st.integers(0, 1 << 30),
)
def test_a_value_is_rounded_to_a_step_beside_it_and_no_sum_wraps(
    values: list[float], devices: int, bound: int, factor: float, bits: int, seed: int
) -> None:
    fixed = FixedPoint(bound, devices, bits)
    vector = np.array(values, dtype=np.float32)
    words = fixed.encode(vector, factor=factor, chance=drawn(seed, "round", 32))
    steps = words.view(f"<i{bits // 8}").astype(np.float64)
    wanted = np.clip(vector * np.float32(factor), -(2.0**bound), 2.0**bound).astype(np.float64) * fixed.steps
    # A product of float32 is off by 2^-23 of itself.
    assert np.all(np.abs(steps - wanted) < 1.0 + np.abs(wanted) * 2.0**-22)
    assert devices * int(np.abs(steps).max()) < 1 << (bits - 1)
    back = fixed.decode(words, times=1.0)
    assert np.allclose(back, wanted / fixed.steps, atol=1.01 / fixed.steps)


def test_rounding_is_right_on_average() -> None:
    fixed = FixedPoint(0, 1 << 20)
    value = np.full(200_000, 0.3 / fixed.steps, dtype=np.float32)
    up = fixed.encode(value, factor=1.0, chance=drawn(1, "round", 32))
    assert set(np.unique(up)) == {0, 1}
    # Five standard deviations.
    assert abs(float(up.mean()) - 0.3) < 5 * np.sqrt(0.21 / value.size)


@given(devices=st.integers(1, 256), sign=st.sampled_from((-1.0, 1.0)), bits=st.sampled_from((16, 32)))
def test_a_sum_of_the_longest_updates_does_not_wrap(devices: int, sign: float, bits: int) -> None:
    fixed = FixedPoint(2, devices, bits)
    total = np.zeros(3, dtype=word_type(bits))
    for device in range(devices):
        total += fixed.encode(np.full(3, sign * 1e6, np.float32), factor=1.0, chance=drawn(device, "round", 32))
    assert np.allclose(fixed.decode(total, times=1 / devices), sign * 4.0)


@given(largest=st.floats(2.0**-60, 2.0**60, width=32), bits=st.sampled_from((16, 32)))
def test_a_bound_leaves_room_above_the_last_mean(largest: float, bits: int) -> None:
    bound = bound_after(np.array([0.0, -largest], np.float32), bits=bits, before=1)
    room = 2.0 ** BOUND_ABOVE[bits]
    assert bound in (-BOUND_MAX, BOUND_MAX) or largest * room <= 2.0**bound * 1.001 <= largest * 2.01 * room
    assert bound_after(np.zeros(2, np.float32), bits=bits, before=5) == 5


def test_a_key_that_gives_every_device_the_same_secret_is_refused() -> None:
    with pytest.raises(PeerViolation):
        pair.pair_key(drawn(1, "key", 32), ("a", pair.public_of(drawn(1, "key", 32))), ("b", bytes(32)))


def test_two_devices_make_one_key_and_no_other_makes_it() -> None:
    party = SealedGroup(3)
    keys = [
        pair.pair_key(party.private[a], party.members[a], party.members[b]) for a, b in ((0, 1), (1, 0), (0, 2), (2, 1))
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
