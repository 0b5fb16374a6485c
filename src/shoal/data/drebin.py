"""Android apps by the permissions they ask for: the shape of EDDL's malware task, from the DREBIN set. Numpy only.

D. Arp et al., "DREBIN: Effective and Explainable Detection of Android Malware in Your Pocket", NDSS 2014. Its licence
allows research and forbids passing it on, so Shoal neither ships nor downloads it.

EDDL (§3, §5) trains PerNet on 427 permissions and 71 classes - 70 malware families and benign - with 6,656 examples of
a set that is not public. This is the nearest public one, with these choices:

- *Classes.* 0 is benign; 1 to 70 are the 70 largest families, largest first. Rarer families are left out.
- *Columns.* DREBIN's apps use 207 permissions; the other 220 columns of PerNet's 427 are zero.
- *Split.* Thousands of apps ask for exactly the same permissions, so a split by app would test on what was trained on.
  Every distinct permission vector belongs wholly to one side, chosen by its SHA-256: one in five is held out.
- *Benign.* 123,453 benign apps would drown 5,316 malicious ones. The first in order of their own SHA-256 are kept: in
  train as many as make 6,656 examples with the malware (2,510 of them), in test the same share (708).

About a third of the malicious apps ask for the very permissions that some benign app asks for, so no model of this
input can be right about all of them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from shoal.data.files import data_dir
from shoal.errors import Corrupt, Misuse

Pair: TypeAlias = tuple[np.ndarray[Any, np.dtype[np.uint8]], np.ndarray[Any, np.dtype[np.int64]]]
Rows: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

COLUMNS = 427
FAMILIES = 70
TRAIN_EXAMPLES = 6_656
_HELD_OUT_ONE_IN = 5


def permissions(split: str, *, by: str = "vector") -> Pair:
    """``"train"`` (6,656) or ``"test"`` (1,878): uint8 N x 427 of zeros and ones, and int64 classes 0 to 70.

    ``by="app"`` holds out apps and not vectors, as EDDL does: then most of the test is in the training set as well.
    """
    if split not in ("train", "test"):
        raise Misuse(f"the permissions have the splits train and test, not {split!r}")
    if by not in _SIDES:
        raise Misuse(f"the permissions are split by vector or by app, not by {by!r}")
    packed, families, columns = apps()
    held_out = _SIDES[by](packed)
    # Families are numbered by size, largest first; -1 is benign.
    malware = (families >= 0) & (families < FAMILIES)
    benign_train = TRAIN_EXAMPLES - int((malware & ~held_out).sum())
    benign_test = round(benign_train * int((malware & held_out).sum()) / (TRAIN_EXAMPLES - benign_train))
    side, benign_count = (held_out, benign_test) if split == "test" else (~held_out, benign_train)
    # Rows are in order of the apps' SHA-256, so the first ones are as good as drawn.
    benign = np.flatnonzero((families < 0) & side)[:benign_count]
    rows = np.sort(np.concatenate([np.flatnonzero(malware & side), benign]))
    return unpacked(packed[rows], columns), (families[rows] + 1).astype(np.int64)


def apps() -> tuple[Rows, np.ndarray[Any, np.dtype[np.int64]], int]:
    """Return every app's permissions as bits, its family (-1 is benign), and the number of permissions."""
    return _load(data_dir() / "permissions" / "drebin_all_permissions.npz")


def unpacked(packed: Rows, columns: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return apps as PerNet takes them, N x 427."""
    x = np.zeros((len(packed), COLUMNS), np.uint8)
    x[:, :columns] = np.unpackbits(packed, axis=1)[:, :columns]
    return x


def _load(path: Path) -> tuple[Rows, np.ndarray[Any, np.dtype[np.int64]], int]:
    if not path.exists():
        raise Misuse(
            f"{path} does not exist, and DREBIN may not be redistributed. Ask for it at https://drebin.mlsec.org, save "
            "each app's permissions as an .npz with X (bit-packed rows, in order of the apps' SHA-256), ncol and y "
            "(family by size, -1 for benign). Then set SHOAL_DATA"
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            packed, families, columns = archive["X"], archive["y"].astype(np.int64), int(archive["ncol"])
    except (ValueError, KeyError, OSError) as error:
        raise Corrupt(f"{path} does not hold DREBIN's permissions: {error}") from None
    if packed.ndim != 2 or packed.dtype != np.uint8 or len(packed) != len(families) or columns > COLUMNS:
        raise Corrupt(f"{path} does not hold DREBIN's permissions: its arrays do not fit each other")
    return packed, families, columns


def by_vector(packed: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which apps are held out, so that all with the same permissions are on one side."""
    distinct, home = np.unique(packed, axis=0, return_inverse=True)
    first_bytes = [hashlib.sha256(row.tobytes()).digest()[:8] for row in distinct]
    chosen = np.array([int.from_bytes(digest, "big") % _HELD_OUT_ONE_IN == 0 for digest in first_bytes])
    # Only numpy 2.0 gave the inverse a second axis.
    held_out: np.ndarray[Any, np.dtype[np.bool_]] = chosen[home.reshape(-1)]
    return held_out


def by_app(packed: Rows) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which apps are held out: every fifth. They are in order of their SHA-256."""
    held_out: np.ndarray[Any, np.dtype[np.bool_]] = np.arange(len(packed)) % _HELD_OUT_ONE_IN == 0
    return held_out


_SIDES = {"vector": by_vector, "app": by_app}
