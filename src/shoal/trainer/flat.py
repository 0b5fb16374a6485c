"""Tensors of a torch module to and from one flat vector, by layout. Does not train and does not know shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.errors import Misuse
from shoal.learning.layout import Layout
from shoal.task import Task
from shoal.trainer.placement import place


def layout_of(module: nn.Module) -> Layout:
    """Lay out the tensors that are trained: parameters, then floating-point buffers (BatchNorm's running mean)."""
    return place(Task(), module).layout


def read_into(flat: np.ndarray[Any, Any], tensors: nn.Module | Mapping[str, Tensor], layout: Layout) -> None:
    """Copy the tensors that the layout names into ``flat``."""
    views, tensors = layout.views(flat), _by_name(tensors)
    with torch.no_grad():
        for name, view in views.items():
            torch.from_numpy(view).copy_(_found(tensors, name))


def write_from(flat: np.ndarray[Any, Any], tensors: nn.Module | Mapping[str, Tensor], layout: Layout) -> None:
    """Copy ``flat`` into the tensors, in place: optimisers and views keep pointing at the same memory."""
    views, tensors = layout.views(flat), _by_name(tensors)
    with torch.no_grad():
        for name, view in views.items():
            _found(tensors, name).copy_(torch.from_numpy(view))


def _by_name(tensors: nn.Module | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    if isinstance(tensors, nn.Module):
        return dict(tensors.named_parameters()) | dict(tensors.named_buffers())
    return tensors


def _found(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in tensors:
        raise Misuse(f"the model here has no tensor {name}, which the job's has; do the versions of a library differ?")
    return tensors[name]
