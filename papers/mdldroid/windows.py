"""Windows of people's movements and which device has whose. Numpy only; knows no network.

UCI's recordings of 30 people with a phone at the waist: the six activities that the paper has, and UCI's own nine
people for the test, whom no device has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from papers.mdldroid.setting import CLASSES
from shoal.data.files import data_dir
from shoal.errors import Misuse

#: 21 people on nine devices, as unequally as people own data: one device has eight of them, five have one.
UNEQUAL = (8, 4, 2, 2, 1, 1, 1, 1, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Windows:
    values: np.ndarray
    labels: np.ndarray
    people: np.ndarray
    test_values: np.ndarray
    test_labels: np.ndarray


@lru_cache(maxsize=1)
def recorded() -> Windows:
    path = data_dir() / "har" / "hapt_windows_9ch_128.npz"
    if not path.exists():
        raise Misuse(f"{path} is not there: set SHOAL_DATA to a folder that has har/")
    with np.load(path) as file:
        kept = file["y"] <= CLASSES
        values, labels = file["X"][kept], file["y"][kept].astype(np.int64) - 1
        people, apart = file["subject"][kept].astype(np.int64), file["test_subjects"]
    test = np.isin(people, apart)
    # By what the training people's channels are like: a device could agree on that in one round.
    mean = values[~test].mean(axis=(0, 2), keepdims=True)
    spread = values[~test].std(axis=(0, 2), keepdims=True)
    scaled = ((values - mean) / spread).astype(np.float32)
    return Windows(
        values=scaled[~test],
        labels=labels[~test],
        people=people[~test],
        test_values=scaled[test],
        test_labels=labels[test],
    )


def by_person(people: np.ndarray, *, devices: int, seed: int, sizes: Sequence[int] = ()) -> list[np.ndarray]:
    """Whole people to each device: as equally as they go, or so many each."""
    names = np.unique(people)
    if sizes and (len(sizes) != devices or sum(sizes) != len(names)):
        raise Misuse(f"{sizes} does not share {len(names)} people among {devices} devices")
    order = np.random.default_rng([seed, 1]).permutation(names)
    shares = np.split(order, np.cumsum(sizes)[:-1]) if sizes else [order[first::devices] for first in range(devices)]
    return [np.flatnonzero(np.isin(people, share)) for share in shares]


def at_random(count: int, *, devices: int, seed: int) -> list[np.ndarray]:
    """Equal parts of everybody, as the paper divides its sets (§4.3)."""
    order = np.random.default_rng([seed, 2]).permutation(count)
    return [np.sort(order[first::devices]) for first in range(devices)]
