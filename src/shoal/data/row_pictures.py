"""A picture as one row: ``CLASS/NAME.png`` or ``.jpg`` in a device's folder, or without a class. Needs Pillow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from shoal.data.raw_columns import RawColumn
from shoal.data.raw_values import Array, class_of
from shoal.errors import Misuse
from shoal.extras import install_command

PICTURES = (".png", ".jpg", ".jpeg")
#: A picture of more is refused before it is decoded.
PIXELS_MAX = 64_000_000
#: Pillow's name for pictures with this number of values per pixel.
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class PictureFile:
    """One row. The picture is decoded each time that the row is taken."""

    count = 1
    kept_bytes = 0

    def __init__(self, folder: Path, path: str, columns: Mapping[str, RawColumn]) -> None:
        self._path = folder / path
        self._column, label = _columns_for(columns)
        self._shape = columns[self._column].shape
        self._height, self._width, self._channels, self._is_first = _sizes(self._column, columns[self._column])
        self._label: tuple[str, int] | None = None
        if label is not None:
            home, _, _ = path.rpartition("/")
            if not home:
                raise Misuse(f"a picture is in a folder with the name of its class, which is its column {label}")
            self._label = label, class_of(home, label, columns[label])

    def take(self, rows: Array) -> Mapping[str, Array]:
        found = {self._column: np.repeat(self._picture()[None], len(rows), 0)}
        if self._label is not None:
            name, value = self._label
            found[name] = np.full(len(rows), value, np.int64)
        return found

    def drop(self) -> None:
        """Nothing is kept."""

    def _picture(self) -> Array:
        try:
            from PIL import Image, ImageOps
        except ImportError:
            raise Misuse(f"reading it needs a package: {install_command('pictures')}") from None
        try:
            with Image.open(self._path, formats=("PNG", "JPEG")) as picture:
                if picture.width * picture.height > PIXELS_MAX:
                    raise Misuse(f"the picture has more than {PIXELS_MAX:,} pixels")
                if picture.mode in ("I", "F") or picture.mode.startswith("I;"):
                    # Pillow would cut what is above 255.
                    raise Misuse(f"the picture has more than 8 bits per value, and column {self._column} has 8")
                # A telephone writes pictures as its sensor lay, and says how to turn them.
                upright = ImageOps.exif_transpose(picture)
                if (upright.width, upright.height) != (self._width, self._height):
                    raise Misuse(
                        f"the picture has {upright.width} x {upright.height} pixels, and column {self._column} "
                        f"{self._width} x {self._height}: scale it"
                    )
                values: Array = np.asarray(upright.convert(_MODES[self._channels]))
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            raise Misuse("this is not a complete picture") from None
        values = values.reshape(self._height, self._width, self._channels)
        return (values.transpose(2, 0, 1) if self._is_first else values).reshape(self._shape)


def _columns_for(columns: Mapping[str, RawColumn]) -> tuple[str, str | None]:
    """Return which column takes the picture, and which its class, if there is one."""
    pictures = [name for name, column in columns.items() if column.dtype == "uint8" and len(column.shape) in (2, 3)]
    labels = [name for name, column in columns.items() if column.is_label]
    if len(pictures) != 1 or len(columns) > 2 or len(labels) != len(columns) - 1:
        raise Misuse(
            "a folder of pictures is for a task with one column of uint8 [height, width] or with channels, and perhaps "
            f"one of whole numbers for the class; its columns are {', '.join(f'{n} {c}' for n, c in columns.items())}"
        )
    return pictures[0], labels[0] if labels else None


def _sizes(name: str, column: RawColumn) -> tuple[int, int, int, bool]:
    """Return height, width, channels, and whether the channels come first."""
    first, second, third = column.shape if len(column.shape) == 3 else (*column.shape, 1)
    if third in _MODES:
        return first, second, third, False
    if first in _MODES:
        return second, third, first, True
    raise Misuse(f"column {name} is {column}, and a picture has 1, 3 or 4 channels, last or first")
