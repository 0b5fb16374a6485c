"""Examples at rest: shards of columns, read in place. Numpy and safetensors files; no torch, no peers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from shoal.errors import Corrupt, Misuse
from shoal.trainer.columns import (
    Array,
    Column,
    Plain,
    Rows,
    Stored,
    as_pair,
    labels_of,
    length_of,
    pack,
    part_of,
    unpack,
)
from shoal.trainer.launch import opened
from shoal.wire import tensors

__all__ = [
    "SHARD_BYTES",
    "Array",
    "Examples",
    "Manifest",
    "Rows",
    "Shard",
    "as_pair",
    "blocks_of",
    "labels_of",
    "value_bytes",
    "write_blocks",
    "write_shards",
]

#: The size of a shard: small enough to fetch again when a link breaks, large enough to avoid thousands of files.
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
            raise Corrupt("this is not a manifest of examples: prepare the task again") from None
        return cls.from_plain(plain)

    @classmethod
    def from_plain(cls, plain: Any) -> Manifest:
        """Read the output of ``to_plain``. Refuses anything else, because the names in it become paths."""
        match plain:
            case {"examples": int(examples), "shards": list(rows), **rest} if not rest and type(examples) is int:
                shards = tuple(_shard(row) for row in rows)
            case _:
                raise Corrupt("this is not a manifest of examples: prepare the task again")
        if examples != sum(shard.examples for shard in shards):
            raise Corrupt(f"a manifest lists {examples} examples, but its shards do not: prepare the task again")
        return cls(examples=examples, shards=shards)


#: A split that a task does not have, or that only devices have.
NO_EXAMPLES = Manifest(examples=0, shards=())


def _shard(plain: object) -> Shard:
    match plain:
        case {"sha256": str(sha256), "examples": int(examples), "bytes": int(size_bytes), **rest}:
            sizes_are_sound = type(examples) is int and type(size_bytes) is int and examples >= 0 and size_bytes >= 0
            if not rest and sizes_are_sound and _SHA256.fullmatch(sha256):
                return Shard(sha256=sha256, examples=examples, bytes=size_bytes)
    raise Corrupt("a manifest has an entry that is not a shard: prepare the task again")


def write_shards(
    x: Array,
    y: Array,
    directory: Path,
    *,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int], None] = lambda examples: None,
) -> Manifest:
    """Cut a set of pairs into files named by their hash. A file that is already there is not written again."""
    return write_blocks(blocks_of({"x": x, "y": y}, shard_bytes), directory, progress=progress)


def blocks_of(rows: Rows, shard_bytes: int = SHARD_BYTES) -> Iterator[Rows]:
    """Cut examples into blocks of at most ``shard_bytes``, or of one example that is larger."""
    count = length_of(rows)
    ends = np.cumsum(np.maximum(1, sum(_row_bytes(column) for column in rows.values())) * np.ones(count, np.int64))
    start = 0
    while start < count:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + shard_bytes, side="right")))
        yield part_of(rows, start, stop)
        start = stop


def _row_bytes(column: Column) -> Any:
    """Return the size of every row as one number, or as an array if the sizes differ."""
    if isinstance(column, np.ndarray):
        return column.nbytes // max(1, len(column))
    return np.array([value_bytes(value) for value in column], np.int64)


def value_bytes(value: Array | str | bytes) -> int:
    """Return how many bytes a value of a ragged column, of text or of bytes takes in a shard, with offset and shape."""
    if isinstance(value, np.ndarray):
        return value.nbytes + 8 * (1 + value.ndim)
    return (len(value.encode(errors="replace")) if isinstance(value, str) else len(value)) + 8


def write_blocks(
    blocks: Iterable[Rows], directory: Path, *, progress: Callable[[int], None] = lambda examples: None
) -> Manifest:
    """Write one shard per block, named by its hash. Needs the memory of one block.

    A column that is ragged in one shard is ragged in all of them: shards in which its rows happened to have one shape
    are written again.
    """
    directory.mkdir(parents=True, exist_ok=True)
    shards: list[Shard] = []
    fresh: set[str] = set()
    known: dict[str, tuple[Any, ...]] = {}
    ragged: set[str] = set()
    for block in blocks:
        late = _newly_ragged(block, known, ragged)
        if late and shards:
            shards = _rewritten(shards, directory, late, fresh)
        ragged |= late
        shards.append(_write_shard(_loosened(block, ragged), directory, fresh))
        progress(sum(shard.examples for shard in shards))
    return Manifest(examples=sum(shard.examples for shard in shards), shards=tuple(shards))


def _newly_ragged(block: Rows, known: dict[str, tuple[Any, ...]], ragged: set[str]) -> set[str]:
    """Return the columns whose rows have unequal shapes for the first time. Updates ``known`` for every column."""
    late: set[str] = set()
    for name, column in block.items():
        if isinstance(column, np.ndarray):
            shape = known.setdefault(name, column.shape[1:])
            is_ragged = shape != column.shape[1:]
        else:
            is_ragged = isinstance(column[0], np.ndarray)
        if is_ragged and name not in ragged:
            late.add(name)
    return late


def _loosened(block: Rows, ragged: set[str]) -> Rows:
    return {name: list(column) if name in ragged else column for name, column in block.items()}


def _rewritten(shards: list[Shard], directory: Path, ragged: set[str], fresh: set[str]) -> list[Shard]:
    again: list[Shard] = []
    for shard in shards:
        every = np.arange(shard.examples)
        rows: Rows = {name: column.gather(every) for name, column in _open_shard(directory / shard.sha256).items()}
        again.append(_write_shard(_loosened(rows, ragged), directory, fresh))
    # A shard that was there before may belong to another set.
    for sha256 in fresh & {shard.sha256 for shard in shards} - {shard.sha256 for shard in again}:
        (directory / sha256).unlink(missing_ok=True)
    return again


def _write_shard(rows: Rows, directory: Path, fresh: set[str]) -> Shard:
    # Imported here: a trainer only reads shards, and needs no hashes.
    from shoal.store.readable import write_by_hash

    arrays, notes = pack(rows)
    named = write_by_hash(directory, lambda file: tensors.write(file, arrays, notes))
    if named.is_new:
        fresh.add(named.sha256)
    return Shard(sha256=named.sha256, examples=length_of(rows), bytes=named.size_bytes)


class Examples:
    """A set made of mapped shards: gathering a batch touches its rows and nothing else."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._kinds: dict[str, tuple[Any, ...]] = {}
        self._shards: list[dict[str, Stored] | None] = [self._fitting(_open_shard(Path(path))) for path in paths]
        self._begin([_rows_in(shard) for shard in self._shards if shard is not None])

    @classmethod
    def to_come(cls, rows: Sequence[int]) -> Examples:
        """Make a set whose shards, with these numbers of examples, are not here yet. They are opened by number."""
        examples = cls([])
        examples._shards = [None] * len(rows)
        examples._begin(rows)
        return examples

    @classmethod
    def of(cls, rows: Mapping[str, Array]) -> Examples:
        """Make a set of rows that are in memory, each column of one shape."""
        examples = cls([])
        columns = examples._fitting({name: Plain(column) for name, column in rows.items()})
        examples._shards = [columns]
        examples._begin([_rows_in(columns)])
        return examples

    def _begin(self, rows: Sequence[int]) -> None:
        self._starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def open(self, number: int, file: BinaryIO) -> None:
        """Map a shard that has arrived, and close its file."""
        with file:
            self._check_number(number)
            columns = self._fitting(_read_shard(file, f"shard {number}"))
        if _rows_in(columns) != self._starts[number + 1] - self._starts[number]:
            raise Corrupt(f"shard {number} holds another number of examples than its manifest says")
        self._shards[number] = columns

    def shut(self, number: int) -> None:
        """Unmap a shard whose file will be removed: a mapped file keeps its disk space."""
        self._check_number(number)
        self._shards[number] = None

    def take(self, indices: Array) -> Rows:
        """Return a copy of the rows with these numbers, in this order."""
        if not len(indices) or indices.min() < 0 or indices.max() >= len(self):
            raise Misuse(f"the set has examples 0 to {len(self) - 1}; others were asked for")
        homes = np.searchsorted(self._starts, indices, side="right") - 1
        rows: Rows = {}
        for home in np.unique(homes):
            here = homes == home
            self._gather(int(home), indices[here] - self._starts[home], here, rows)
        return rows

    def _gather(self, home: int, wanted: Array, here: Array, rows: Rows) -> None:
        """Copy rows of one shard to their positions in ``rows``."""
        shard = self._shards[home]
        if shard is None:
            raise Misuse(f"shard {home} of the examples is not here: open it before its rows are taken")
        for name, column in shard.items():
            if isinstance(column, Plain):
                values = column.values
                if name not in rows:
                    rows[name] = np.empty((len(here), *values.shape[1:]), values.dtype)
                rows[name][here] = values[wanted]  # type: ignore[call-overload]
            else:
                whole: list[Any] = rows.setdefault(name, [None] * len(here))  # type: ignore[arg-type, assignment]
                for at, value in zip(np.flatnonzero(here).tolist(), column.gather(wanted), strict=True):
                    whole[at] = value

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self._kinds or ())

    def column(self, name: str) -> Column | None:
        """Return all values of one column, or None if the set has no such column."""
        parts = [shard[name] for shard in self._shards if shard is not None and name in shard]
        values: list[Any] = [part.gather(np.arange(len(part))) for part in parts]
        if not values:
            return None
        return np.concatenate(values) if isinstance(values[0], np.ndarray) else list(itertools.chain(*values))

    def slice(self, start: int, stop: int) -> Rows:
        return self.take(np.arange(start, stop))

    def _fitting(self, columns: dict[str, Stored]) -> dict[str, Stored]:
        kinds = {name: column.kind for name, column in columns.items()}
        self._kinds = self._kinds or kinds
        if kinds != self._kinds:
            raise Corrupt("the shards of one set hold examples of another shape or type than the rest")
        # In the order of the first shard, so that it does not depend on the shard in which a batch begins.
        return {name: columns[name] for name in self._kinds}

    def _check_number(self, number: int) -> None:
        if not 0 <= number < len(self._shards):
            raise Misuse(f"the set has shards 0 to {len(self._shards) - 1}, not {number}")


def _rows_in(shard: dict[str, Stored]) -> int:
    return len(next(iter(shard.values())))


def _open_shard(path: Path) -> dict[str, Stored]:
    with opened(path) as file:
        return _read_shard(file, path.name)


def _read_shard(file: BinaryIO, name: str) -> dict[str, Stored]:
    try:
        return unpack(*tensors.read(file, mmap=True))
    except Corrupt as error:
        raise Corrupt(f"{name} is not a shard of examples: {error}") from None
