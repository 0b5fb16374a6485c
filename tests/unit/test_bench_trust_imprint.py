"""What a crafted model shows its leader: images out of an honest sum, and none where devices add noise."""

from __future__ import annotations

import numpy as np

from benchmarks import trust_imprint
from benchmarks.trust_imprint import CLASSES, PIXELS, UNITS, Crafted, images_of, measure, recovered


def pictures(count: int, *, seed: int) -> np.ndarray:
    """Make images that differ in brightness as handwriting does."""
    rng = np.random.default_rng(seed)
    ink = rng.random((count, PIXELS)) < rng.uniform(0.05, 0.3, (count, 1))
    return (ink * 3.2 - 0.4).astype(np.float32)


def test_the_update_of_one_image_shows_that_image() -> None:
    crafted = Crafted.of(pictures(2000, seed=1), np.random.default_rng(0))
    image = pictures(1, seed=2)
    update = crafted.update(image, np.array([3]))
    assert update.size == (PIXELS + 1) * UNITS + (UNITS + 1) * CLASSES
    read = images_of(update, low=-0.4, high=2.8)
    assert recovered(read, image) == 1


def test_an_image_counts_once_and_another_image_does_not() -> None:
    images = pictures(3, seed=3)
    assert recovered(np.stack([images[1], images[1] + 0.01]), images) == 1
    assert recovered(np.full((4, PIXELS), images.mean()), images) == 0
    assert recovered(images, pictures(5, seed=4)) == 0
    assert recovered(images[:0], images) == 0


def test_a_sum_shows_most_images_and_a_private_sum_none() -> None:
    public, own = pictures(4000, seed=5), pictures(400, seed=6)
    labels = np.arange(4000) % CLASSES
    told = measure(own, labels[:400], public, labels)
    assert isinstance(told["imprint_images_of_160"], int)
    assert told["imprint_images_of_160"] > 80
    assert told["imprint_images_of_160_private"] == 0
    assert told["imprint_strangers_of_160"] == 0
    assert told["imprint_epsilon"] == trust_imprint.EPSILON
