"""y = x Wᵀ + b and its gradients, each product at home or away. Knows torch's autograd, no layer and no peer.

Each of the three products may be sent on its own:

    forward           y  = x Wᵀ      left secret
    input gradient    dx = dy W      left secret
    weight gradient   dW = dyᵀ x     both secret
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from shoal.errors import Misuse
from shoal.offload.products import Array
from shoal.offload.torch.desk import Desk, Pass, shape_of


def affine(x: Tensor, weight: Tensor, bias: Tensor | None, desk: Desk, layer: str) -> Tensor:
    """``x``: (rows, inputs); ``weight``: (outputs, inputs), as torch keeps it; ``bias``: (outputs) or None."""
    made: Tensor = _Affine.apply(x, weight, bias, desk, layer)  # type: ignore[no-untyped-call]
    return made


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, desk: Desk, layer: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.desk, ctx.layer, ctx.biased = desk, layer, bias is not None
        y = _product(desk, layer, "forward", x, weight.t(), weight)
        return y if bias is None else y.add_(bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        desk, layer = ctx.desk, ctx.layer
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        dx = _product(desk, layer, "input gradient", dy, weight, weight) if wants_x else None
        dw = _product(desk, layer, "weight gradient", dy.t(), x, weight) if wants_weight else None
        db = dy.sum(0) if ctx.biased and wants_bias else None
        return dx, dw, db, None, None


def _product(desk: Desk, layer: str, step: Pass, left: Tensor, right: Tensor, weight: Tensor) -> Tensor:
    outputs, inputs = weight.shape
    rows = left.shape[1] if step == "weight gradient" else left.shape[0]
    shape = shape_of(step, rows=rows, inputs=inputs, outputs=outputs)
    decision = desk.decide(layer, step, shape)
    if not decision.verdict.sends:
        return left @ right
    given = desk.multiply(decision, _array(left), _array(right))
    if given.shape != (shape.rows, shape.columns) or given.dtype != np.float32:
        raise Misuse(
            f"{layer}, {step}: a product of {shape} came back as {given.dtype} of shape {given.shape}; "
            f"it is float32 of shape {(shape.rows, shape.columns)}"
        )
    # An array from a frame is read-only, and the bias is added in place.
    return torch.from_numpy(given if given.flags.writeable else given.copy())


def _array(tensor: Tensor) -> Array:
    # Torch turns a matrix round several times as fast as numpy does.
    made: Array = tensor.detach().contiguous().numpy()
    return made
