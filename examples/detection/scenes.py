"""Scenes of one to three handwritten digits on a dark canvas, and the box of each. Numpy only."""

import numpy as np

import shoal

SIDE = 64


def scenes(split, count):
    """Images uint8 (count, 1, 64, 64), and for each image its boxes: rows of left, top, right, bottom in pixels."""
    digits, _ = shoal.data.mnist(split)
    chance = np.random.default_rng(0 if split == "train" else 1)
    drawn = [_scene(digits, chance) for _ in range(count)]
    return np.stack([image for image, _ in drawn]), [boxes for _, boxes in drawn]


def _scene(digits, chance):
    image, boxes = np.zeros((1, SIDE, SIDE), np.uint8), []
    for digit in digits[chance.integers(0, len(digits), chance.integers(1, 4))]:
        ink = _inked(digit.reshape(28, 28))
        height, width = ink.shape
        # A place that no digit has yet; where there is none in a few tries, the scene has a digit less.
        for left, top in zip(chance.integers(0, SIDE - width, 9), chance.integers(0, SIDE - height, 9), strict=True):
            box = (left, top, left + width, top + height)
            if all(_apart(box, other) for other in boxes):
                image[0, top : top + height, left : left + width] = ink
                boxes.append(box)
                break
    return image, np.array(boxes, np.float32)


def _inked(digit):
    rows, columns = (np.flatnonzero(digit.max(axis)) for axis in (1, 0))
    return digit[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _apart(a, b):
    return a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
