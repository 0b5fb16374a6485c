"""DCL's shuffles: the order of rows, features and columns, from a seed. Obfuscation, not secrecy: see docs/privacy.md.

A shuffle changes the place of a value, never the value. Shuffled data shows its histogram, and where rows are
shuffled alike in every task also which features go together: ``papers/dcl/attack.py`` puts pixels back from that.

The numbers are Philox's (Salmon et al. 2011), whose bits are the same under every numpy, with a key by SHA-256 of what
they are for. That a shuffle can be repeated is the point here; that it cannot be guessed would not help.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from shoal.errors import Misuse


@dataclass(frozen=True, kw_only=True, slots=True)
class Shuffle:
    """Three orders; place k of the shuffled matrix holds the value of place order[k]."""

    #: Of examples, a.
    rows: np.ndarray
    #: Of features, b: of the left side's columns and the right side's rows alike.
    inner: np.ndarray
    #: Of neurons, c.
    columns: np.ndarray


def permutation(seed: bytes, purpose: str, size: int) -> np.ndarray:
    """An order of ``size`` things; the same for the same seed and purpose, everywhere."""
    if size < 0:
        raise Misuse(f"there is no order of {size} things")
    digest = hashlib.sha256(purpose.encode() + b"\0" + seed).digest()
    # Sorted by random bits, because numpy guarantees a generator's bits across releases, but not its permutations.
    bits = np.random.Philox(key=int.from_bytes(digest[:16], "little")).random_raw(size)
    return np.argsort(bits, kind="stable")


def shuffle_left(left: np.ndarray, shuffle: Shuffle) -> np.ndarray:
    return np.ascontiguousarray(left[np.ix_(shuffle.rows, shuffle.inner)])


def shuffle_right(right: np.ndarray, shuffle: Shuffle) -> np.ndarray:
    return np.ascontiguousarray(right[np.ix_(shuffle.inner, shuffle.columns)])


def unshuffle(result: np.ndarray, shuffle: Shuffle) -> np.ndarray:
    """A product or an outer product, with rows and columns where they were. (DCL Figure 3.9)"""
    out = np.empty_like(result)
    out[np.ix_(shuffle.rows, shuffle.columns)] = result
    return out
