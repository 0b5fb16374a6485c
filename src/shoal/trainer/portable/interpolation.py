"""Resizing and adaptive average pools as products with constant matrices. Imports torch.

Both are linear, and separate in each dimension, and gradients are products with the transposed matrices. A row of a
matrix says what each input gives to an output. PyTorch's own operation, applied to an identity, gives the matrix, so
every option of it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

_aten = torch.ops.aten


def _matrix(along: Any, size: int, out: int, scale: float | None) -> Tensor:
    """Return out x size: what each input gives to each output."""
    with _disable_current_modes():
        rows = torch.eye(size).reshape(1, size, size, 1)
        made: Tensor = along(rows, out, scale).reshape(size, out).t().contiguous()
    return made


def _times(x: Tensor, matrix: Tensor, axis: int) -> Tensor:
    """Multiply along one of the last two dimensions."""
    if axis == -1:
        return torch.matmul(x, matrix.t())
    return torch.matmul(x.transpose(-1, -2), matrix.t()).transpose(-1, -2)


def _whole(size: int, out: int, scale: float | None) -> int:
    """Return the factor by which each value is repeated, or 0 if the factor is not a whole number."""
    is_even = out % size == 0 and (scale is None or scale == out // size)
    return out // size if is_even else 0


def _nearest_along(op: Any) -> Any:
    return lambda rows, out, scale: op(rows, [out, 1], scale, 1.0)


def _smooth_along(op: Any, align: bool) -> Any:
    return lambda rows, out, scale: op(rows, [out, 1], align, scale, None)


def _resized(along: Any, x: Tensor, outs: Sequence[int], scales: Sequence[float | None]) -> Tensor:
    for axis, out, scale in zip((-2, -1), outs, scales, strict=True):
        x = _times(x, _matrix(along, x.shape[axis], out, scale), axis)
    return x


def _gathered(
    along: Any, gradient: Tensor, sizes: Sequence[int], outs: Sequence[int], scales: Sequence[float | None]
) -> Tensor:
    for axis, size, out, scale in zip((-2, -1), sizes[-2:], outs, scales, strict=True):
        gradient = _times(gradient, _matrix(along, size, out, scale).t(), axis)
    return gradient


def _nearest(op: Any) -> tuple[Any, Any]:
    along = _nearest_along(op)

    def forward(x: Tensor, outs: Any, scales_h: float | None = None, scales_w: float | None = None) -> Tensor:
        n, c, h, w = x.shape
        high, wide = _whole(h, outs[0], scales_h), _whole(w, outs[1], scales_w)
        if high and wide:
            return x.reshape(n, c, h, 1, w, 1).expand(n, c, h, high, w, wide).reshape(n, c, h * high, w * wide)
        return _resized(along, x, outs, (scales_h, scales_w))

    def backward(
        gradient: Tensor, outs: Any, sizes: Any, scales_h: float | None = None, scales_w: float | None = None
    ) -> Tensor:
        n, c, h, w = sizes
        high, wide = _whole(h, outs[0], scales_h), _whole(w, outs[1], scales_w)
        if high and wide:
            return gradient.reshape(n, c, h, high, w, wide).sum((3, 5))
        return _gathered(along, gradient, sizes, outs, (scales_h, scales_w))

    return forward, backward


def _smooth(op: Any) -> tuple[Any, Any]:
    def forward(
        x: Tensor, outs: Any, align: bool, scales_h: float | None = None, scales_w: float | None = None
    ) -> Tensor:
        return _resized(_smooth_along(op, align), x, outs, (scales_h, scales_w))

    def backward(
        gradient: Tensor,
        outs: Any,
        sizes: Any,
        align: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        return _gathered(_smooth_along(op, align), gradient, sizes, outs, (scales_h, scales_w))

    return forward, backward


def _pooled() -> tuple[Any, Any]:
    """Adaptive average pools: each output is the mean of its part."""

    def along(rows: Tensor, out: int, scale: float | None) -> Tensor:
        made: Tensor = _aten._adaptive_avg_pool2d.default(rows, [out, 1])
        return made

    def forward(x: Tensor, outs: Any) -> Tensor:
        return _resized(along, x, outs, (None, None))

    def backward(gradient: Tensor, x: Tensor) -> Tensor:
        return _gathered(along, gradient, x.shape, gradient.shape[-2:], (None, None))

    return forward, backward


def _flat(pair: tuple[Any, Any], *, is_aligned: bool) -> tuple[Any, Any]:
    """The same for sequences: images of one row. ``is_aligned``: it says what becomes of the corners."""
    forward_2d, backward_2d = pair

    def split(options: tuple[Any, ...]) -> tuple[tuple[Any, ...], float | None]:
        rest = options[is_aligned:]
        return options[:is_aligned], rest[0] if rest else None

    def forward(x: Tensor, outs: Any, *options: Any) -> Tensor:
        aligned, scale = split(options)
        made: Tensor = forward_2d(x.unsqueeze(-2), [1, *outs], *aligned, 1.0, scale)
        return made.squeeze(-2)

    def backward(gradient: Tensor, outs: Any, sizes: Any, *options: Any) -> Tensor:
        aligned, scale = split(options)
        n, c, width = sizes
        made: Tensor = backward_2d(gradient.unsqueeze(-2), [1, *outs], [n, c, 1, width], *aligned, 1.0, scale)
        return made.squeeze(-2)

    return forward, backward


def decompositions() -> dict[Any, Callable[..., Tensor]]:
    """Return the operations by which PyTorch resizes, and what a graph has for each."""
    nearest, exact = _nearest(_aten.upsample_nearest2d.default), _nearest(_aten._upsample_nearest_exact2d.default)
    linear, cubic = _smooth(_aten.upsample_bilinear2d.default), _smooth(_aten.upsample_bicubic2d.default)
    pairs = {
        "upsample_nearest2d": nearest,
        "_upsample_nearest_exact2d": exact,
        "upsample_bilinear2d": linear,
        "upsample_bicubic2d": cubic,
        "upsample_nearest1d": _flat(nearest, is_aligned=False),
        "upsample_linear1d": _flat(linear, is_aligned=True),
    }
    found: dict[Any, Callable[..., Tensor]] = {}
    for name, (forward, backward) in pairs.items():
        found[getattr(_aten, name).default] = forward
        found[getattr(_aten, f"{name}_backward").default] = backward
    forward, backward = _pooled()
    found[_aten._adaptive_avg_pool2d.default] = forward
    found[_aten._adaptive_avg_pool2d_backward.default] = backward
    return found
