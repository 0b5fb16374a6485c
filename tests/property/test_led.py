"""Places that all devices of a sum agree on: of every size and share; their sums, and what devices hold back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sealed_troupe import SIZE, SealedTroupe, a_plan

from shoal.compress.led import LedPlaces, leap_of
from shoal.compress.sparse import count_of
from shoal.errors import Misuse, PeerViolation
from shoal.wire.coded import decode_places, encode_places
from shoal.wire.messages import Agree, Agreed, Bind, Message, Open, Opened, Update

NAMES = [f"d{number}" for number in range(6)]
SHARES = st.integers(1, 1_000_000)


@given(size=st.integers(1, 3000), share_ppm=SHARES, seed=st.integers(0, 9), sums=st.integers(0, 6))
def test_places_are_as_many_as_the_share_and_none_comes_twice(size: int, share_ppm: int, seed: int, sums: int) -> None:
    places = LedPlaces(size, share_ppm=share_ppm, seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(sums + 1):
        found = places.next()
        assert found.size == places.count == count_of(size, share_ppm=share_ppm)
        assert (np.diff(found) > 0).all()
        assert 0 <= found[0] <= found[-1] < size
        assert found is places.next()
        read = decode_places(encode_places(found, size), count=found.size, size=size)
        assert np.array_equal(read, found)
        places.opened(rng.normal(size=found.size).astype(np.float32) * rng.integers(0, 2, found.size))


@given(size=st.integers(1, 400), share_ppm=st.integers(20_000, 1_000_000), seed=st.integers(0, 1000))
def test_no_place_waits_for_ever(size: int, share_ppm: int, seed: int) -> None:
    """Half of the places go round, so that two rounds take at most so many sums; also if others are always ahead."""
    places = LedPlaces(size, share_ppm=share_ppm, seed=seed)
    missed = np.ones(size, dtype=np.bool_)
    for _ in range(2 + 2 * size // max(1, places.count // 2)):
        found = places.next()
        missed[found] = False
        places.opened(np.where(found < size // 4, 1e6, 1e-6).astype(np.float32))
    assert not missed.any()


def test_what_moved_most_while_it_waited_goes_first() -> None:
    places = LedPlaces(100, share_ppm=100_000, seed=0)
    for _ in range(20):
        found = places.next()
        places.opened(np.where(found == 7, 5.0, np.where(found == 8, 1.0, 1e-3)).astype(np.float32))
    # Both moved, the one five times as fast: it is sent each time, and the other as it has waited long enough.
    assert 7 in places.next()
    assert 8 in places.next()
    assert np.count_nonzero(np.isin(places.next(), np.arange(100))) == 10


def test_two_leaders_that_saw_the_same_sums_choose_the_same_places() -> None:
    both = [LedPlaces(500, share_ppm=50_000, seed=3) for _ in range(2)]
    rng = np.random.default_rng(0)
    for _ in range(30):
        assert np.array_equal(*(each.next() for each in both))
        mean = rng.normal(size=both[0].count).astype(np.float32)
        for each in both:
            each.opened(mean)


def test_a_leap_meets_every_place() -> None:
    for size in range(1, 200):
        assert np.unique(np.arange(size) * leap_of(size) % size).size == size


def test_a_mean_of_another_size_is_refused() -> None:
    with pytest.raises(Misuse, match="3 values for 5 places"):
        LedPlaces(100, share_ppm=50_000, seed=0).opened(np.zeros(3, np.float32))
    with pytest.raises(Misuse, match="at least one value"):
        LedPlaces(0, share_ppm=50_000, seed=0)


@given(data=st.binary(max_size=60), count=st.integers(1, 20))
def test_bytes_of_a_peer_are_places_or_refused(data: bytes, count: int) -> None:
    try:
        places = decode_places({"places": np.frombuffer(data, np.uint8)}, count=count, size=40)
    except PeerViolation:
        return
    assert places.size == count
    assert (np.diff(places) > 0).all()
    assert 0 <= places[0] <= places[-1] < 40


# Sums, with the roles --------------------------------------------------------------------------------------------


def is_conserved(troupe: SealedTroupe) -> None:
    """Each device has sealed, or holds back, all that it trained since its leader began. What it sealed for a group
    that came to nothing is gone, and so is what the bound cut off: else it would be in two sums."""
    checked = 0
    term = troupe.leader.term
    rows = {(row.node, row.lease) for save in troupe.saves for row in save.applied}
    for node, device in troupe.devices.items():
        trained, sent = np.zeros(SIZE), np.zeros(SIZE)
        for of, seal in troupe.sealed:
            if of == node and seal.request.label.term == term:
                trained += troupe.made[node, term, seal.lease][0]
                sent[seal.request.places] += seal.request.update[seal.request.places]
        feedback = device.worker._feedback
        held = device.worker._held
        if held is not None and held.result is not None and (node, held.work.lease) not in rows:
            # Of one more in hand it is not known yet whether a version will have it.
            continue
        checked += 1
        kept = feedback.kept if feedback is not None else np.zeros(SIZE)
        assert np.allclose(trained, sent + kept, atol=1e-5), node
    assert checked >= 4


def version_is_exact(troupe: SealedTroupe, version: int, before: np.ndarray) -> None:
    assert troupe.leader.version == version
    moved = troupe.leader.model - before
    assert np.allclose(moved, troupe.mean_of(version), atol=1e-5)
    assert np.count_nonzero(moved) <= troupe.sealed[-1][1].request.places.size


@settings(max_examples=25, deadline=None)
@given(
    codec=st.sampled_from(("led5%+ef", "led20%+ef", "led100%+ef")),
    strikes=st.lists(
        st.tuples(st.sampled_from((Bind, Update, Agree, Agreed, Open, Opened)), st.sampled_from(NAMES)), max_size=3
    ),
)
def test_sums_are_exact_and_nothing_is_lost_whoever_dies(codec: str, strikes: list[tuple[type[Message], str]]) -> None:
    troupe = SealedTroupe(a_plan(codec=codec))
    troupe.joins(*NAMES)
    for version in range(1, 6):
        before = troupe.leader.model.copy()
        if strikes:
            word, node = strikes.pop()
            troupe.run_to(word)
            if node in troupe.devices and len(troupe.devices) > 5:
                troupe.loses(node)
        troupe.run(lambda wanted=version: troupe.leader.version >= wanted)
        version_is_exact(troupe, version, before)
        groups = {}
        for _, seal in troupe.sealed:
            places = groups.setdefault(seal.request.label.turn, seal.request.places)
            assert np.array_equal(places, seal.request.places)
        is_conserved(troupe)


@pytest.mark.parametrize("word", [Bind, Update, Agree, Agreed, Open, Opened])
def test_another_leader_finds_devices_that_hold_back_nothing_of_versions_that_are_gone(word: type[Message]) -> None:
    troupe = SealedTroupe(a_plan(codec="led20%+ef"))
    troupe.joins(*NAMES)
    troupe.run(lambda: troupe.leader.version >= 2)
    troupe.run_to(word)
    troupe.saves.clear()
    troupe.dies()
    troupe.run(lambda: troupe.leader.version >= 3)
    total = sum(troupe.mean_of(version) for version in (1, 2, 3))
    assert np.allclose(troupe.leader.model - troupe.first, total, atol=1e-5)
    is_conserved(troupe)
