"""Examples at rest: shards of stacked arrays, read in place. Numpy and safetensors files; no torch, no peers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from shoal.errors import Corrupt, Misuse
from shoal.store.files import AtomicFile, telling_disk_full
from shoal.store.readable import let_others_read
from shoal.trainer.launch import opened
from shoal.wire import tensors

Array: TypeAlias = np.ndarray[Any, Any]

#: Small enough to fetch again when a link breaks, large enough that a set is not thousands of files.
SHARD_BYTES = 8 << 20

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One file of a set; its name is its hash."""

    sha256: str
    examples: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The shards of one split, in order: example i is the i-th row of their concatenation."""

    examples: int
    shards: tuple[Shard, ...]

    def to_plain(self) -> dict[str, Any]:
        return {"examples": self.examples, "shards": [asdict(shard) for shard in self.shards]}

    @classmethod
    def from_json(cls, raw: bytes) -> Manifest:
        """Read a stored manifest."""
        try:
            plain = json.loads(raw)
        except (ValueError, RecursionError):
            raise Corrupt("this is no manifest of examples: prepare the task again") from None
        return cls.from_plain(plain)

    @classmethod
    def from_plain(cls, plain: Any) -> Manifest:
        """Read what ``to_plain`` gave; refuse anything else, for the names in it become paths."""
        match plain:
            case {"examples": int(examples), "shards": list(rows), **rest} if not rest and type(examples) is int:
                shards = tuple(_shard(row) for row in rows)
            case _:
                raise Corrupt("this is no manifest of examples: prepare the task again")
        if examples != sum(shard.examples for shard in shards):
            raise Corrupt(f"a manifest of {examples} examples whose shards hold others: prepare the task again")
        return cls(examples=examples, shards=shards)


def _shard(plain: object) -> Shard:
    match plain:
        case {"sha256": str(sha256), "examples": int(examples), "bytes": int(size_bytes), **rest}:
            sizes_are_sound = type(examples) is int and type(size_bytes) is int and examples >= 0 and size_bytes >= 0
            if not rest and sizes_are_sound and _SHA256.fullmatch(sha256):
                return Shard(sha256=sha256, examples=examples, bytes=size_bytes)
    raise Corrupt("a manifest lists a shard that is none: prepare the task again")


def write_shards(
    x: Array,
    y: Array,
    directory: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int], None] = lambda examples: None,
) -> Manifest:
    """Cut a set into files named by their hash. A file that is already there is not written again."""
    if len(x) != len(y):
        raise Misuse(f"x has {len(x)} examples and y has {len(y)}: they must pair up")
    directory.mkdir(parents=True, exist_ok=True)
    row_bytes = max(1, (x.nbytes + y.nbytes) // max(1, len(x)))
    rows = max(1, shard_bytes // row_bytes)
    shards: list[Shard] = []
    for start in range(0, len(x), rows):
        part = {
            "x": np.ascontiguousarray(x[start : start + rows]),
            "y": np.ascontiguousarray(y[start : start + rows]),
        }
        shards.append(_write_shard(part, directory))
        progress(min(start + rows, len(x)))
    return Manifest(examples=len(x), shards=tuple(shards))


def _write_shard(part: dict[str, Array], directory: Path) -> Shard:
    with telling_disk_full(directory):
        pending = AtomicFile(directory)
        try:
            tensors.write(pending.file, part, {})
            shard = Shard(sha256=pending.sha256, examples=len(part["x"]), bytes=pending.size_bytes)
            let_others_read(pending.file)
            pending.commit(directory / shard.sha256)
        finally:
            pending.abort()
    return shard


class Examples:
    """A set made of mapped shards: gathering a batch touches its rows and nothing else."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._shards: list[tuple[Array, Array]] = []
        for path in paths:
            self._shards.append(_open_shard(Path(path)))
        kinds = {(x.shape[1:], x.dtype, y.shape[1:], y.dtype) for x, y in self._shards}
        if len(kinds) > 1:
            raise Corrupt("the shards of one set hold examples of another shape or type than the rest")
        lengths = [len(x) for x, _ in self._shards]
        self._starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, indices: Array) -> tuple[Array, Array]:
        """The rows with these numbers, in this order, as fresh arrays."""
        if not len(indices) or indices.min() < 0 or indices.max() >= len(self):
            raise Misuse(f"the set has examples 0 to {len(self) - 1}; others were asked for")
        first_x, first_y = self._shards[0]
        x = np.empty((len(indices), *first_x.shape[1:]), first_x.dtype)
        y = np.empty((len(indices), *first_y.shape[1:]), first_y.dtype)
        homes = np.searchsorted(self._starts, indices, side="right") - 1
        for home in np.unique(homes):
            here = homes == home
            rows = indices[here] - self._starts[home]
            shard_x, shard_y = self._shards[home]
            x[here], y[here] = shard_x[rows], shard_y[rows]
        return x, y

    def slice(self, start: int, stop: int) -> tuple[Array, Array]:
        return self.take(np.arange(start, stop))


def _open_shard(path: Path) -> tuple[Array, Array]:
    with opened(path) as file:
        arrays, _ = tensors.read(file, mmap=True)
    if set(arrays) != {"x", "y"} or len(arrays["x"]) != len(arrays["y"]):
        raise Corrupt(f"{path.name} is not a shard of examples: it must hold x and y of one length")
    return arrays["x"], arrays["y"]
