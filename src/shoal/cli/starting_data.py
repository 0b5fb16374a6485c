"""Data that a first project starts with: small, made up, the same each time, without a network. Numpy; no torch."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

_Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
#: Rows of each split.
_ROWS = {"train": 1_200, "test": 300}
_SEEDS = {"train": 1, "test": 2}
_DIGITS = {"train": 3_000, "test": 600}
_IMAGE_SIDE = 24
_DEVICES = 2
_SHAPES = ("circle", "cross", "square")
_PLACES = ("kitchen", "hall", "attic", "cellar", "garden")
_STATES = ("is warm", "is cold", "smells of rain", "is full of light")


def write_data(folder: Path, template: str) -> None:
    """Write the data of a template below a project's folder."""
    _WRITERS[template](folder / "data")


def _digits(folder: Path) -> None:
    from shoal.data.made_up_digits import made_up_digits

    folder.mkdir()
    for split, count in _DIGITS.items():
        x, y = made_up_digits(split)
        # Sixteen greys are enough, and keep the file below the size that is packed with a task's code.
        np.savez_compressed(folder / f"{split}.npz", x=x[:count] & 0xF0, y=y[:count])


def _images(folder: Path) -> None:
    for split, count in (("train", 120), ("test", 40)):
        rng = np.random.default_rng(_SEEDS[split])
        for shape in _SHAPES:
            (folder / split / shape).mkdir(parents=True)
            for number in range(count):
                (folder / split / shape / f"{number:03}.png").write_bytes(_png(_drawn(shape, rng)))


def _drawn(shape: str, rng: np.random.Generator) -> _Array:
    """Draw a bright shape at some place on a dark, noisy ground."""
    size, ground = rng.uniform(5, 8), rng.uniform(0, 60)
    centre = rng.uniform(size + 1, _IMAGE_SIDE - size - 1, 2)
    down, across = np.abs(np.mgrid[:_IMAGE_SIDE, :_IMAGE_SIDE] - centre[:, None, None])
    inside = {
        "circle": np.hypot(down, across) < size,
        "cross": (np.minimum(down, across) < size / 4) & (np.maximum(down, across) < size),
        "square": np.maximum(down, across) < size * 0.85,
    }[shape]
    noise = rng.normal(0, 12, (_IMAGE_SIDE, _IMAGE_SIDE))
    return np.clip(np.where(inside, 200.0, ground) + noise, 0, 255).astype(np.uint8)


def _png(grey: _Array) -> bytes:
    """Return an image of grey pixels as a PNG file (ISO/IEC 15948: signature, IHDR, IDAT, IEND)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = grey.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    # Each line begins with the number of its filter; 0 leaves it as it is.
    lines = np.pad(grey, ((0, 0), (1, 0))).tobytes()
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def _table(folder: Path) -> None:
    folder.mkdir(parents=True)
    for split in _ROWS:
        _readings(folder / f"{split}.csv", count=_ROWS[split], rng=np.random.default_rng(_SEEDS[split]))


def _readings(file: Path, *, count: int, rng: np.random.Generator, warmer: float = 0.0) -> None:
    """Write readings of pumps: one is about to fail if it is hot and shakes, or if it shakes badly."""
    temperature = rng.normal(55 + warmer, 12, count)
    vibration = rng.gamma(2.0, 1.5, count)
    load = rng.uniform(0, 1, count)
    fails = (temperature - 55 - warmer) / 12 + vibration / 1.5 + rng.normal(0, 0.3, count) > 2.8
    rows = zip(temperature, vibration, load, fails, strict=True)
    lines = [f"{t:.2f},{v:.3f},{w:.3f},{int(bad)}\n" for t, v, w, bad in rows]
    file.write_text("".join(["temperature,vibration,load,fails\n", *lines]), encoding="utf-8")


def _notes(folder: Path) -> None:
    folder.mkdir()
    for split, count in (("train", 256), ("test", 48)):
        rng = np.random.default_rng(_SEEDS[split])
        notes = (f"the {_PLACES[rng.integers(5)]} {_STATES[rng.integers(4)]}." for _ in range(count))
        text = "".join(json.dumps({"text": note}) + "\n" for note in notes)
        (folder / f"{split}.jsonl").write_text(text, encoding="utf-8")


def _devices(folder: Path) -> None:
    for number in range(1, _DEVICES + 1):
        own = folder / f"device-{number}"
        own.mkdir(parents=True)
        # Each device stands in another room, so each has other data than the next.
        rng = np.random.default_rng(10 + number)
        _readings(own / "readings.csv", count=_ROWS["train"] // _DEVICES, rng=rng, warmer=6.0 * number - 9.0)
    _readings(folder / "test.csv", count=_ROWS["test"], rng=np.random.default_rng(_SEEDS["test"]))


_WRITERS = {
    "digits": _digits,
    "folder-of-images": _images,
    "csv": _table,
    "lora": _notes,
    "local-data": _devices,
    "script": _table,
}
