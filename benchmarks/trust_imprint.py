"""How many training images a leader that lies reads from one honest sealed sum, by a model that it crafted.

"Robbing the Fed" (Fowl et al. 2021). The leader gives 20 devices one and the same network of 784-512-10. Each hidden
unit of it measures how bright an image is and is active above its own level, so two units that follow each other
differ by the images whose brightness lies between their levels. Where that is one image, the difference of what the
two units learned is that image. Devices are honest: each takes one step on eight images of its own and seals it. The
leader knows how bright other people's images are (the test images) and the sum, nothing else. Masks cancel in a sum, so
they are left out; rounding and noise are the deployed ones. A part of ``benchmarks.trust``.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from benchmarks.trust_shares import plan_of, privacy_of
from shoal.sealing.fixed import FixedPoint, word_type
from shoal.sealing.noise import NoisePoint
from testbed.results import say

DEVICES, EACH, PIXELS, UNITS, CLASSES = 20, 8, 784, 512, 10
RATE = 0.05

#: What ``sealed + private`` promises here. Each device takes part once.
EPSILON, DELTA = 8.0, 1e-5

#: The leader scales the first layer down by this factor and the second up. The first layer's part of an update is then
#: longer than all others by far, and gets nearly all of what rounding and a clip leave.
SCALE = 1e-4

#: An image is recovered if its pixels are off by less than this on average: by 4 of 255 levels of grey.
OFF_MOST = 0.05


@dataclass(frozen=True, slots=True)
class Crafted:
    """The leader's network. Every row of the second layer is the same, so every active unit learns alike."""

    levels: np.ndarray
    second: np.ndarray

    @classmethod
    def of(cls, public: np.ndarray, rng: np.random.Generator) -> Crafted:
        """Craft one for images that are as bright as these public ones."""
        levels = np.quantile(public.mean(1), np.linspace(0, 1, UNITS, endpoint=False))
        return cls(levels.astype(np.float32), (rng.normal(0, 0.02, CLASSES) / UNITS).astype(np.float32))

    def update(self, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return what one step on these examples changes, as a device sends it: all values of the network."""
        inner = np.float32(SCALE) * (images.mean(1, keepdims=True) - self.levels)
        active, second = np.maximum(inner, 0), self.second / np.float32(SCALE)
        scores = active.sum(1, keepdims=True) * second
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        shares[np.arange(len(labels)), labels] -= 1
        shares /= len(labels)
        back = (shares @ second)[:, None] * (inner > 0)
        parts = (images.T @ back, back.sum(0), active.T @ shares, shares.sum(0))
        return np.concatenate([(-RATE * part).ravel() for part in parts]).astype(np.float32)


def images_of(update: np.ndarray, *, low: float, high: float) -> np.ndarray:
    """Return what the leader reads from a sum: one candidate image for each two units that follow each other."""
    weights = update[: PIXELS * UNITS].reshape(PIXELS, UNITS).astype(np.float64)
    biases = update[PIXELS * UNITS : (PIXELS + 1) * UNITS].astype(np.float64)
    apart = np.append(biases[:-1] - biases[1:], biases[-1])
    learned = np.append(weights[:, :-1] - weights[:, 1:], weights[:, -1:], axis=1)
    some = np.abs(apart) > 1e-9 * np.abs(biases).max()
    return np.asarray(np.clip((learned[:, some] / apart[some]).T, low, high))


def recovered(candidates: np.ndarray, images: np.ndarray) -> int:
    """Count the images that a candidate shows. A candidate stands for the image it is nearest to, and each image counts
    once."""
    found = set()
    for candidate in candidates:
        off = np.abs(images - candidate).mean(1)
        nearest = int(off.argmin())
        if off[nearest] < OFF_MOST:
            found.add(nearest)
    return len(found)


def sealed_sum(updates: np.ndarray, fixed: FixedPoint | NoisePoint, *, seed: int) -> np.ndarray:
    """Return the sum that the leader opens, with the devices' rounding and noise in it."""
    total = np.zeros(updates.shape[1], word_type(32))
    for device, update in enumerate(updates):
        chance = hashlib.sha256(f"imprint {seed} {device}".encode()).digest()
        total += fixed.encode(update, factor=1.0, chance=chance)
    return fixed.decode(total, times=1.0)


def measure(
    images: np.ndarray, labels: np.ndarray, public: np.ndarray, public_labels: np.ndarray, *, seed: int = 0
) -> dict[str, object]:
    """Attack sums of devices that hold these images, eight each, once sealed and once sealed and private."""
    rng = np.random.default_rng(seed)
    count = DEVICES * EACH
    chosen = rng.choice(len(images), 2 * count, replace=False)
    own, others = images[chosen[:count]], images[chosen[count:]]
    crafted = Crafted.of(public, rng)
    groups = zip(own.reshape(DEVICES, EACH, PIXELS), labels[chosen[:count]].reshape(DEVICES, EACH), strict=True)
    updates = np.stack([crafted.update(*group) for group in groups])
    # The leader names the bound of a sum. It finds one by a step on public images.
    tried = crafted.update(public[:EACH], public_labels[:EACH])[: (PIXELS + 1) * UNITS]
    fixed = FixedPoint(math.ceil(math.log2(float(np.abs(tried).max()))) + 2, DEVICES)
    # A clip that cuts no update is the best for the leader that a plan can have.
    clip = float(np.linalg.norm(updates, axis=1).max())
    privacy = privacy_of(plan_of(EPSILON, DELTA, devices=DEVICES, versions=1, clip=clip))
    low, high = float(public.min()), float(public.max())
    read, noisy = (
        images_of(sealed_sum(updates, point, seed=seed), low=low, high=high) for point in (fixed, privacy.point)
    )
    result: dict[str, object] = {
        "imprint_images_of_160": recovered(read, own),
        "imprint_images_of_160_private": recovered(noisy, own),
        # Nobody's images: what the same candidates find by chance.
        "imprint_strangers_of_160": recovered(read, others) + recovered(noisy, others),
        "imprint_epsilon": privacy.epsilon,
        "imprint_delta": DELTA,
    }
    say(
        f"crafted model: {result['imprint_images_of_160']} of {count} images in one sealed sum of {DEVICES},"
        f" {result['imprint_images_of_160_private']} with private({EPSILON:g}, {DELTA:g})"
    )
    return result
