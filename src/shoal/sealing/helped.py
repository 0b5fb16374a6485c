"""Sealed sums that a helper opens: one mask per device, whose seed only the helper learns. Pure; randomness is an
argument.

The leader has the masked words of every device but no seed; the helper has the seeds but no words. Neither learns
anything about one update without the other. An envelope opens only for its device, its helper and its label.

Aggregators of a tree or a shard have masked words too. What goes to them has a second mask, the cover, whose seed only
the leader gets: without it, an aggregator and the helper together would see updates.
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
    is_covered: bool = False,
) -> tuple[np.ndarray, bytes]:
    """Return the masked words of an update, and the bytes that go to the leader with them: the envelope with their
    seed, the seed of their cover if ``is_covered``, and the masked words of the figures. ``key`` is the key that the
    device and the helper share. Use ``entropy`` only once."""
    if len(entropy) != ENTROPY_BYTES:
        raise Misuse(f"sealing takes {ENTROPY_BYTES} random bytes, not {len(entropy)}")
    seed, cover = entropy[:SEED_BYTES], entropy[SEED_BYTES : 2 * SEED_BYTES] if is_covered else b""
    words = fixed.encode(update, factor=1.0, chance=rounding_of(entropy))
    masked = masked_figures(words, figures, [(pair.mask_key(each, label), False) for each in (seed, cover) if each])
    return words, pair.close(key, label, place, _HELPER, seed) + cover + masked


def sum_of_masks(
    keys: Mapping[int, bytes], envelopes: Mapping[int, bytes], label: bytes, *, words: int, bits: int
) -> np.ndarray:
    """Return the sum of these members' masks. ``keys`` has the key that each member shares with the helper. Raises
    PeerViolation, before it makes any mask, if a member did not close its envelope for this helper and this label."""
    seeds = [
        pair.unclose(keys[place], label, place, _HELPER, envelope) for place, envelope in sorted(envelopes.items())
    ]
    total = np.zeros(words, dtype=word_type(bits))
    add_all(total, [(pair.mask_key(seed, label), False) for seed in seeds])
    return total
