"""Why a task trains only on PyTorch devices, and what to write instead."""

from __future__ import annotations

from shoal.errors import ShoalError


class Unportable(ShoalError):
    """Why a task trains only on PyTorch devices."""


#: Part of an operation's name -> what a graph has.
_INSTEAD = {
    "grid_sampler": "resize with F.interpolate, or crop by a tensor of indices",
    "nonzero": "multiply by a mask, or use torch.where with three arguments",
    "masked_select": "multiply by a mask, or use torch.where with three arguments",
    "unique": "count with F.one_hot(x, classes).sum(0)",
    "topk": "use max or argmax",
    "sort": "use max, min or argmax",
    "cummax": "use max",
    "cumprod": "use exp of cumsum of log",
    "linalg": "write it in sums and products",
    "svd": "write it in sums and products",
    "fft": "use a convolution, or a product with the matrix of the transform",
    "max_pool3d": "use avg_pool over each dimension, or strided convolutions",
    "adaptive_max_pool": "use max_pool2d with a kernel of its own",
    "fractional_max_pool": "use max_pool2d",
    "pdist": "use torch.cdist's formula: the square of a difference, summed",
    "scaled_dot_product": "use F.scaled_dot_product_attention outside of torch.compile",
    "_weight_norm": "write the weight as g * v / v.norm()",
    "isin": "compare with each value and add",
}

#: Parts of torch's errors about steps that depend on values -> what is meant, and what to write instead.
_OF_TORCH = (
    (
        ("GuardOnDataDependent", "aten._local_scalar_dense", "DataDependentOutput", ".item()"),
        "it reads a number out of a tensor (int(), float(), .item(), or an `if` on a value): index by the tensor, as in"
        " x[index], or choose by torch.where",
    ),
    (
        ("DynamicOutputShape",),
        "the size of a result depends on values (a mask as an index, nonzero, unique): multiply by the mask, or use"
        " torch.where with three arguments",
    ),
)


def instead_of(operation: str) -> str:
    """Return what to write instead of an operation that has no form in ONNX, or nothing if that is not known."""
    return next((f"; {text}" for name, text in _INSTEAD.items() if name in operation), "")


def in_words(kind: str, text: str) -> str | None:
    """Return what one of torch's errors means for a task, or None if that is not known."""
    for marks, meaning in _OF_TORCH:
        if any(mark in kind or mark in text for mark in marks):
            return meaning
    return None
