"""Secret random numbers from a 16-byte seed (``sealing.stream``)."""

from __future__ import annotations

import hashlib

import numpy as np

from shoal.errors import Misuse
from shoal.sealing import stream

SEED_BYTES = 16


def words(seed: bytes, purpose: str, count: int) -> np.ndarray:
    """Return ``count`` uint32. Use a seed and a purpose for one matrix, once: used again, they hide nothing."""
    if len(seed) != SEED_BYTES:
        raise Misuse(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    # The key depends only on this seed and purpose.
    return stream.words(hashlib.sha256(b"shoal offload " + purpose.encode() + b"\0" + seed).digest(), count)
