"""Made-up digits in MNIST's shape, for a demo without a network. Numpy only; the same digits each time.

Each is a character of five by seven dots, turned, slanted, stretched, moved and blurred. They look printed, not
handwritten: how well a model does on them says nothing about MNIST.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from shoal.errors import Misuse

_Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
_Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
_Labels: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

#: How many examples, and the seed, of each split.
_SPLITS = {"train": (16_000, 1), "test": (2_000, 2)}
_SIDE = 28
#: Drawn at once; the coordinates of all of them would take 100 MB.
_CHUNK = 2_000

_DOTS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00010 00100 01000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)
_ROWS, _COLUMNS = 7, 5


def made_up_digits(split: str) -> tuple[_Bytes, _Labels]:
    """``"train"`` (16,000) or ``"test"`` (2,000): uint8 images N x 1 x 28 x 28 and int64 labels 0 to 9."""
    if split not in _SPLITS:
        raise Misuse(f"made-up digits have the splits train and test, not {split!r}")
    count, seed = _SPLITS[split]
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(_DOTS), count)
    images = [_drawn(labels[first : first + _CHUNK], rng) for first in range(0, count, _CHUNK)]
    return np.concatenate(images), labels


def _characters() -> _Floats:
    """Return the ten characters, each with an empty edge of one dot."""
    rows = [[[float(dot) for dot in row] for row in character.split()] for character in _DOTS]
    return np.pad(np.array(rows, np.float32), ((0, 0), (1, 1), (1, 1)))


def _drawn(labels: _Labels, rng: np.random.Generator) -> _Bytes:
    """Draw a character per label: for each pixel, where it lies on the character, and how dark that is."""

    def each(low: float, high: float) -> _Floats:
        return rng.uniform(low, high, (len(labels), 1)).astype(np.float32)

    across, down = np.meshgrid(np.arange(_SIDE), np.arange(_SIDE))
    x = across.ravel().astype(np.float32) - _SIDE / 2 + each(-3, 3)
    y = down.ravel().astype(np.float32) - _SIDE / 2 + each(-3, 3)
    angle, slant = each(-0.25, 0.25), each(-0.25, 0.25)
    turned_x = np.cos(angle) * x - np.sin(angle) * y
    turned_y = np.sin(angle) * x + np.cos(angle) * y
    dots_x = (turned_x + slant * turned_y) / each(2.4, 3.4) + (_COLUMNS - 1) / 2 + 1
    dots_y = turned_y / each(2.4, 3.2) + (_ROWS - 1) / 2 + 1
    darkness = _between(_characters(), labels, dots_y, dots_x) * each(0.7, 1.0)
    noise = rng.normal(0, 0.05, darkness.shape).astype(np.float32)
    pixels: _Bytes = np.clip((darkness + noise) * 255, 0, 255).astype(np.uint8)
    return pixels.reshape(-1, 1, _SIDE, _SIDE)


def _between(characters: _Floats, labels: _Labels, y: _Floats, x: _Floats) -> _Floats:
    """Return how dark each character is at these places, by its four nearest dots."""
    y = np.clip(y, 0, characters.shape[1] - 1.001)
    x = np.clip(x, 0, characters.shape[2] - 1.001)
    top, left = y.astype(np.int64), x.astype(np.int64)
    below, beside = y - top, x - left
    which = labels[:, None]
    upper = characters[which, top, left] * (1 - beside) + characters[which, top, left + 1] * beside
    lower = characters[which, top + 1, left] * (1 - beside) + characters[which, top + 1, left + 1] * beside
    darkness: _Floats = (upper * (1 - below) + lower * below).astype(np.float32)
    return darkness
