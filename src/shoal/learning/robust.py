"""Robust weights: each device's share of a version, from its update's distances to the others.

A rule only gets the Gram matrix of a version's updates, G[i, j] = uᵢ·uⱼ. Distances between updates and between their
mixtures follow from it. The Gram matrices of a model's parts add up to that of the model, so the aggregators of a shard
can compute their own, and the leader gets the same weights as in a star.

``nearest`` is nearest-neighbour mixing (Allouah et al. 2023, arXiv 2302.01772) before a geometric median by
Weiszfeld's steps (Pillutla et al. 2019, RFA, arXiv 1912.13445). ``clip`` is centred clipping (Karimireddy et al. 2021,
arXiv 2012.10333). docs/robust.md says what neither of them stops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shoal.compress.sparse import Sparse
from shoal.errors import Misuse

#: Values of each update that are multiplied at a time: their sums of float32 products are accurate to a millionth, and
#: longer blocks leave the cache (64 updates of 720,967 values: 100 ms of a core, with blocks of 131,072 118 ms).
_BLOCK = 16384

#: Products are of float32 numbers: distances shorter than this share of a usual update are rounding.
_RESOLUTION = 1e-3

#: What a distance is at least, so that updates that are all zero have one too.
_LEAST = 1e-100

#: Two distances are the same if their squares differ by less than this share of a usual update's square.
_SAME = 1e-5

#: Weiszfeld's steps: enough for weights of 256 updates, and where they stop before that.
_STEPS_MAX = 64
_SETTLED = 1e-9


def gram(updates: np.ndarray) -> np.ndarray:
    """G[i, j] = uᵢ·uⱼ in float64, of the rows of a float32 matrix."""
    if updates.ndim != 2 or not updates.shape[0]:
        raise Misuse(f"a Gram matrix of updates as the rows of a matrix, not of {updates.shape}")
    total = np.zeros((len(updates), len(updates)))
    # A product that overflows is infinite, and its update gets no weight.
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, updates.shape[1], _BLOCK):
            block = updates[:, start : start + _BLOCK]
            total += block @ block.T
    return total


def gram_of(updates: Sequence[np.ndarray | Sparse], scales: Sequence[float]) -> np.ndarray:
    """The Gram matrix of updates that lie each in memory of its own, each by its scale. Takes memory for a block of
    them, not for all once more."""
    size, count = updates[0].size, len(updates)
    total = np.zeros((count, count))
    for start in range(0, size, _BLOCK):
        stop = min(size, start + _BLOCK)
        rows = np.zeros((count, stop - start), dtype=np.float32)
        for row, update, scale in zip(rows, updates, scales, strict=True):
            if isinstance(update, Sparse):
                part = update.part(start, stop)
                row[part.places] = part.values
            else:
                row[:] = update[start:stop]
            if scale != 1.0:
                row *= np.float32(scale)
        total += gram(rows)
    return total


def weighted_sum(updates: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Σ wᵢ·uᵢ as float32. Rows without weight do not count: they may hold anything."""
    taken = weights > 0
    if not taken.any():
        raise Misuse("a sum in which no update has a weight")
    shares = weights.astype(np.float32)[taken]
    out = np.empty(updates.shape[1], dtype=np.float32)
    for start in range(0, out.size, _BLOCK):
        block = updates[:, start : start + _BLOCK]
        # Not ``np.dot``: it copies a block that is a part of longer rows.
        out[start : start + _BLOCK] = shares @ (block if taken.all() else block[taken])
    return out


