"""Residues modulo the field's prime as signed numbers, their inverses, and random ones: for Lagrange coding."""

from __future__ import annotations

import numpy as np

from shoal.errors import Misuse
from shoal.offload.field import LARGEST, PRIME
from shoal.offload.stream import words


def centred(values: np.ndarray) -> np.ndarray:
    """Return the representative of each residue that is nearest to 0: -(2^30 - 1) to 2^30 - 1."""
    return np.where(values > LARGEST, values - PRIME, values)


def inverse(value: int) -> int:
    """1 / value modulo PRIME."""
    if value % PRIME == 0:
        raise Misuse("0 has no inverse in a field")
    return pow(value, -1, PRIME)


def residues(seed: bytes, purpose: str, count: int) -> np.ndarray:
    """Return ``count`` uniform numbers modulo PRIME: those of 31 bits, except PRIME itself."""
    # One in 2^31 is left out: a few more than needed are enough but for one seed in 2^200 or so.
    drawn = words(seed, purpose, count + 8 + count // 1_000_000) & np.uint32(PRIME)
    kept = drawn[drawn < PRIME][:count]
    if len(kept) < count:
        raise Misuse("this seed drew more numbers to leave out than there can be: take another")
    return kept.astype(np.int64)
