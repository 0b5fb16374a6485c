"""Examples from numpy's .npz archives: one array a column. Numpy only; an array is read when its first row is."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import Corrupt, Misuse


class NpzRows:
    """A Dataset of dicts. How many there are is told by the arrays' headers."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._arrays: dict[str, np.ndarray[Any, Any]] | None = None
        try:
            with zipfile.ZipFile(self._path) as archive:
                shapes = {name.removesuffix(".npy"): _shape(archive, name) for name in archive.namelist()}
        except OSError as error:
            raise Misuse(f"{self._path} cannot be read: {error.strerror or error}") from None
        except (ValueError, zipfile.BadZipFile) as error:
            raise Corrupt(f"{self._path} is not an archive of arrays: {error}") from None
        lengths = {name: shape[0] if shape else 0 for name, shape in shapes.items()}
        if not shapes or len(set(lengths.values())) != 1 or not all(shapes.values()):
            told = ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "nothing"
            raise Corrupt(f"{self._path} holds {told}: its arrays need one row for each example")
        self._count = next(iter(lengths.values()))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, np.ndarray[Any, Any]]:
        if not 0 <= index < self._count:
            raise IndexError(f"{self._path} holds examples 0 to {self._count - 1}, not {index}")
        if self._arrays is None:
            self._arrays = self._read()
        return {name: array[index] for name, array in self._arrays.items()}

    def _read(self) -> dict[str, np.ndarray[Any, Any]]:
        try:
            with np.load(self._path, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise Corrupt(f"{self._path} is not an archive of arrays: {error}") from None


def _shape(archive: zipfile.ZipFile, name: str) -> tuple[int, ...]:
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which are never read")
    return tuple(shape)


def npz(path: str | Path) -> NpzRows:
    """The rows of an .npz archive: its arrays are the columns, and example i is row i of each."""
    return NpzRows(path)
