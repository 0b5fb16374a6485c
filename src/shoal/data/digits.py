"""MNIST: 70,000 handwritten digits. Numpy only.

Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits", 1998.
"""

from __future__ import annotations

import gzip
import math
import threading
from typing import Any, TypeAlias

import numpy as np

from shoal.data.files import RemoteFile, fetched
from shoal.errors import Corrupt, Misuse, ShoalError, Unreachable

Pair: TypeAlias = tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.int64]]]

_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
_FILES = {
    "train": (
        RemoteFile(
            name="train-images-idx3-ubyte.gz",
            sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            bytes=9_912_422,
        ),
        RemoteFile(
            name="train-labels-idx1-ubyte.gz",
            sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            bytes=28_881,
        ),
    ),
    "test": (
        RemoteFile(
            name="t10k-images-idx3-ubyte.gz",
            sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            bytes=1_648_877,
        ),
        RemoteFile(
            name="t10k-labels-idx1-ubyte.gz",
            sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            bytes=4_542,
        ),
    ),
}


def mnist(split: str) -> Pair:
    """``"train"`` (60,000) or ``"test"`` (10,000): uint8 images N x 1 x 28 x 28 and int64 labels 0 to 9."""
    if split not in _FILES:
        raise Misuse(f"MNIST has the splits train and test, not {split!r}")
    images_file, labels_file = _FILES[split]
    images = read_idx(gzip.decompress(fetched("mnist", images_file, _MIRRORS)))
    labels = read_idx(gzip.decompress(fetched("mnist", labels_file, _MIRRORS)))
    return images.reshape(-1, 1, 28, 28), labels.astype(np.int64)


def fetch_mnist(*, patience_s: float) -> str:
    """Fetch the files of MNIST that are not on this machine yet. Return why that fails, or an empty text.

    The smallest file comes first, within ``patience_s``: without a network, looking up a name can take minutes.
    """
    files = sorted((file for pair in _FILES.values() for file in pair), key=lambda file: file.bytes)
    failures: list[ShoalError] = []

    def fetch(wanted: list[RemoteFile]) -> None:
        try:
            for file in wanted:
                fetched("mnist", file, _MIRRORS)
        except ShoalError as error:
            failures.append(error)

    first = threading.Thread(target=fetch, args=(files[:1],), daemon=True)
    first.start()
    first.join(patience_s)
    if first.is_alive():
        return f"no server answered within {patience_s:g} s"
    if not failures:
        fetch(files[1:])
    if failures and not isinstance(failures[0], Unreachable):
        raise failures[0]
    return "no server can be reached" if failures else ""


def read_idx(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """An array in MNIST's own format: two zeros, type 8 (bytes), the number of sides, the sides, the bytes."""
    dimensions = data[3] if len(data) >= 4 and data[:3] == b"\0\0\x08" else 0
    shape = tuple(int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions))
    if not 1 <= dimensions <= 4 or len(data) != 4 + 4 * dimensions + math.prod(shape):
        raise Corrupt("this is not an idx file of bytes")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape).copy()
