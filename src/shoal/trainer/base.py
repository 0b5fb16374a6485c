"""The frozen base of a model: tensors that are not trained, in files that devices fetch once and map. Imports torch.

The leader never sees the base, and no update names it. A file holds up to ``PART_BYTES``, so that a device whose link
breaks fetches one part again and not a gigabyte. A larger tensor has its own file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.errors import Misuse
from shoal.store.readable import write_by_hash
from shoal.trainer.frozen_build import fill
from shoal.trainer.launch import opened
from shoal.trainer.whole_file import BFLOAT16, TYPES_NOTE
from shoal.wire import tensors
from shoal.wire.limits import BLOB_MAX_BYTES, TENSOR_FILE_HEADER_MAX_BYTES

PART_BYTES = 256 << 20

#: A tensor is in one file, since it is mapped as one; the file also has a header.
FROZEN_TENSOR_MAX_BYTES = BLOB_MAX_BYTES - TENSOR_FILE_HEADER_MAX_BYTES - 8

#: The one type that numpy lacks and safetensors has; others that numpy lacks are stored as bytes.
_BFLOAT16 = torch.bfloat16


def write_base(frozen: Mapping[str, Tensor], directory: Path) -> tuple[str, ...]:
    """Write the frozen tensors in parts. Return the hashes that name the files, in order."""
    directory.mkdir(parents=True, exist_ok=True)
    return tuple(_write_part(part, directory) for part in _parts(frozen))


def load_base(frozen: Mapping[str, Tensor], paths: Sequence[str | Path]) -> None:
    """Replace the values of a model's frozen tensors with the stored ones, which stay in the files until read."""
    missing = dict(frozen)
    for path in paths:
        with opened(Path(path)) as file:
            arrays, notes = tensors.read(file, mmap=True, private=True)
        for name, array in arrays.items():
            if name not in missing:
                raise Misuse(f"the job's frozen {name} is not in the model that this device builds, or is trained here")
            assign(name, missing.pop(name), array, notes)
    if missing:
        raise Misuse(f"this device builds frozen tensors that the job does not have, such as {next(iter(missing))}")


def assign(name: str, tensor: Tensor, array: np.ndarray, notes: Mapping[str, str]) -> None:
    """Replace the values of a frozen tensor with a stored array. ``notes`` are those of its file."""
    types = json.loads(notes.get(TYPES_NOTE, "{}"))
    stored = torch.from_numpy(array)
    kind = getattr(torch, types[name]) if name in types else stored.dtype
    stored = stored.view(kind).reshape(stored.shape[:-1]) if name in types and kind != _BFLOAT16 else stored.view(kind)
    if (stored.dtype, stored.shape) != (tensor.dtype, tensor.shape):
        here, there = (f"{each.dtype} {list(each.shape)}" for each in (tensor, stored))
        raise Misuse(f"the frozen {name} is {here} on this device and {there} in the job; do its versions differ?")
    # Not copied: the values lie in the file's pages, which the system drops and reads again as memory allows.
    if tensor.is_meta:
        fill(tensor, stored)
    else:
        tensor.data = stored.to(tensor.device)


def _parts(frozen: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    part: dict[str, Tensor] = {}
    size_bytes = 0
    for name, tensor in frozen.items():
        if tensor.nbytes > FROZEN_TENSOR_MAX_BYTES:
            limit = f"the limit of one file is {FROZEN_TENSOR_MAX_BYTES:,}"
            raise Misuse(f"the frozen {name} has {tensor.nbytes:,} bytes; {limit}")
        if part and (size_bytes + tensor.nbytes > PART_BYTES or len(part) >= 1000):
            yield part
            part, size_bytes = {}, 0
        part[name] = tensor
        size_bytes += tensor.nbytes
    if part:
        yield part


def _write_part(part: Mapping[str, Tensor], directory: Path) -> str:
    arrays: dict[str, np.ndarray] = {}
    types: dict[str, str] = {}
    for name, tensor in part.items():
        values = tensor.detach().cpu().contiguous()
        if tensor.dtype == _BFLOAT16:
            arrays[name], types[name] = values.view(torch.uint16).numpy(), BFLOAT16
            continue
        try:
            arrays[name] = values.numpy()
        except TypeError:
            arrays[name] = values.unsqueeze(-1).view(torch.uint8).numpy()
            types[name] = str(tensor.dtype).removeprefix("torch.")
    halves = {name for name, kind in types.items() if kind == BFLOAT16}
    notes = {TYPES_NOTE: json.dumps(types)} if types else {}
    return write_by_hash(directory, lambda file: tensors.write(file, arrays, notes, bfloat16=halves)).sha256
