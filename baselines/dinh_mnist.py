"""MNIST among 20 devices with two digits each, as Dinh et al. 2020 (arXiv:2006.08848) divided it.

The division follows the code that the authors had released when the paper came out (commit 20729ca of
github.com/CharlieDinh/pFedMe). Its sizes are those that the paper prints: 1,165 to 3,834 examples to train on. That
code took every device's examples of a digit from the first one on, so devices share examples, and some examples that
one device tests with are among those that another trains on. A later release of the code divides them differently.
"""

from __future__ import annotations

import functools
import random  # noqa: TID251  the division is of this generator

import numpy as np

import shoal

DEVICES, DIGITS_EACH = 20, 2
#: In the code, an array that had been something else held where a digit's next example is: it only knows 0 and 1.
#: It began as 1 for the digit 4, because the fifth image of MNIST is a nine.
_BEGINS_AT_1 = 4

Rows = tuple[np.ndarray, np.ndarray]


@functools.cache
def devices_rows() -> list[tuple[Rows, Rows]]:
    """Return the examples to train on and to test with, by device."""
    pixels, digits = _all_digits()
    by_digit = [pixels[digits == digit] for digit in range(10)]
    shuffled, found = random.Random(1), []  # nosec B311
    begin = [int(digit == _BEGINS_AT_1) for digit in range(10)]
    sizes = iter(_sizes([len(each) for each in by_digit]))
    for device in range(DEVICES):
        images: list[np.ndarray] = []
        labels: list[int] = []
        for digit in ((device + number) % 10 for number in range(DIGITS_EACH)):
            size = next(sizes)
            images += list(by_digit[digit][begin[digit] : size])
            # One label more than images where these begin at 1, so that the next digit's first image has this label.
            labels += [digit] * size
            begin[digit] = 1
        order = list(range(len(images)))
        shuffled.shuffle(order)
        x, y = np.stack([images[row] for row in order]), np.array([labels[row] for row in order])
        edge = int(0.75 * len(order))
        found.append(((x[:edge], y[:edge]), (x[edge:], y[edge:])))
    return found


def _all_digits() -> Rows:
    """Return all 70,000 images, each pixel less its mean and divided by its deviation."""
    parts = [shoal.data.mnist(split) for split in ("train", "test")]
    pixels = np.concatenate([np.asarray(x).reshape(-1, 784) for x, _ in parts]).astype(np.float32)
    digits = np.concatenate([np.asarray(y) for _, y in parts]).astype(np.int64)
    return (pixels - pixels.mean(0)) / (pixels.std(0) + np.float32(0.001)), digits


def _sizes(counts: list[int]) -> list[int]:
    """Divide each digit's examples into four lots by chance. Return them in the order in which devices take them: the
    first lots of all digits, then the second."""
    rng, lots = np.random.RandomState(1), []
    for count in counts:
        left, some = count, []
        for _ in range(DEVICES * DIGITS_EACH // 10 - 1):
            some.append(int(rng.randint(left // 5, left // 2)))
            left -= some[-1]
        lots.append([*some, left])
    return [some[number] for number in range(len(lots[0])) for some in lots]
