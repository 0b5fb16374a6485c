"""Notices that a task's code changed a frozen tensor, and names the tensor. Imports torch.

No update carries a frozen tensor, so a change of it would stay on the device: the device would evaluate a model that
nobody gets, and its next lease would depend on the one before.

A base can have gigabytes, most of them still in a file. So on devices the guard compares what costs nothing: torch's
count of in-place writes, the address of the values, and the first few values of each tensor, which show writes that
torch does not count (``.data``, views of numpy). Where a task is prepared, it compares all values.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from shoal.errors import Misuse

#: Values of each tensor that are compared on devices: they lie in one or two pages of the mapped file.
SAMPLE = 64

#: Names that an error lists.
_NAMED_MAX = 3

#: Bytes that are summed up at a time.
_CHUNK_BYTES = 1 << 24


class _Seen(NamedTuple):
    """A frozen tensor as it was."""

    owner: nn.Module
    leaf: str
    tensor: Tensor
    writes: int
    address: int
    #: The first values as bytes, or a checksum of all of them.
    values: bytes | int


class FrozenGuard:
    """The frozen tensors of one model, as they were when this was made."""

    def __init__(self, model: nn.Module, frozen: Mapping[str, Tensor], *, whole: bool = False) -> None:
        self._read = _checksum if whole else _sample
        self._seen: dict[str, _Seen] = {}
        for name, tensor in frozen.items():
            path, _, leaf = name.rpartition(".")
            owner = model.get_submodule(path)
            self._seen[name] = _Seen(owner, leaf, tensor, _writes(tensor), tensor.data_ptr(), self._read(tensor))

    def changed(self) -> list[str]:
        """Return the names of the frozen tensors that changed since, in the order of the model."""
        return [name for name, seen in self._seen.items() if self._is_changed(seen)]

    def check(self, task: str) -> None:
        """Raise Misuse if the code of this task changed a frozen tensor."""
        names = self.changed()
        if not names:
            return
        more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        raise Misuse(
            f"the code of {task} changed {', '.join(names[:_NAMED_MAX])}{more}, which is frozen"
            " (requires_grad = False): the change would stay on this device, and nobody would get it. For a mean of"
            " the weights set ema = 0.999 in the plan. Else train the tensor, make it a buffer of a trained module, or"
            " keep it outside the model"
        )

    def _is_changed(self, seen: _Seen) -> bool:
        holds: Tensor | None = seen.owner._parameters.get(seen.leaf)
        holds = seen.owner._buffers.get(seen.leaf) if holds is None else holds
        if holds is not seen.tensor or seen.tensor.data_ptr() != seen.address:
            # Another tensor is in its place.
            return True
        return _writes(seen.tensor) != seen.writes or self._read(seen.tensor) != seen.values


def _writes(tensor: Tensor) -> int:
    """Return how often torch wrote into a tensor in place, or 0 for one of inference mode, which keeps no count."""
    return 0 if tensor.is_inference() else tensor._version


def _sample(tensor: Tensor) -> bytes:
    """Return the first values, or nothing of a tensor on an accelerator, for which the device would have to wait."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
        return b""
    row = tensor.detach()
    while row.dim() > 1:
        row = row[0]
    return _bytes(row.reshape(-1)[:SAMPLE])


def _checksum(tensor: Tensor) -> int:
    if tensor.layout is not torch.strided or not tensor.numel():
        return 0
    values = tensor.detach().reshape(-1)
    step = max(1, _CHUNK_BYTES // tensor.element_size())
    total = 0
    for start in range(0, values.numel(), step):
        total = zlib.crc32(_bytes(values[start : start + step]), total)
    return total


def _bytes(values: Tensor) -> bytes:
    return values.cpu().contiguous().view(torch.uint8).numpy().tobytes()
