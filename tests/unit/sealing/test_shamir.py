"""Our secret sharing against PyCryptodome's: another field, so what is compared is named in each test."""

from __future__ import annotations

from hashlib import sha256
from itertools import combinations
from typing import Any

import pytest
from Crypto.Protocol import SecretSharing

from shoal.errors import Misuse
from shoal.sealing.shamir import CHANCE_BYTES, PRIME, SECRET_BYTES, SHARE_BYTES, join, split

SECRET = bytes(range(100, 116))


def chance_of(needed: int) -> bytes:
    return b"".join(sha256(bytes([number])).digest() for number in range(1, needed))


class OurElement:
    """A number modulo our prime, with the operations that PyCryptodome's ``split`` uses."""

    def __init__(self, value: int | bytes) -> None:
        self.value = (value if isinstance(value, int) else int.from_bytes(value, "big")) % PRIME

    def __mul__(self, other: OurElement) -> OurElement:
        return OurElement(self.value * other.value)

    def __add__(self, other: OurElement) -> OurElement:
        return OurElement(self.value + other.value)

    def encode(self) -> bytes:
        return self.value.to_bytes(SHARE_BYTES, "big")


@pytest.mark.parametrize(("needed", "places"), [(1, 1), (2, 3), (3, 5), (11, 20), (16, 31)])
def test_shares_are_those_of_pycryptodome_over_our_field(
    needed: int, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their polynomial and their way to evaluate it, with our numbers in place of their field: the same bytes."""
    chance = chance_of(needed)
    # They draw the coefficient of the highest power first; we draw it last.
    drawn = [chance[at : at + CHANCE_BYTES] for at in range(0, len(chance), CHANCE_BYTES)]
    monkeypatch.setattr(SecretSharing, "_Element", OurElement)
    monkeypatch.setattr(SecretSharing, "rng", lambda size: drawn.pop())
    theirs = SecretSharing.Shamir.split(needed, places, SECRET)
    assert drawn == []
    numbers = range(1, places + 1)
    assert theirs == list(zip(numbers, split(SECRET, numbers, needed=needed, chance=chance), strict=True))


def recovered(shares: dict[int, bytes], chosen: tuple[int, ...]) -> bool:
    return join({place: shares[place] for place in chosen}) == SECRET


def recovered_by_theirs(shares: dict[int, bytes], chosen: tuple[int, ...]) -> bool:
    return bool(SecretSharing.Shamir.combine([(place, shares[place]) for place in chosen]) == SECRET)


@pytest.mark.parametrize(("needed", "places"), [(2, 3), (3, 5), (5, 5)])
@pytest.mark.parametrize("wrong", [None, 2])
def test_the_same_sets_of_shares_give_the_secret_as_with_pycryptodome(
    needed: int, places: int, wrong: int | None
) -> None:
    """Each over its own field: every set of shares, too few or enough, with one share changed or none."""
    numbers = range(1, places + 1)
    ours = dict(zip(numbers, split(SECRET, numbers, needed=needed, chance=chance_of(needed)), strict=True))
    theirs: dict[int, Any] = dict(SecretSharing.Shamir.split(needed, places, SECRET))
    if wrong is not None:
        for shares in (ours, theirs):
            shares[wrong] = shares[wrong][:-1] + bytes([shares[wrong][-1] ^ 1])
    for size in range(1, places + 1):
        for chosen in combinations(numbers, size):
            expected = size >= needed and wrong not in chosen
            assert recovered(ours, chosen) == recovered_by_theirs(theirs, chosen) == expected, chosen


def test_both_take_secrets_of_the_same_size() -> None:
    assert len(SecretSharing.Shamir.split(2, 3, SECRET)[0][1]) == SECRET_BYTES
    for size in (0, SECRET_BYTES - 1, SECRET_BYTES + 1):
        with pytest.raises(ValueError):
            SecretSharing.Shamir.split(2, 3, bytes(size))
        with pytest.raises(Misuse):
            split(bytes(size), (1, 2, 3), needed=2, chance=chance_of(2))
