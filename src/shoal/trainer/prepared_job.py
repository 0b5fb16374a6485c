"""A prepared task, as a value and on disk. No torch: the agent reads it, the prepare process writes it."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shoal.errors import Corrupt, ShoalError
from shoal.learning.layout import Layout
from shoal.trainer.shards import Manifest, Shard
from shoal.wire import tensors
from shoal.wire.messages import is_sha256

#: The note in the first model's file that holds its layout.
LAYOUT_NOTE = "layout"
#: The note that holds the layout of each device's own part of the model, if there is one.
OWN_NOTE = "own"
#: Where examples are, beside the answers of a plan: they are here, to be divided among simulated devices that each have
#: examples of their own.
DIVIDED = "divided"
#: Prepared tasks that are looked through for one.
_PREPARED_MAX = 10_000
#: Part of every cache key: raise it when the files change.
_FORMAT = 5


def first_model(path: Path) -> tuple[Layout, np.ndarray]:
    """Return the first model of a job from its file, as a flat vector in memory, and its layout."""
    arrays, notes = tensors.read(path, mmap=True)
    layout = Layout.from_json(notes[LAYOUT_NOTE])
    model = np.empty(layout.size, dtype=np.float32)
    for name, view in layout.views(model).items():
        view[...] = arrays[name]
    return layout, model


def own_layout(path: Path) -> Layout | None:
    """Return the layout of each device's own part of the model, from the file of the first model."""
    _, notes = tensors.read(path, mmap=True)
    return Layout.from_json(notes[OWN_NOTE]) if OWN_NOTE in notes else None


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedJob:
    """The first model and the examples of a job, all in files."""

    model: str
    model_sha256: str
    layout: Layout
    #: The hashes of the frozen base's parts, in order; the files lie among the shards.
    base: tuple[str, ...] = ()
    train: Manifest
    test: Manifest
    #: The directory in which each shard's name is its hash.
    shards: str
    #: The task's own plan as plain values. Empty if it has none.
    plan: dict[str, Any]
    #: Multiply-adds of one example's forward pass, in billions, or 0 if not known.
    gmacs_per_example: float = 0.0

    def paths(self, manifest: Manifest) -> tuple[str, ...]:
        """Return the files of one split, in order."""
        return tuple(str(Path(self.shards) / shard.sha256) for shard in manifest.shards)

    @property
    def base_paths(self) -> tuple[str, ...]:
        return tuple(str(Path(self.shards) / part) for part in self.base)

    def to_plain(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "model_sha256": self.model_sha256,
            "layout": self.layout.to_json(),
            "layout_sha256": self.layout.sha256,
            "size": self.layout.size,
            "parameters_size": self.layout.parameters_size,
            "base": list(self.base),
            "train": self.train.to_plain(),
            "test": self.test.to_plain(),
            "shards": self.shards,
            "plan": self.plan,
            "gmacs_per_example": self.gmacs_per_example,
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> PreparedJob:
        try:
            texts = [plain[name] for name in ("model", "model_sha256", "layout", "shards")]
            if not all(isinstance(text, str) and "\0" not in text for text in texts):
                raise Corrupt("a path, a hash or the layout is not text")
            if not isinstance(plain["base"], list) or not all(map(is_sha256, plain["base"])):
                raise Corrupt("a part of the base is not named by its hash")
            if not isinstance(plain["plan"], dict) or not isinstance(plain["gmacs_per_example"], int | float):
                raise Corrupt("its plan or its cost is of another type")
            return cls(
                model=plain["model"],
                model_sha256=plain["model_sha256"],
                layout=Layout.from_json(plain["layout"]),
                base=tuple(plain["base"]),
                train=Manifest.from_plain(plain["train"]),
                test=Manifest.from_plain(plain["test"]),
                shards=plain["shards"],
                plan=plain["plan"],
                gmacs_per_example=plain["gmacs_per_example"],
            )
        except (KeyError, TypeError, ShoalError) as error:
            raise Corrupt(f"this does not describe a prepared task: {error}; prepare it again") from None

    @classmethod
    def find(cls, out: Path, key: str) -> PreparedJob | None:
        """Return what an earlier run prepared, or None unless all its files are still there with their sizes."""
        try:
            found = cls.from_plain(json.loads((out / key / "prepared.json").read_bytes()))
        except (OSError, ValueError, RecursionError, Corrupt):
            return None
        shards = (*found.train.shards, *found.test.shards)
        files = (found.model, *found.base_paths)
        sound = all(map(os.path.isfile, files)) and all(_is_there(Path(found.shards), shard) for shard in shards)
        return found if sound else None


def known_gmacs(out: Path, model_sha256: str) -> float:
    """Return the multiply-adds of one example, in billions, of the task that was prepared here with this first model.
    0 if none was, or if its cost is not known."""
    for path in itertools.islice(sorted(out.glob("*/prepared.json")), _PREPARED_MAX):
        try:
            found = PreparedJob.from_plain(json.loads(path.read_bytes()))
        except (OSError, ValueError, RecursionError, Corrupt):
            continue
        if found.model_sha256 == model_sha256 and found.gmacs_per_example:
            return found.gmacs_per_example
    return 0.0


def cache_key(
    bundle: bytes,
    entry: str,
    arguments: dict[str, Any],
    seed: int,
    data: str = "",
    start: str = "",
    shared: Sequence[str] = (),
) -> str:
    """Return a name for a prepared task, from all that decides it: its code, its arguments, its seed, where examples
    live, the hash of the file that it starts from, and those of the files of a shared set."""
    code = hashlib.sha256(bundle).hexdigest()
    begins = [start] if start else []
    decided_by = json.dumps(
        [_FORMAT, code, entry, arguments, seed, data, *begins, *([list(shared)] if shared else [])], sort_keys=True
    )
    return hashlib.sha256(decided_by.encode()).hexdigest()


def _is_there(directory: Path, shard: Shard) -> bool:
    file = directory / shard.sha256
    return file.is_file() and file.stat().st_size == shard.bytes
