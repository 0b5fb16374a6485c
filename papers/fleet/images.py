"""Pictures and who has which: by label shards, by one owner of a label, by writer, or at random. Knows no network."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from papers.fleet.setting import BATCH, OWNER_USERS, SHARDS_A_USER, TEST_IMAGES, USERS
from shoal.data.digits import mnist, read_idx
from shoal.data.files import data_dir
from shoal.errors import Corrupt, Misuse

#: Where Debian's package dataset-fashion-mnist puts its files; another folder by SHOAL_FASHION.
FASHION_DIR = Path(os.environ.get("SHOAL_FASHION", "/usr/share/datasets/fashion-mnist"))
HOW_TO_GET_FASHION = (
    "Fashion-MNIST is not here: apt-get install dataset-fashion-mnist, or set SHOAL_FASHION to a folder with its four "
    "files (train-images-idx3-ubyte.gz and so on)"
)

#: The column of QMNIST's labels that says who wrote a digit (Yadav and Bottou 2019).
_WRITER = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Pictures:
    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


@lru_cache(maxsize=2)
def digits() -> Pictures:
    """MNIST, and the part of its test images that is looked at on the way."""
    return _looked_at(*mnist("train"), *mnist("test"))


@lru_cache(maxsize=1)
def fashion() -> Pictures | None:
    """Fashion-MNIST; None where it is not installed."""
    if not (FASHION_DIR / "train-images-idx3-ubyte.gz").exists():
        return None
    arrays: list[np.ndarray] = []
    for split in ("train", "t10k"):
        images = read_idx(gzip.decompress((FASHION_DIR / f"{split}-images-idx3-ubyte.gz").read_bytes()))
        labels = read_idx(gzip.decompress((FASHION_DIR / f"{split}-labels-idx1-ubyte.gz").read_bytes()))
        arrays += [images.reshape(-1, 1, 28, 28), labels.astype(np.int64)]
    return _looked_at(*arrays)


def _looked_at(images: np.ndarray, labels: np.ndarray, test_images: np.ndarray, test_labels: np.ndarray) -> Pictures:
    shown = np.sort(np.random.default_rng(0).permutation(len(test_labels))[:TEST_IMAGES])
    return Pictures(images=images, labels=labels, test_images=test_images[shown], test_labels=test_labels[shown])


def two_shards(labels: np.ndarray, *, seed: int, users: int = USERS) -> list[np.ndarray]:
    """§3.2: sorted by label, cut into 2 shards a user, which are dealt out: few labels each."""
    shards = np.array_split(np.argsort(labels, kind="stable"), SHARDS_A_USER * users)
    dealt = np.random.default_rng([seed, 1]).permutation(len(shards)).reshape(users, SHARDS_A_USER)
    return [np.concatenate([shards[shard] for shard in own]) for own in dealt]


def one_owner(labels: np.ndarray, *, seed: int, label: int = 0, users: int = OWNER_USERS) -> list[np.ndarray]:
    """Ten clients, as in the authors' released code: the first has every picture of one label and no other picture;
    the others have two shards each of the rest."""
    order = np.argsort(labels, kind="stable")
    rest = order[labels[order] != label]
    shards = np.array_split(rest, SHARDS_A_USER * (users - 1))
    dealt = np.random.default_rng([seed, 1]).permutation(len(shards)).reshape(users - 1, SHARDS_A_USER)
    return [order[labels[order] == label], *(np.concatenate([shards[shard] for shard in own]) for own in dealt)]


def alike(count: int, *, seed: int, users: int = USERS) -> list[np.ndarray]:
    """Everyone has a random part: IID."""
    return list(np.array_split(np.random.default_rng([seed, 2]).permutation(count), users))


def by_writer() -> list[np.ndarray]:
    """The digits of each of MNIST's 539 training writers; of few digits, a writer's batch is all of them."""
    writers = writers_of(gzip.decompress((data_dir() / "mnist" / "qmnist-train-labels-idx2-int.gz").read_bytes()))
    return [np.flatnonzero(writers == writer) for writer in np.unique(writers)]


def writers_of(data: bytes) -> np.ndarray:
    """The writer of each image, from QMNIST's labels: idx of 32-bit numbers, a row an image."""
    if data[:4] != b"\0\0\x0c\x02":
        raise Corrupt("this is not an idx file of rows of 32-bit numbers")
    rows, columns = (int(side) for side in np.frombuffer(data, ">i4", count=2, offset=4))
    return np.frombuffer(data, ">i4", offset=12).reshape(rows, columns)[:, _WRITER].astype(np.int64)


def batch_of(own: np.ndarray, generator: np.random.Generator, *, size: int = BATCH) -> np.ndarray:
    """Some of a user's own, none twice."""
    return generator.choice(own, min(size, len(own)), replace=False)


def label_counts(labels: np.ndarray, *, classes: int) -> np.ndarray:
    """How many examples of each class there are, as int64."""
    if labels.size and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise Misuse(f"labels of {classes} classes are 0 to {classes - 1}, not {labels.min()} to {labels.max()}")
    return np.bincount(labels.ravel(), minlength=classes).astype(np.int64)
