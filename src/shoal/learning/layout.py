"""Where each tensor of a model lies in its flat float32 vector. Numpy only; does not know torch, files or peers."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from shoal.errors import Misuse

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["parameter", "buffer"]

# Bounds on a description that comes from elsewhere. They sit here because wire/limits.py lies above this layer.
ENTRIES_MAX = 4096
DIMENSIONS_MAX = 16
NAME_MAX_CHARS = 512
#: 1 GiB of float32.
SIZE_MAX = 1 << 28
#: Far above any real model; what json.loads may be made to chew on.
JSON_MAX_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: its name in the model, its shape, and where its first value lies."""

    name: str
    shape: tuple[int, ...]
    offset: int
    kind: Kind

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True)
class Layout:
    """Entries back to back, parameters first: ``flat[:parameters_size]`` is what momentum applies to."""

    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.entries) <= ENTRIES_MAX:
            raise Misuse(f"a model has 1 to {ENTRIES_MAX} tensors, not {len(self.entries)}")
        offset, seen, buffers_began = 0, set(), False
        for entry in self.entries:
            _check_entry(entry)
            if entry.name in seen:
                raise Misuse(f"the layout names {entry.name!r} twice")
            if entry.offset != offset:
                raise Misuse(f"{entry.name!r} lies at {entry.offset}; entries are back to back, so at {offset}")
            if entry.kind == "parameter" and buffers_began:
                raise Misuse(f"parameter {entry.name!r} follows a buffer; parameters come first")
            seen.add(entry.name)
            buffers_began = buffers_began or entry.kind == "buffer"
            offset += entry.size
            if offset > SIZE_MAX:
                raise Misuse(
                    f"the task trains more than {SIZE_MAX:,} values, the most that one message carries (1 GiB in"
                    " float32): freeze a part of the model with requires_grad_(False), or train adapters"
                )
        if offset == 0:
            raise Misuse("the model holds no values at all")

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, tuple[int, ...], Kind]]) -> Layout:
        """Lay out (name, shape, kind) in the given order, except that parameters come before buffers."""
        entries: list[Entry] = []
        offset = 0
        for name, shape, kind in sorted(tensors, key=lambda tensor: tensor[2] != "parameter"):
            entry = Entry(name, tuple(shape), offset, kind)
            _check_entry(entry)
            entries.append(entry)
            offset = entry.stop
        return cls(tuple(entries))

    @property
    def size(self) -> int:
        return self.entries[-1].stop

    @property
    def parameters_size(self) -> int:
        return sum(entry.size for entry in self.entries if entry.kind == "parameter")

    @functools.cached_property
    def sha256(self) -> str:
        """Two models fit each other if and only if these are equal."""
        # Here: a trainer's process never asks, and OpenSSL would hold 3 MB of a small device's memory.
        import hashlib

        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The canonical description. Offsets follow from the order, so none are written and none can lie."""
        rows = [[entry.name, list(entry.shape), entry.kind] for entry in self.entries]
        return json.dumps(rows, separators=(",", ":"), ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> Layout:
        """Read what ``to_json`` wrote; refuse anything else."""
        if len(text) > JSON_MAX_CHARS:
            raise Misuse(f"a layout of {len(text):,} characters is refused; the limit is {JSON_MAX_CHARS:,}")
        try:
            rows = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Misuse(f"the layout is not JSON: {error}") from None
        if not isinstance(rows, list) or len(rows) > ENTRIES_MAX:
            raise Misuse(f"a layout is a list of at most {ENTRIES_MAX} tensors")
        tensors = [_parse_row(row) for row in rows]
        layout = cls.of(tensors)
        if [entry.name for entry in layout.entries] != [name for name, _, _ in tensors]:
            raise Misuse("the layout lists a buffer before a parameter")
        return layout

    def views(self, flat: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
        """Every tensor by name, as a window into ``flat``: writing to one writes to the other."""
        if flat.shape != (self.size,):
            raise Misuse(f"the layout describes {self.size} values in one row, not shape {flat.shape}")
        return {entry.name: flat[entry.offset : entry.stop].reshape(entry.shape) for entry in self.entries}

    def difference(self, other: Layout) -> str:
        """Say where two layouts first part, for people; empty if they are the same."""
        for mine, theirs in zip(self.entries, other.entries, strict=False):
            if mine != theirs:
                return f"{_describe(mine)} here, {_describe(theirs)} there"
        if len(self.entries) != len(other.entries):
            return f"{len(self.entries)} tensors here, {len(other.entries)} there"
        return ""


def _describe(entry: Entry) -> str:
    return f"{entry.kind} {entry.name} {list(entry.shape)}"


def _check_entry(entry: Entry) -> None:
    if not 1 <= len(entry.name) <= NAME_MAX_CHARS:
        raise Misuse(f"a tensor's name has 1 to {NAME_MAX_CHARS} characters, not {len(entry.name)}")
    if entry.kind not in get_args(Kind):
        raise Misuse(f"{entry.name!r} is a parameter or a buffer, not {entry.kind!r}")
    if len(entry.shape) > DIMENSIONS_MAX or any(not 0 <= side <= SIZE_MAX for side in entry.shape):
        raise Misuse(f"{entry.name!r} has an absurd shape {str(entry.shape[:DIMENSIONS_MAX])[:200]}")
    if entry.size > SIZE_MAX:
        raise Misuse(f"{entry.name!r} is larger than {SIZE_MAX:,} values")


def _parse_row(row: object) -> tuple[str, tuple[int, ...], Kind]:
    match row:
        case [str(name), list(shape), "parameter" | "buffer" as kind] if all(type(side) is int for side in shape):
            return name, tuple(shape), kind
    raise Misuse("a layout's row is [name, [sides], 'parameter' or 'buffer']")