def liars_borne(devices: int, share: float) -> int:
    """Return how many of these devices may be malicious: the share, rounded up, but always fewer than the others."""
    return max(0, min(math.ceil(share * devices - 1e-9), (devices - 1) // 2))


def nearest_weights(gram: np.ndarray, *, liars: int) -> np.ndarray:
    """A weight for each update: not negative, 1 together, next to nothing for those that lie far from the others.

    Each update becomes the mean of its n - f nearest, itself among them (Allouah 2023, NNM), and the mixtures are
    weighed by the geometric median (Pillutla 2019). An update whose products are not finite gets no weight.
    """
    sound = np.flatnonzero(np.isfinite(np.diag(gram)))
    sound = sound[np.isfinite(gram[np.ix_(sound, sound)]).all(axis=1)]
    if not sound.size:
        raise Misuse("no update of the version is finite")
    weights = np.zeros(len(gram))
    among = gram[np.ix_(sound, sound)]
    mixing = _mixing(among, nearest=sound.size - min(liars, (sound.size - 1) // 2))
    weights[sound] = _median_weights(mixing @ among @ mixing.T) @ mixing
    weights /= weights.sum()
    return weights


def _mixing(gram: np.ndarray, *, nearest: int) -> np.ndarray:
    """Row i: the shares of the updates in the mean of the ``nearest`` ones to update i. Updates that are equally far
    share the places that are left, so that no weight depends on the order of devices."""
    squared, same = _squared_distances(gram), _SAME * float(np.median(np.diag(gram)))
    farthest = np.sort(squared, axis=1)[:, nearest - 1 : nearest]
    inside = squared < farthest - same
    on_edge = (squared <= farthest + same) & ~inside
    places = nearest - inside.sum(axis=1, keepdims=True)
    mixing: np.ndarray = (inside + on_edge * (places / on_edge.sum(axis=1, keepdims=True))) / nearest
    return mixing


def _squared_distances(gram: np.ndarray) -> np.ndarray:
    norms = np.diag(gram)
    squared: np.ndarray = np.maximum(norms[:, None] + norms[None, :] - 2 * gram, 0.0)
    np.fill_diagonal(squared, 0.0)
    return squared


def _median_weights(gram: np.ndarray) -> np.ndarray:
    """The weights of the geometric median, by Weiszfeld's steps: each vector by one over its distance from the last
    (RFA, Algorithm 2). A vector that is closer than rounding allows to say counts as that far."""
    # If mixtures cancel, rounding can make a square negative.
    least = _RESOLUTION * math.sqrt(max(0.0, float(np.median(np.diag(gram))))) + _LEAST
    weights = np.full(len(gram), 1.0 / len(gram))
    for _ in range(_STEPS_MAX):
        shares = 1.0 / np.maximum(distances(gram, weights), least)
        shares /= shares.sum()
        moved = float(np.abs(shares - weights).max())
        weights = shares
        if moved < _SETTLED:
            break
    return weights


def distances(gram: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return each update's distance from the weighted sum Σ wⱼ·uⱼ, or infinity if it is unknown."""
    with np.errstate(over="ignore", invalid="ignore"):
        known = np.where(weights > 0, 1.0, 0.0)
        products = np.where(known, gram, 0.0) @ weights
        squared = np.diag(gram) - 2 * products + float(weights @ np.where(known, products, 0.0))
        far: np.ndarray = np.sqrt(np.maximum(squared, 0.0))
    return np.where(np.isfinite(far), far, np.inf)


def squared_distance(update: np.ndarray | Sparse, centre: np.ndarray, *, scale: float) -> float:
    """‖s·u - c‖². Those of the parts of a model add up to that of the whole."""
    if not isinstance(update, Sparse):
        apart = update * np.float32(scale)
        apart -= centre
        return float(np.dot(apart, apart))
    # Where it says nothing it is zero.
    here = centre[update.places]
    apart = update.values * np.float32(scale) - here
    elsewhere = max(0.0, float(np.dot(centre, centre)) - float(np.dot(here, here)))
    return float(np.dot(apart, apart)) + elsewhere


def clip_factor(distance: float, *, radius: float) -> float:
    """min(1, τ / ‖uᵢ - c‖): how much of its way from the centre an update keeps (Karimireddy 2021, equation 7)."""
    if math.isnan(distance):
        return 0.0
    return 1.0 if distance <= radius else radius / distance
