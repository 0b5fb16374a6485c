"""Joins a pulled model and its job's frozen base into one safetensors file. Numpy only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from shoal.errors import Misuse
from shoal.store.readable import write_readable
from shoal.wire import tensors

#: The note of a file that holds the torch types of tensors whose type numpy lacks.
TYPES_NOTE = "torch_types"
BFLOAT16 = "bfloat16"


def write_whole(model: Path, base: Sequence[Path], out: Path) -> None:
    """Write the model's tensors and those of its base. Base files are mapped: they may be larger than memory."""
    arrays, notes = tensors.read(model)
    types: dict[str, str] = {}
    for part in base:
        frozen, told = tensors.read(part)
        if twice := arrays.keys() & frozen.keys():
            raise Misuse(f"{min(twice)} is in the model and in its frozen base: pull the model again")
        arrays |= frozen
        types |= json.loads(told.get(TYPES_NOTE, "{}"))
    halves = {name for name, kind in types.items() if kind == BFLOAT16}
    more = {TYPES_NOTE: json.dumps(types)} if types else {}
    write_readable(out, lambda file: tensors.write(file, arrays, notes | more, bfloat16=halves))
