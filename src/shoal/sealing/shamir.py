"""Shamir's secret sharing (1979): any ``needed`` shares restore the secret; fewer reveal nothing about it.

Numbers modulo 2^130 - 5, the prime of Poly1305: 16 bytes fit below it, and a share takes 17.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, islice

from shoal.errors import Misuse

PRIME = (1 << 130) - 5
SECRET_BYTES = 16
SHARE_BYTES = 17

#: Random bytes per coefficient: enough that the remainder favours no number by more than 2^-126.
CHANCE_BYTES = 32

#: Subsets of shares that are tried before a secret is given up.
_TRIES_MAX = 2000


def split(secret: bytes, places: Sequence[int], *, needed: int, chance: bytes) -> list[bytes]:
    """Return one share of a secret for each place. Any ``needed`` of them restore it. Places are distinct numbers from
    1."""
    if len(secret) != SECRET_BYTES or len(chance) != CHANCE_BYTES * (needed - 1):
        raise Misuse(
            f"the secret has {len(secret)} bytes, with {len(chance)} random bytes for {needed} shares; it must have"
            f" {SECRET_BYTES}, with {CHANCE_BYTES} random bytes per share but one"
        )
    parts = (chance[at : at + CHANCE_BYTES] for at in range(0, len(chance), CHANCE_BYTES))
    # The secret is the value at 0.
    coefficients = [int.from_bytes(secret, "big"), *(int.from_bytes(part, "big") % PRIME for part in parts)]
    coefficients.reverse()
    return [_value(coefficients, place).to_bytes(SHARE_BYTES, "big") for place in places]


def _value(coefficients: Sequence[int], place: int) -> int:
    value = 0
    for coefficient in coefficients:
        value = (value * place + coefficient) % PRIME
    return value


def join(shares: Mapping[int, bytes]) -> bytes | None:
    """Join shares, by place, to their secret. Return None if one of the shares is wrong."""
    places = tuple(sorted(shares))
    factors = _factors(places)
    total = sum(f * int.from_bytes(shares[place], "big") for f, place in zip(factors, places, strict=True)) % PRIME
    return total.to_bytes(SECRET_BYTES, "big") if total >> (8 * SECRET_BYTES) == 0 else None


def candidates(shares: Mapping[int, bytes], *, needed: int) -> Iterator[bytes]:
    """Yield the secret of each subset of ``needed`` shares, in a fixed order. If some shares are wrong, a later subset
    has none of them."""
    for places in islice(combinations(sorted(shares), needed), _TRIES_MAX):
        if (secret := join({place: shares[place] for place in places})) is not None:
            yield secret


@lru_cache(maxsize=4096)
def _factors(places: tuple[int, ...]) -> tuple[int, ...]:
    """Return Lagrange's coefficient of each share at 0."""
    factors = []
    for one in places:
        above = below = 1
        for other in places:
            if other != one:
                above = above * -other % PRIME
                below = below * (one - other) % PRIME
        factors.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(factors)
