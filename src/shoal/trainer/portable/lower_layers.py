"""aten to ONNX: products, convolutions and pools, and their gradients. Imports torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from shoal.trainer.portable.emit import Emitter, Name
from shoal.trainer.portable.lowering import AtenCall, lowers

#: From this many channels on, one product for each position of a kernel is faster than one product for all.
_MANY_CHANNELS = 16

#: Up to this many columns, a product of all pairs of columns is faster than a copy for each position of a kernel.
_NARROW = 32

#: Up to this many columns, the examples of each channel side by side are one product. Measured with 32 examples: 0.3 to
#: 0.7 of the time with 2 to 8 columns, 1.2 with 16.
_FEW = 8

#: Where a slice that runs backwards ends: before the first value.
_END = 1 << 31

# Products --------------------------------------------------------------------------------------------


@lowers("aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default")
def _product(call: AtenCall) -> Name:
    return call.emit("MatMul", call.name(0), call.name(1))


@lowers("aten.addmm.default")
def _addmm(call: AtenCall) -> Name:
    alpha, beta = float(call.arg(3, "alpha", 1)), float(call.arg(4, "beta", 1))
    return call.emit("Gemm", call.name(1), call.name(2), call.name(0), alpha=alpha, beta=beta)


# Convolutions ----------------------------------------------------------------------------------------


@lowers("aten.convolution.default")
def _convolution(call: AtenCall) -> Name:
    stride, padding, dilation, transposed, out_padding, groups = (call.arg(place) for place in range(3, 9))
    names = [call.name(0), call.name(1)] + ([call.name(2)] if call.arg(2) is not None else [])
    options = {"strides": list(stride), "dilations": list(dilation), "group": groups, "pads": list(padding) * 2}
    if transposed:
        return call.emit("ConvTranspose", *names, output_padding=list(out_padding), **options)
    return call.emit("Conv", *names, kernel_shape=call.shape_of(1)[2:], **options)


@lowers("aten.convolution_backward.default")
def _convolution_gradients(call: AtenCall) -> list[Name | None]:
    stride, padding, dilation, transposed, _, groups, wanted = (call.arg(place) for place in range(4, 11))
    emit, gradient, x, weight = call.emit, call.name(0), call.name(1), call.name(2)
    gradient_shape, x_shape, weight_shape = (call.shape_of(place) for place in range(3))
    kernel = weight_shape[2:]
    options = {"strides": list(stride), "dilations": list(dilation), "group": groups, "pads": list(padding) * 2}
    of_x = of_weight = of_bias = None
    mirrored = [far * (k - 1) - pad for far, k, pad in zip(dilation, kernel, padding, strict=True)]
    is_depthwise = groups > 1 and weight_shape[:2] == [groups, 1]
    if wanted[0] and transposed:
        of_x = emit("Conv", gradient, weight, kernel_shape=kernel, **options)
    elif wanted[0] and is_depthwise and set(stride) == {1} and min(mirrored) >= 0:
        # The same convolution with a mirrored kernel: several times as fast as a transposed one of single channels.
        axes = list(range(2, 2 + len(kernel)))
        turned = emit.slice(weight, [-1] * len(axes), [-_END] * len(axes), axes, [-1] * len(axes))
        spread = options | {"pads": mirrored * 2}
        of_x = emit("Conv", gradient, turned, kernel_shape=kernel, **spread)
    elif wanted[0]:
        # Rows that a stride left over at the end.
        extra = [
            size - ((out - 1) * by - 2 * pad + far * (k - 1) + 1)
            for size, out, by, pad, far, k in zip(
                x_shape[2:], gradient_shape[2:], stride, padding, dilation, kernel, strict=True
            )
        ]
        of_x = emit("ConvTranspose", gradient, weight, kernel_shape=kernel, output_padding=extra, **options)
    if wanted[1]:
        # A transposed convolution reads its gradient through the kernel, where another reads its input.
        seen, made = (x, x_shape), (gradient, gradient_shape)
        if transposed:
            seen, made = made, seen
        of_weight = weight_gradient(emit, *seen, *made, weight_shape, stride, padding, dilation, groups)
    if wanted[2]:
        of_bias = emit("ReduceSum", gradient, emit.ints(0, *range(2, len(gradient_shape))), keepdims=0)
    return [of_x, of_weight, of_bias]


def weight_gradient(
    emit: Emitter,
    x: Name,
    x_shape: Sequence[int],
    gradient: Name,
    gradient_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Name:
    """dW[o, i, k] = sum over examples n and places p of gradient[n, o, p] x[n, i, stride p + dilation k - padding].

    Each position of the kernel sees a strided part of x. With many channels each part is a separate product; with few,
    the parts are the columns of one (im2col). Measured, both are faster than a Conv whose kernel is the gradient.
    """
    examples, channels, *space = x_shape
    _, outs, *made = gradient_shape
    kernel = list(weight_shape[2:])
    rank = len(space)
    axes = list(range(2, 2 + rank))
    # How far the last position of the kernel reads beyond the input.
    beyond = [
        (k - 1) * far + (out - 1) * by + 1 - size - pad
        for k, far, out, by, size, pad in zip(kernel, dilation, made, stride, space, padding, strict=True)
    ]
    wide = space[-1]
    if any(padding) or any(more > 0 for more in beyond):
        wide += padding[-1] + max(0, beyond[-1])
        pads = [0, 0, *padding, 0, 0, *(max(0, more) for more in beyond)]
        x = emit("Pad", x, emit.ints(*pads), emit.number(0, torch.float32))
    places = math.prod(made)
    inner, outer = channels // groups, outs // groups
    if groups > 1 and inner == outer == 1 and rank == 2 and made[1] <= _NARROW:
        return _depthwise_gradient(emit, x, gradient, wide, gradient_shape, weight_shape, stride, dilation)
    gradient = emit.reshape(gradient, [examples, groups, outer, places])
    parts = []
    for place in itertools.product(*map(range, kernel)):
        starts = [at * far for at, far in zip(place, dilation, strict=True)]
        stops = [start + (out - 1) * by + 1 for start, out, by in zip(starts, made, stride, strict=True)]
        part = emit.slice(x, starts, stops, axes, list(stride))
        parts.append(emit.reshape(part, [examples, groups, inner, places]))
    if inner >= _MANY_CHANNELS or len(parts) == 1:
        sums = [
            emit("ReduceSum", emit("MatMul", gradient, emit.transpose(part, [0, 1, 3, 2])), emit.ints(0), keepdims=0)
            for part in parts
        ]
        sums = [emit.reshape(each, [outs, inner, 1]) for each in sums]
        return emit.reshape(emit("Concat", *sums, axis=2) if len(sums) > 1 else sums[0], weight_shape)
    side_by_side = [emit.reshape(part, [examples, groups, inner, 1, places]) for part in parts]
    columns = emit.reshape(emit("Concat", *side_by_side, axis=3), [examples, groups, inner * len(parts), places])
    if outer == 1:
        # The gradient turned round is the gradient in another shape; the columns stay as they are.
        found = emit("MatMul", columns, emit.reshape(gradient, [examples, groups, places, 1]))
        return emit.reshape(emit("ReduceSum", found, emit.ints(0), keepdims=0), weight_shape)
    found = emit("MatMul", gradient, emit.transpose(columns, [0, 1, 3, 2]))
    return emit.reshape(emit("ReduceSum", found, emit.ints(0), keepdims=0), weight_shape)


def _depthwise_gradient(
    emit: Emitter,
    x: Name,
    gradient: Name,
    wide: int,
    gradient_shape: Sequence[int],
    weight_shape: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Name:
    """The gradient of a kernel of one channel each, from padded rows of ``wide`` values.

    For each row of the kernel, a product of all columns of the gradient with all columns of x has every pair of
    columns. The pairs that a column of the kernel joins lie on a diagonal, and a constant product adds them. That is
    more arithmetic than needed, but copies x once for each row of the kernel and not once for each of its positions. In
    small maps the rows of all examples are one product per channel, where otherwise each example has its own.
    """
    channels, _, high, across = weight_shape
    examples, _, rows, columns = gradient_shape
    is_few = columns <= _FEW
    if is_few:
        x = emit.transpose(x, [1, 2, 0, 3])
        turned = emit.reshape(emit.transpose(gradient, [1, 3, 2, 0]), [channels, columns, rows * examples])
    else:
        turned = emit.transpose(gradient, [0, 1, 3, 2])
    diagonals = np.zeros((columns, wide, across))
    for at in range(columns):
        for place in range(across):
            diagonals[at, at * stride[1] + place * dilation[1], place] = 1
    adds = emit.array(diagonals.reshape(columns * wide, across), torch.float32)
    found = []
    for place in range(high):
        start = place * dilation[0]
        seen = emit.slice(x, [start], [start + (rows - 1) * stride[0] + 1], [1 if is_few else 2], [stride[0]])
        if is_few:
            pairs = emit("MatMul", turned, emit.reshape(seen, [channels, rows * examples, wide]))
        else:
            pairs = emit("ReduceSum", emit("MatMul", turned, seen), emit.ints(0), keepdims=0)
        found.append(
            emit.reshape(
                emit("MatMul", emit.reshape(pairs, [channels, columns * wide]), adds), [channels, 1, 1, across]
            )
        )
    return emit("Concat", *found, axis=2) if len(found) > 1 else found[0]


# Pools -----------------------------------------------------------------------------------------------


def _twice(given: Any) -> list[int]:
    return list(given) * (2 if len(given) == 1 else 1)


@lowers("aten.max_pool2d_with_indices.default")
def _max_pool(call: AtenCall) -> list[Name]:
    kernel = _twice(call.arg(1))
    return call.emit.many(
        "MaxPool",
        2,
        call.name(0),
        kernel_shape=kernel,
        strides=_twice(call.arg(2) or kernel),
        pads=_twice(call.arg(3, "padding", [0, 0])) * 2,
        dilations=_twice(call.arg(4, "dilation", [1, 1])),
        ceil_mode=int(call.arg(5, "ceil_mode", False)),
    )


@lowers("aten.max_pool2d_with_indices_backward.default")
def _max_pool_gradient(call: AtenCall) -> Name:
    """Lower the gradient of a max pool. ONNX numbers the maxima in the whole tensor, torch in each plane; only this
    function reads the numbers."""
    kernel = _twice(call.arg(2))
    stride = _twice(call.arg(3) or kernel)
    emit = call.emit
    count, made = math.prod(call.shape), math.prod(call.shape_of(0))
    # Where windows overlap, one value may be the maximum of several.
    extra = {"reduction": "add"} if any(k > by for k, by in zip(kernel, stride, strict=True)) else {}
    places = emit.reshape(call.name(7), [made])
    nothing = emit.full([count], 0, call.out.dtype)
    flat = emit("ScatterElements", nothing, places, emit.reshape(call.name(0), [made]), axis=0, **extra)
    return emit.reshape(flat, call.shape)


@lowers("aten.avg_pool2d.default")
def _avg_pool(call: AtenCall) -> Name:
    kernel = _twice(call.arg(1))
    padding = _twice(call.arg(3, "padding", [0, 0]))
    if call.arg(4, "ceil_mode", False) or call.arg(6, "divisor_override") is not None:
        raise call.refuse("with ceil_mode or a divisor of its own")
    return call.emit(
        "AveragePool",
        call.name(0),
        kernel_shape=kernel,
        strides=_twice(call.arg(2) or kernel),
        pads=padding * 2,
        count_include_pad=int(call.arg(5, "count_include_pad", True)),
    )


@lowers("aten.avg_pool2d_backward.default")
def _avg_pool_gradient(call: AtenCall) -> Name:
    kernel = _twice(call.arg(2))
    stride, padding = _twice(call.arg(3) or kernel), _twice(call.arg(4))
    if call.arg(5) or (any(padding) and not call.arg(6)) or call.arg(7) is not None:
        raise call.refuse("with ceil_mode, padding that does not count, or a divisor of its own")
    emit, shape, made = call.emit, call.shape, call.shape_of(0)
    extra = [
        size - ((out - 1) * by - 2 * pad + k)
        for size, out, by, pad, k in zip(shape[-2:], made[-2:], stride, padding, kernel, strict=True)
    ]
    planes = math.prod(shape[:-2])
    weight = emit.array(np.full((1, 1, *kernel), 1 / math.prod(kernel)), torch.float32)
    spread = emit.reshape(call.name(0), [planes, 1, *made[-2:]])
    found = emit("ConvTranspose", spread, weight, strides=stride, pads=padding * 2, output_padding=extra)
    return emit.reshape(found, shape)
