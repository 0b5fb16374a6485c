"""The update of a lease of one plain SGD step: the step itself, not the change of rounded weights. Imports torch.

An update that is read back from the weights is fl(w - rate * g) - w. It contains the rounding of w, and the leader
divides it by the rate: an adaptive step then turns rounding into a full-length step wherever g is small against w.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.learning.layout import Layout

Array = np.ndarray[Any, Any]

#: Values that are compared at a time, so that a large tensor needs no copies of its size.
_BLOCK = 1 << 16


def take_step(
    update: Array, tensors: Mapping[str, Tensor], layout: Layout, optimiser: torch.optim.Optimizer
) -> frozenset[str]:
    """Have the optimiser take a step, and write -rate * (g + decay * w) into ``update``.

    Return the names of the tensors it was written for: none unless the optimiser is SGD without momentum.
    """
    written: frozenset[str] = frozenset()

    def leave(*_: object) -> None:
        nonlocal written
        written = _leave_step(update, tensors, layout, optimiser)

    # Hooks run in the order of registration: this one sees the gradients that the task's hooks left.
    hook = optimiser.register_step_pre_hook(leave)
    try:
        optimiser.step()
    finally:
        hook.remove()
    return written


def _leave_step(
    update: Array, tensors: Mapping[str, Tensor], layout: Layout, optimiser: torch.optim.Optimizer
) -> frozenset[str]:
    groups = _plain_groups(optimiser)
    written = []
    with torch.no_grad():
        for name, view in layout.views(update).items():
            tensor = tensors[name]
            if id(tensor) not in groups or tensor.grad is None:
                continue
            rate, decay = groups[id(tensor)]
            # Sparse gradients of embeddings too.
            step = torch.from_numpy(view).copy_(tensor.grad.to_dense())
            if decay:
                step.add_(_on_cpu(tensor), alpha=decay)
            step.mul_(-rate)
            written.append(name)
    return frozenset(written)


def leave_change(
    update: Array, before: Array, tensors: Mapping[str, Tensor], layout: Layout, *, stepped: Collection[str]
) -> None:
    """Write what changed since ``before`` into ``update``, but keep the step of a tensor in ``stepped`` if it explains
    the change. It does not if the task clamped a weight or its optimiser has a hook."""
    views, befores = layout.views(update), layout.views(before)
    with torch.no_grad():
        for name, tensor in tensors.items():
            view, was = torch.from_numpy(views[name]), torch.from_numpy(befores[name])
            now = _on_cpu(tensor)
            if name not in stepped or not _explains(view, was, now, tensor.dtype):
                torch.sub(now, was, out=view)


def _explains(step: Tensor, was: Tensor, now: Tensor, kind: torch.dtype) -> bool:
    """Whether this step leads from ``was`` to ``now``, apart from the rounding of weights. False for NaN."""
    epsilon, tiny = torch.finfo(kind).eps, torch.finfo(kind).tiny
    steps, wases, nows = step.reshape(-1), was.reshape(-1), now.reshape(-1)
    for start in range(0, step.numel(), _BLOCK):
        part = slice(start, start + _BLOCK)
        gap = (nows[part] - wases[part]).sub_(steps[part]).abs_()
        # Half a unit in the last place of each weight, and the rounding of the step.
        allowed = (wases[part].abs() + nows[part].abs()).mul_(epsilon / 2).add_(steps[part].abs(), alpha=2 * epsilon)
        # Weights below the smallest normal number need a tolerance of that number.
        allowed.add_(max(tiny * epsilon, torch.finfo(torch.float32).tiny))
        if not bool((gap <= allowed).all()):
            return False
    return True


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32)


def _plain_groups(optimiser: torch.optim.Optimizer) -> dict[int, tuple[float, float]]:
    """Return the rate and weight decay of each parameter by id, or {} unless it steps by -rate * (g + decay * w)."""
    if type(optimiser) is not torch.optim.SGD:
        return {}
    groups = optimiser.param_groups
    if any(group["momentum"] or group["maximize"] for group in groups):
        return {}
    return {
        id(parameter): (float(group["lr"]), float(group["weight_decay"]))
        for group in groups
        for parameter in group["params"]
    }
