"""Where does each pixel belong? A static shuffle undone by public statistics; no key is searched for. Numpy only.

DCL's thesis (§4.2) counts the orders that brute force would try. Nobody has to: a shuffle moves values and keeps them.
Whoever sees some shuffled images knows each pixel's histogram, and, where all images are shuffled alike, how each pixel
goes with each other one. Both are about the same in any collection of handwritten digits, such as the half of MNIST
that is taken as public here. So unknown places are matched to known ones by their statistics:

    score(i, p) = - n·w/2 · Σ_j (R_ij - Σ_q P_jq·C_pq)² - marginal distance of i and p

with R the correlations observed, C those of the public images, n the images seen, and P the belief of where each pixel
is. P is made of the score as a soft assignment (exponential, then rows and columns scaled in turn; Sinkhorn 1967), and
the score of P, with a weight w that grows: graduated assignment (Gold and Rangarajan 1996).

    python -m papers.dcl.attack [--images 200] [--json]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from benchmarks.offload_layer_shuffle import static_layer_shuffle
from shoal.data.digits import mnist
from shoal.errors import Misuse
from shoal.offload.masking import masked, quantise_fixed, quantise_right
from shoal.offload.shuffle import permutation, shuffle_left

SIDE = 28
PIXELS = SIDE * SIDE
IMAGES = 200
#: Public images that statistics are taken of: more change nothing that 200 private ones could tell.
PUBLIC = 6_000

_STEPS = 16
#: How much a correlation counts, of what it would if all were independent: from the first step to the last.
_WEIGHT_FIRST, _WEIGHT_LAST = 0.005, 0.05
#: How much a histogram counts against them.
_MARGINAL = 0.3
_SCALINGS = 4
#: Rows of correlations are first compared by what does not depend on the order: so many of their quantiles.
_QUANTILES = 40
_PROFILE = 10.0
#: Statistics of pixels that are nearly always black are less certain than their own spread says.
_FLOOR = 0.005
_SMALL, _TINY = 1e-6, 1e-30


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """Where pixels were put."""

    #: Observed places whose pixel is not the same in all images: nothing is known of the others.
    active: np.ndarray
    #: For each of them, the pixel it is taken for.
    pixels: np.ndarray

    def within(self, truth: np.ndarray, *, distance: int = 1) -> float:
        """The part of active pixels that were put at most so far from where they belong, diagonals included."""
        true = truth[self.active]
        rows = np.abs(self.pixels // SIDE - true // SIDE)
        columns = np.abs(self.pixels % SIDE - true % SIDE)
        return float(np.mean(np.maximum(rows, columns) <= distance))


def recover(observed: np.ndarray, public: np.ndarray, *, together: bool = True) -> Recovered:
    """Put the columns of ``observed`` (images x places, any unit) where those of ``public`` (images x pixels) are.

    With ``together`` false, rows were shuffled for each column by itself, and only histograms are left to go by.
    """
    if observed.ndim != 2 or public.ndim != 2 or observed.shape[1] != public.shape[1]:
        raise Misuse(f"images as rows of as many pixels as the public ones, not {observed.shape} and {public.shape}")
    observed, public = _scaled(observed), _scaled(public)
    active = np.flatnonzero(np.ptp(observed, axis=0) > 0)
    known = np.flatnonzero(np.ptp(public, axis=0) > 0)
    seen, prior = observed[:, active], public[:, known]
    marginal = np.float32(-_MARGINAL) * _marginal_distances(seen, prior)
    if not together:
        return Recovered(active=active, pixels=known[_soft_assignment(marginal).argmax(axis=1)])
    found, expected = _correlations(seen), _correlations(prior)
    belief = _soft_assignment(marginal - np.float32(_PROFILE) * _profile_distances(found, expected))
    squares = expected**2
    for step in range(_STEPS):
        weight = np.float32(len(seen) * _WEIGHT_FIRST * (_WEIGHT_LAST / _WEIGHT_FIRST) ** (step / (_STEPS - 1)))
        # The square above, multiplied out; what does not depend on p is left away.
        agreement = found @ (belief @ expected) - (belief.sum(axis=0) @ squares) / np.float32(2)
        belief = _soft_assignment(weight * agreement + marginal)
    return Recovered(active=active, pixels=known[belief.argmax(axis=1)])


def chance_level(*, distance: int = 1) -> float:
    """What is within so much of its place if pixels are put anywhere: at most this, less at the edges."""
    return (2 * distance + 1) ** 2 / PIXELS


# What an executor sees ------------------------------------------------------------------------------------------


def shuffled_view(images: np.ndarray, seed: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Images under one static shuffle of a layer (SLS), and the pixel that each place really is."""
    shuffle = static_layer_shuffle(seed, layer=0, rows=len(images), inner=images.shape[1], columns=1)
    return shuffle_left(images, shuffle), shuffle.inner


