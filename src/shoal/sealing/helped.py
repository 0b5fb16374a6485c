"""Sealed sums that a helper opens: one mask a device, whose seed goes to the helper alone. Pure; chance is an argument.

The leader has the masked words of every device and no seed, the helper has seeds and no words. Neither learns anything
of one update without the other. An envelope opens for one device, one helper and one label, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shoal.errors import Misuse
from shoal.sealing import pair
from shoal.sealing.device import ENTROPY_BYTES, masked_figures, rounding_of
from shoal.sealing.fixed import FixedPoint, word_type
from shoal.sealing.group import SEED_BYTES
from shoal.sealing.noise import NoisePoint
from shoal.sealing.stream import add_all

_HELPER = b"helper"


def seal_for_helper(
    update: np.ndarray,
    *,
    key: bytes,
    label: bytes,
    place: int,
    fixed: FixedPoint | NoisePoint,
    entropy: bytes,
    figures: np.ndarray | None = None,
) -> tuple[np.ndarray, bytes]:
    """The masked words of an update, and the envelope with their seed, followed by the masked words of its figures.
    ``key``: that of the device and the helper; ``entropy`` is used once."""
    if len(entropy) != ENTROPY_BYTES:
        raise Misuse(f"sealing takes {ENTROPY_BYTES} bytes of chance, not {len(entropy)}")
    seed = entropy[:SEED_BYTES]
    words = fixed.encode(update, factor=1.0, chance=rounding_of(entropy))
    masked = masked_figures(words, figures, [(pair.mask_key(seed, label), False)])
    return words, pair.close(key, label, place, _HELPER, seed) + masked


def sum_of_masks(
    keys: Mapping[int, bytes], envelopes: Mapping[int, bytes], label: bytes, *, words: int, bits: int
) -> np.ndarray:
    """The masks of these members, added up. ``keys``: of each member and the helper. Raises PeerViolation, before any
    mask is made, for an envelope that its member did not close for this helper and this label."""
    seeds = [
        pair.unclose(keys[place], label, place, _HELPER, envelope) for place, envelope in sorted(envelopes.items())
    ]
    total = np.zeros(words, dtype=word_type(bits))
    add_all(total, [(pair.mask_key(seed, label), False) for seed in seeds])
    return total
