"""A torch module to and from one flat vector, by layout. Does not train and does not know shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from shoal.errors import Misuse
from shoal.learning.layout import Kind, Layout


def layout_of(module: nn.Module) -> Layout:
    """Lay out a module: its parameters, then its floating-point buffers (such as BatchNorm's running mean).

    Whole-number buffers (BatchNorm's count of batches) and buffers that the module does not save stay behind: an
    average of them means nothing, and every device builds its own.
    """
    return Layout.of((name, tuple(tensor.shape), kind) for name, tensor, kind in _tensors(module))


def read_into(flat: np.ndarray[Any, Any], module: nn.Module, layout: Layout) -> None:
    """Copy the module's values into ``flat``."""
    views = layout.views(flat)
    with torch.no_grad():
        for name, tensor, _ in _tensors(module):
            torch.from_numpy(views[name]).copy_(tensor)


def write_from(flat: np.ndarray[Any, Any], module: nn.Module, layout: Layout) -> None:
    """Copy ``flat`` into the module, in place: optimisers and views keep pointing at the same tensors."""
    views = layout.views(flat)
    with torch.no_grad():
        for name, tensor, _ in _tensors(module):
            tensor.copy_(torch.from_numpy(views[name]))


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor, Kind]]:
    """Each tensor once, under its first name, so that tied weights are sent and stepped once."""
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise Misuse(f"parameter {name} has no shape yet: run one batch through the model in model()")
        if parameter.dtype != torch.float32:
            raise Misuse(f"parameter {name} is {parameter.dtype}; models are float32 while they are trained")
        yield name, parameter, "parameter"
    saved = module.state_dict(keep_vars=True).keys()
    for name, buffer in module.named_buffers():
        if name in saved and buffer.is_floating_point():
            yield name, buffer, "buffer"