def apart_view(images: np.ndarray, seed: bytes) -> tuple[np.ndarray, np.ndarray]:
    """The same, with images in another order in each feature's task: histograms stay, what goes with what is lost."""
    shuffle = static_layer_shuffle(seed, layer=0, rows=len(images), inner=images.shape[1], columns=1)
    view = images[:, shuffle.inner]
    for place in range(view.shape[1]):
        view[:, place] = view[permutation(seed, f"task {place}", len(view)), place]
    return view, shuffle.inner


def masked_view(images: np.ndarray, seed: bytes) -> tuple[np.ndarray, np.ndarray]:
    """A share of the same shuffled images: what the holder of X - R has."""
    view, truth = shuffled_view(images, seed)
    right = quantise_right(np.ones((images.shape[1], 1), dtype=np.float32))
    return masked(quantise_fixed(view, right).values, seed).astype(np.float64), truth


@lru_cache(maxsize=1)
def halves() -> tuple[np.ndarray, np.ndarray]:
    """MNIST's training images in a fixed order: some of the public half, and the private half."""
    images, _ = mnist("train")
    order = permutation(b"halves of MNIST", "images", len(images))
    half = len(images) // 2
    flat = images.reshape(len(images), -1)
    return flat[order[:PUBLIC]].astype(np.float32) / 255, flat[order[half:]].astype(np.float32) / 255


def attacked(*, images: int, seed: int) -> dict[str, float]:
    """The part of active pixels within one pixel of their place, by what was done to hide them."""
    public, private = halves()
    key = seed.to_bytes(16, "little")
    chosen = private[permutation(key, "victims", len(private))[:images]]
    out = {}
    for name, view in (("static", shuffled_view), ("apart", apart_view), ("mask", masked_view)):
        observed, truth = view(chosen, key)
        out[name] = recover(observed, public, together=name != "apart").within(truth)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m papers.dcl.attack", description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = [attacked(images=options.images, seed=seed) for seed in range(options.seeds)]
    found = {name: [run[name] for run in runs] for name in runs[0]}
    if options.json:
        print(json.dumps({"attack": {"images": options.images, "chance": chance_level(), "within_one_pixel": found}}))
        return
    print(
        f"active pixels put within one pixel of their place, from {options.images} images; chance {chance_level():.1%}"
    )
    for name, parts in found.items():
        print(f"  {name:8} {' '.join(f'{part:.1%}' for part in parts)}")


# Statistics -----------------------------------------------------------------------------------------------------


def _scaled(images: np.ndarray) -> np.ndarray:
    low, high = float(images.min()), float(images.max())
    return ((images - low) / max(high - low, _SMALL)).astype(np.float32)


def _correlations(images: np.ndarray) -> np.ndarray:
    centred = images - images.mean(axis=0)
    centred /= np.maximum(centred.std(axis=0), _SMALL)
    return np.asarray(centred.T @ centred / np.float32(len(images)))


def _marginals(images: np.ndarray) -> np.ndarray:
    """Mean, spread, how often not black, how often bright."""
    return np.stack([images.mean(axis=0), images.std(axis=0), (images > 0).mean(axis=0), (images > 0.5).mean(axis=0)])


def _marginal_distances(seen: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """How many deviations apart two pixels' statistics are, squared."""
    ours, theirs = _marginals(seen), _marginals(prior)
    deviation = np.sqrt(theirs * (1 - theirs) / len(seen) + len(seen) ** -2.0) + _FLOOR
    total = np.zeros((seen.shape[1], prior.shape[1]))
    for mine, other, spread in zip(ours, theirs, deviation, strict=True):
        total += ((mine[:, None] - other) / spread) ** 2
    return np.asarray(total / len(ours), dtype=np.float32)


def _profile_distances(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Rows of correlations, sorted: what can be compared before any place is known."""
    levels = np.linspace(0, 1, _QUANTILES)
    ours, theirs = np.quantile(found, levels, axis=1), np.quantile(expected, levels, axis=1)
    apart = (ours**2).sum(axis=0)[:, None] + (theirs**2).sum(axis=0) - 2 * ours.T @ theirs
    return np.asarray(apart, dtype=np.float32)


def _soft_assignment(score: np.ndarray) -> np.ndarray:
    """Each place is one pixel, each pixel at most one place: rows sum to 1, columns to 1 at most."""
    belief = np.exp(score - score.max(axis=1, keepdims=True))
    for _ in range(_SCALINGS):
        belief /= np.maximum(belief.sum(axis=0, keepdims=True), 1)
        belief /= np.maximum(belief.sum(axis=1, keepdims=True), _TINY)
    return np.asarray(belief)


if __name__ == "__main__":
    main()
