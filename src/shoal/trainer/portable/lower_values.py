"""aten to ONNX: numbers, shapes, sums, indexing and random numbers. Imports torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import fx

from shoal.trainer.portable.emit import ELEMENT, Name
from shoal.trainer.portable.lowering import TABLE, AtenCall, lowers

_F32_LOWEST = float(np.finfo(np.float32).min)

# One value from one ----------------------------------------------------------------------------------

_UNARY = {
    "abs": "Abs", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor",
    "isinf": "IsInf", "isnan": "IsNaN", "log": "Log", "logical_not": "Not", "neg": "Neg", "reciprocal": "Reciprocal",
    "relu": "Relu", "round": "Round", "sigmoid": "Sigmoid", "sign": "Sign", "sin": "Sin", "sinh": "Sinh",
    "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh", "atan": "Atan",
}  # fmt: skip


def _unary(kind: str) -> Any:
    def lowering(call: AtenCall) -> Name:
        wanted = torch.bool if kind == "Not" else call.meta(0).dtype if kind.startswith("Is") else call.out.dtype
        return call.emit(kind, call.typed(call.arg(0), wanted))

    return lowering


for _name, _kind in _UNARY.items():
    TABLE[f"aten.{_name}.default"] = _unary(_kind)


@lowers("aten.clone.default", "aten.detach.default", "aten.alias.default", "aten.lift_fresh_copy.default",
        "aten.contiguous.default")  # fmt: skip
def _same(call: AtenCall) -> Name:
    return call.name(0)


@lowers("aten._to_copy.default", "prims.convert_element_type.default")
def _converted(call: AtenCall) -> Name:
    return call.typed(call.arg(0), call.out.dtype)


@lowers("aten.copy.default")
def _copied(call: AtenCall) -> Name:
    name = call.typed(call.arg(1), call.out.dtype)
    return name if call.shape_of(1) == call.shape else call.emit.expand(name, call.shape)


@lowers("aten.rsqrt.default")
def _rsqrt(call: AtenCall) -> Name:
    return call.emit("Reciprocal", call.emit("Sqrt", call.typed(call.arg(0), call.out.dtype)))


@lowers("aten.square.default")
def _square(call: AtenCall) -> Name:
    return call.emit("Mul", call.name(0), call.name(0))


@lowers("aten.expm1.default")
def _expm1(call: AtenCall) -> Name:
    """Lower expm1. Near zero e^x - 1 loses its digits, so it uses tanh(x/2) (e^x + 1), the same number."""
    x, emit, dtype = call.name(0), call.emit, call.out.dtype
    half = emit("Tanh", emit("Mul", x, emit.number(0.5, dtype)))
    near = emit("Mul", half, emit("Add", emit("Exp", x), emit.number(1, dtype)))
    far = emit("Sub", emit("Exp", x), emit.number(1, dtype))
    return emit("Where", emit("Less", emit("Abs", x), emit.number(1, dtype)), near, far)


@lowers("aten.log1p.default")
def _log1p(call: AtenCall) -> Name:
    """Lower log1p: near zero as 2 atanh(x / (2 + x)), by five terms of its series. Below 1/8 the rest is under 1e-8."""
    x, emit, dtype = call.name(0), call.emit, call.out.dtype
    ratio = emit("Div", x, emit("Add", x, emit.number(2, dtype)))
    square = emit("Mul", ratio, ratio)
    sum_ = emit.number(1 / 9, dtype)
    for odd in (7, 5, 3, 1):
        sum_ = emit("Add", emit("Mul", sum_, square), emit.number(1 / odd, dtype))
    near = emit("Mul", emit("Mul", ratio, sum_), emit.number(2, dtype))
    far = emit("Log", emit("Add", x, emit.number(1, dtype)))
    return emit("Where", emit("Less", emit("Abs", x), emit.number(0.125, dtype)), near, far)


@lowers("aten.gelu.default")
def _gelu(call: AtenCall) -> Name:
    x, emit, dtype = call.name(0), call.emit, call.out.dtype
    if call.arg(1, "approximate", "none") == "tanh":
        cube = emit("Mul", emit("Mul", x, x), x)
        inner = emit("Add", x, emit("Mul", cube, emit.number(0.044715, dtype)))
        bent = emit("Tanh", emit("Mul", inner, emit.number(math.sqrt(2 / math.pi), dtype)))
    else:
        bent = emit("Erf", emit("Mul", x, emit.number(math.sqrt(0.5), dtype)))
    return emit("Mul", emit("Mul", x, emit.number(0.5, dtype)), emit("Add", bent, emit.number(1, dtype)))


@lowers("aten.clamp.default", "aten.clamp.Tensor", "aten.clamp_min.default", "aten.clamp_max.default",
        "aten.clamp_min.Tensor", "aten.clamp_max.Tensor")  # fmt: skip
def _clamp(call: AtenCall) -> Name:
    low, high = call.arg(1, "min"), call.arg(2, "max")
    if "clamp_max" in str(call.node.target):
        low, high = None, low
    name = call.typed(call.arg(0), call.out.dtype)
    if low is not None:
        name = call.emit("Max", name, call.typed(low, call.out.dtype))
    return name if high is None else call.emit("Min", name, call.typed(high, call.out.dtype))


# One value from two ----------------------------------------------------------------------------------


def _binary(kind: str) -> Any:
    def lowering(call: AtenCall) -> Name:
        dtype = call.out.dtype
        left, right = call.typed(call.arg(0), dtype), call.typed(call.arg(1), dtype)
        if (alpha := call.arg(2, "alpha", 1)) != 1:
            right = call.emit("Mul", right, call.emit.number(alpha, dtype))
        if dtype is torch.bool:
            kinds = {"Add": "Or", "Mul": "And"}
            if kind not in kinds:
                raise call.refuse("of truth values")
            return call.emit(kinds[kind], left, right)
        return call.emit(kind, left, right)

    return lowering


for _name, _kind in {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}.items():
    for _overload in ("Tensor", "Scalar"):
        TABLE[f"aten.{_name}.{_overload}"] = _binary(_kind)


@lowers("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def _div_mode(call: AtenCall) -> Name:
    dtype, mode = call.out.dtype, call.arg(2, "rounding_mode")
    if mode is None:
        return call.emit("Div", call.typed(call.arg(0), dtype), call.typed(call.arg(1), dtype))
    found = call.emit("Div", call.typed(call.arg(0), torch.float64), call.typed(call.arg(1), torch.float64))
    if mode == "trunc":
        raise call.refuse("rounding towards zero")
    return call.emit.cast(call.emit("Floor", found), dtype)


@lowers("aten.remainder.Scalar", "aten.remainder.Tensor")
def _remainder(call: AtenCall) -> Name:
    if call.out.is_floating_point():
        raise call.refuse("of fractions")
    return call.emit("Mod", call.typed(call.arg(0), call.out.dtype), call.typed(call.arg(1), call.out.dtype))


@lowers("aten.rsub.Scalar", "aten.rsub.Tensor")
def _rsub(call: AtenCall) -> Name:
    if call.arg(2, "alpha", 1) != 1:
        raise call.refuse("with alpha")
    return call.emit("Sub", call.typed(call.arg(1), call.out.dtype), call.typed(call.arg(0), call.out.dtype))


@lowers("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def _pow(call: AtenCall) -> Name:
    base, exponent, emit, dtype = call.arg(0), call.arg(1), call.emit, call.out.dtype
    name = call.typed(base, dtype)
    match exponent:
        case 2 | 3 if not isinstance(exponent, fx.Node):
            square = emit("Mul", name, name)
            return square if exponent == 2 else emit("Mul", square, name)
        case 0.5 if not isinstance(exponent, fx.Node):
            return emit("Sqrt", name)
        case -1 if not isinstance(exponent, fx.Node):
            return emit("Reciprocal", name)
    return emit("Pow", name, call.typed(exponent, dtype))


@lowers("aten.maximum.default")
def _maximum(call: AtenCall) -> Name:
    return call.emit("Max", call.typed(call.arg(0), call.out.dtype), call.typed(call.arg(1), call.out.dtype))


@lowers("aten.minimum.default")
def _minimum(call: AtenCall) -> Name:
    return call.emit("Min", call.typed(call.arg(0), call.out.dtype), call.typed(call.arg(1), call.out.dtype))


def _compared(kind: str, *, turned: bool = False) -> Any:
    def lowering(call: AtenCall) -> Name:
        left, right = call.arg(0), call.arg(1)
        dtype = call.meta(0).dtype
        if isinstance(right, fx.Node):
            dtype = torch.promote_types(dtype, right.meta["val"].dtype)
        elif isinstance(right, float) and not dtype.is_floating_point:
            dtype = torch.float32
        if dtype in (torch.uint8, torch.int8, torch.int16) or (dtype is torch.bool and kind != "Equal"):
            dtype = torch.int32
        found = call.emit(kind, call.typed(left, dtype), call.typed(right, dtype))
        return call.emit("Not", found) if turned else found

    return lowering


for _overload in ("Scalar", "Tensor"):
    TABLE[f"aten.eq.{_overload}"] = _compared("Equal")
    TABLE[f"aten.ne.{_overload}"] = _compared("Equal", turned=True)
    TABLE[f"aten.lt.{_overload}"] = _compared("Less")
    TABLE[f"aten.le.{_overload}"] = _compared("LessOrEqual")
    TABLE[f"aten.gt.{_overload}"] = _compared("Greater")
    TABLE[f"aten.ge.{_overload}"] = _compared("GreaterOrEqual")


def _logical(kind: str) -> Any:
    def lowering(call: AtenCall) -> Name:
        if call.out.dtype is not torch.bool:
            raise call.refuse("of numbers")
        return call.emit(kind, call.typed(call.arg(0), torch.bool), call.typed(call.arg(1), torch.bool))

    return lowering


for _name, _kind in {"and": "And", "or": "Or", "xor": "Xor"}.items():
    TABLE[f"aten.logical_{_name}.default"] = _logical(_kind)
    TABLE[f"aten.bitwise_{_name}.Tensor"] = _logical(_kind)


@lowers("aten.bitwise_not.default")
def _bitwise_not(call: AtenCall) -> Name:
    if call.out.dtype is not torch.bool:
        raise call.refuse("of numbers")
    return call.emit("Not", call.name(0))


@lowers("aten.where.self", "aten.where.ScalarSelf", "aten.where.ScalarOther", "aten.where.Scalar")
def _where(call: AtenCall) -> Name:
    dtype = call.out.dtype
    return call.emit(
        "Where", call.typed(call.arg(0), torch.bool), call.typed(call.arg(1), dtype), call.typed(call.arg(2), dtype)
    )


# Sums ------------------------------------------------------------------------------------------------


def axes_of(call: AtenCall, place: int = 1) -> list[int]:
    rank = call.meta(0).dim()
    given = call.arg(place, "dim")
    if given is None or given == []:
        return list(range(rank))
    return [axis % rank for axis in ([given] if isinstance(given, int) else given)]


def _reduced(kind: str, *, of_truth: str = "") -> Any:
    def lowering(call: AtenCall) -> Name:
        emit, dtype = call.emit, call.out.dtype
        has_axes = "default" not in str(call.node.target) or str(call.node.target).startswith(
            ("aten.amax", "aten.amin")
        )
        axes = axes_of(call) if has_axes else list(range(call.meta(0).dim()))
        keep = int(bool(call.arg(2, "keepdim", False))) if has_axes else 0
        working = torch.int64 if of_truth else dtype
        name = call.typed(call.arg(0), torch.bool if of_truth else working)
        name = emit.cast(name, torch.int64) if of_truth else name
        if axes:
            name = emit(kind, name, emit.ints(*axes), keepdims=keep)
        return emit.cast(name, torch.bool) if of_truth else name

    return lowering


for _name, _kind in {"sum": "ReduceSum", "mean": "ReduceMean"}.items():
    TABLE[f"aten.{_name}.default"] = TABLE[f"aten.{_name}.dim_IntList"] = TABLE[f"aten.{_name}.dim"] = _reduced(_kind)
TABLE["aten.amax.default"] = _reduced("ReduceMax")
TABLE["aten.amin.default"] = _reduced("ReduceMin")
TABLE["aten.max.default"] = _reduced("ReduceMax")
TABLE["aten.min.default"] = _reduced("ReduceMin")
TABLE["aten.prod.default"] = _reduced("ReduceProd")
for _name, _kind in {"any": "ReduceMax", "all": "ReduceMin"}.items():
    for _overload in ("default", "dim", "dims"):
        TABLE[f"aten.{_name}.{_overload}"] = _reduced(_kind, of_truth=_name)


@lowers("aten.var_mean.correction", "aten.var.correction")
def _var_mean(call: AtenCall) -> Any:
    emit, shape, dtype = call.emit, call.shape_of(0), call.meta(0).dtype
    axes = axes_of(call)
    correction, keep = call.arg(2, "correction", 1), int(bool(call.arg(3, "keepdim", False)))
    x, at = call.name(0), axes
    mean = emit("ReduceMean", x, emit.ints(*at), keepdims=1)
    away = emit("Sub", x, mean)
    count = math.prod(shape[axis] for axis in axes)
    square = emit("Mul", away, away)
    variance = emit("ReduceMean", square, emit.ints(*at), keepdims=keep)
    if correction:
        variance = emit("Mul", variance, emit.number(count / (count - correction), dtype))
    if "var_mean" not in str(call.node.target):
        return variance
    return [variance, mean if keep else emit("Squeeze", mean, emit.ints(*at))]


@lowers("aten.argmax.default", "aten.argmin.default")
def _arg(call: AtenCall) -> Name:
    kind = "ArgMax" if "argmax" in str(call.node.target) else "ArgMin"
    axis, keep = call.arg(1, "dim"), int(bool(call.arg(2, "keepdim", False)))
    name = call.name(0)
    if axis is None:
        return call.emit(kind, call.emit.reshape(name, [-1]), axis=0, keepdims=0)
    return call.emit(kind, name, axis=axis % call.meta(0).dim(), keepdims=keep)


@lowers("aten.max.dim", "aten.min.dim")
def _extreme(call: AtenCall) -> list[Name]:
    is_max = "aten.max" in str(call.node.target)
    axis, keep = call.arg(1) % call.meta(0).dim(), int(bool(call.arg(2, "keepdim", False)))
    values = call.emit("ReduceMax" if is_max else "ReduceMin", call.name(0), call.emit.ints(axis), keepdims=keep)
    return [values, call.emit("ArgMax" if is_max else "ArgMin", call.name(0), axis=axis, keepdims=keep)]


@lowers("aten.topk.default")
def _topk(call: AtenCall) -> list[Name]:
    axis = call.arg(2, "dim", -1) % call.meta(0).dim()
    count = call.emit.ints(call.arg(1))
    return call.emit.many("TopK", 2, call.name(0), count, axis=axis, largest=int(call.arg(3, "largest", True)))


@lowers("aten.cumsum.default")
def _cumsum(call: AtenCall) -> Name:
    axis = call.emit.array(call.arg(1) % call.meta(0).dim(), torch.int64)
    return call.emit("CumSum", call.typed(call.arg(0), call.out.dtype), axis)


# Shapes ----------------------------------------------------------------------------------------------


@lowers("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.squeeze.dim",
        "aten.squeeze.dims", "aten.squeeze.default", "aten.unsqueeze.default")  # fmt: skip
def _reshaped(call: AtenCall) -> Name:
    return call.name(0) if call.shape_of(0) == call.shape else call.emit.reshape(call.name(0), call.shape)


@lowers("aten.expand.default")
def _expanded(call: AtenCall) -> Name:
    name = call.name(0)
    return name if call.shape_of(0) == call.shape else call.emit.expand(name, call.shape)


@lowers("aten.permute.default")
def _permuted(call: AtenCall) -> Name:
    return call.emit.transpose(call.name(0), [axis % len(call.shape) for axis in call.arg(1)])


@lowers("aten.t.default")
def _t(call: AtenCall) -> Name:
    return call.emit.transpose(call.name(0), list(range(len(call.shape)))[::-1])


@lowers("aten.transpose.int")
def _transposed(call: AtenCall) -> Name:
    order = list(range(len(call.shape)))
    one, other = (axis % len(order) for axis in (call.arg(1), call.arg(2)))
    order[one], order[other] = order[other], order[one]
    return call.emit.transpose(call.name(0), order)


@lowers("aten.slice.Tensor")
def _sliced(call: AtenCall) -> Name:
    if call.shape == call.shape_of(0):
        return call.name(0)
    axis = call.arg(1, "dim", 0) % len(call.shape)
    size, step = call.shape_of(0)[axis], call.arg(4, "step", 1)
    start = call.arg(2, "start") or 0
    start = min(max(start + size if start < 0 else start, 0), size)
    # From the result, so that a stop far beyond the end does not depend on how large the batch is.
    stop = start + (call.shape[axis] - 1) * step + 1 if call.shape[axis] else start
    return call.emit.slice(call.name(0), [start], [stop], [axis], [step])


@lowers("aten.select.int")
def _selected(call: AtenCall) -> Name:
    axis = call.arg(1) % call.meta(0).dim()
    index = call.arg(2)
    index = index + call.shape_of(0)[axis] if index < 0 else index
    return call.emit("Gather", call.name(0), call.emit.array(index, torch.int64), axis=axis)


@lowers("aten.split_with_sizes.default")
def _split(call: AtenCall) -> list[Name]:
    axis = call.arg(2, "dim", 0) % call.meta(0).dim()
    return call.emit.split(call.name(0), call.arg(1), axis)


@lowers("aten.split.Tensor")
def _split_even(call: AtenCall) -> list[Name]:
    axis = call.arg(2, "dim", 0) % call.meta(0).dim()
    sizes = [part.shape[axis] for part in call.node.meta["val"]]
    return call.emit.split(call.name(0), sizes, axis)


@lowers("aten.unbind.int")
def _unbound(call: AtenCall) -> list[Name]:
    axis = call.arg(1, "dim", 0) % call.meta(0).dim()
    count = call.shape_of(0)[axis]
    return [call.emit("Gather", call.name(0), call.emit.array(place, torch.int64), axis=axis) for place in range(count)]


@lowers("aten.cat.default")
def _joined(call: AtenCall) -> Name:
    axis = call.arg(1, "dim", 0) % len(call.shape)
    # An empty tensor of one dimension joins anything, as torch has it.
    parts = [part for part in call.arg(0) if part.meta["val"].numel() or part.meta["val"].dim() == len(call.shape) > 1]
    names = [call.typed(part, call.out.dtype) for part in parts]
    return call.emit("Concat", *names, axis=axis) if len(names) > 1 else names[0]


@lowers("aten.stack.default")
def _stacked(call: AtenCall) -> Name:
    axis = call.arg(1, "dim", 0) % len(call.shape)
    names = [call.emit("Unsqueeze", call.typed(part, call.out.dtype), call.emit.ints(axis)) for part in call.arg(0)]
    return call.emit("Concat", *names, axis=axis) if len(names) > 1 else names[0]


@lowers("aten.flip.default")
def _flipped(call: AtenCall) -> Name:
    axes = [axis % len(call.shape) for axis in call.arg(1)]
    lowest = [np.iinfo(np.int64).min] * len(axes)
    return call.emit.slice(call.name(0), [-1] * len(axes), lowest, axes, [-1] * len(axes)) if axes else call.name(0)


@lowers("aten.repeat.default")
def _repeated(call: AtenCall) -> Name:
    lead = len(call.shape) - call.meta(0).dim()
    name = call.emit.reshape(call.name(0), [1] * lead + call.shape_of(0)) if lead else call.name(0)
    return call.emit("Tile", name, call.emit.ints(*call.arg(1)))


@lowers("aten.constant_pad_nd.default")
def _padded(call: AtenCall) -> Name:
    rank, given = len(call.shape), list(call.arg(1))
    before, after = [0] * rank, [0] * rank
    for place in range(len(given) // 2):
        before[rank - 1 - place], after[rank - 1 - place] = given[2 * place], given[2 * place + 1]
    value = call.emit.number(call.arg(2, "value", 0), call.out.dtype)
    return call.emit("Pad", call.name(0), call.emit.ints(*before, *after), value)


@lowers("aten.as_strided.default")
def _as_strided(call: AtenCall) -> Name:
    size, stride = list(call.arg(1)), list(call.arg(2))
    plain = [math.prod(size[place + 1 :]) for place in range(len(size))]
    is_plain = all(one == other for count, one, other in zip(size, stride, plain, strict=True) if count != 1)
    if call.arg(3) or not is_plain or math.prod(size) != call.meta(0).numel():
        raise call.refuse("a view of memory that is not a reshape")
    return call.emit.reshape(call.name(0), size)


# New values ------------------------------------------------------------------------------------------


def _filled(value: Any) -> Any:
    def lowering(call: AtenCall) -> Name:
        given = value if value is not None else call.arg(1, "fill_value")
        return call.emit.full(call.shape, given, call.out.dtype)

    return lowering


for _name in ("full", "full_like", "new_full"):
    TABLE[f"aten.{_name}.default"] = _filled(None)
TABLE["aten.new_full.default"] = lambda call: call.emit.full(call.shape, call.arg(2), call.out.dtype)
for _name in ("zeros", "zeros_like", "new_zeros", "empty_permuted", "new_empty"):
    TABLE[f"aten.{_name}.default"] = _filled(0)
TABLE["aten.empty.memory_format"] = _filled(0)
TABLE["aten.empty_like.default"] = _filled(0)
for _name in ("ones", "ones_like", "new_ones"):
    TABLE[f"aten.{_name}.default"] = _filled(1)
TABLE["aten.fill.Scalar"] = _filled(None)


@lowers("aten.scalar_tensor.default")
def _scalar(call: AtenCall) -> Name:
    return call.emit.number(call.arg(0), call.out.dtype)


@lowers("aten.arange.start_step", "aten.arange.start", "aten.arange.default", "prims.iota.default")
def _arange(call: AtenCall) -> Name:
    start, step, count = 0, 1, call.shape[0]
    match str(call.node.target).rpartition(".")[2]:
        case "start_step":
            start, step = call.arg(0), call.arg(2, "step", 1)
        case "start":
            start = call.arg(0)
    if "iota" in str(call.node.target):
        start, step = call.arg(1, "start", 0), call.arg(2, "step", 1)
    emit, dtype = call.emit, call.out.dtype
    places = emit("Range", emit.array(0, torch.int64), emit.array(count, torch.int64), emit.array(1, torch.int64))
    if (start, step) == (0, 1):
        return places if dtype is torch.int64 else emit.cast(places, dtype)
    found = emit.cast(places, dtype) if dtype is not torch.int64 else places
    return emit("Add", emit("Mul", found, emit.number(step, dtype)), emit.number(start, dtype))


# Indexing --------------------------------------------------------------------------------------------


@lowers("aten.embedding.default")
def _embedding(call: AtenCall) -> Name:
    return call.emit("Gather", call.name(0), call.name(1), axis=0)


@lowers("aten.embedding_dense_backward.default")
def _embedding_gradient(call: AtenCall) -> Name:
    words, padding, by_frequency = call.arg(2), call.arg(3), call.arg(4)
    if by_frequency:
        raise call.refuse("scaled by how often a word occurs")
    emit, dtype = call.emit, call.out.dtype
    width, count = call.shape_of(0)[-1], call.meta(1).numel()
    places = emit.reshape(call.typed(call.arg(1), torch.int64), [count, 1])
    gradient = emit.reshape(call.name(0), [count, width])
    if padding >= 0:
        is_padding = emit("Equal", places, emit.array(padding, torch.int64))
        gradient = emit("Where", is_padding, emit.number(0, dtype), gradient)
    return emit("ScatterND", emit.full([words, width], 0, dtype), places, gradient, reduction="add")


@lowers("aten.index_select.default")
def _index_select(call: AtenCall) -> Name:
    return call.emit("Gather", call.name(0), call.name(2), axis=call.arg(1) % call.meta(0).dim())


@lowers("aten.gather.default")
def _gather(call: AtenCall) -> Name:
    return call.emit("GatherElements", call.name(0), call.name(2), axis=call.arg(1) % call.meta(0).dim())


def _scattered(call: AtenCall, source: Name, reduction: str) -> Name:
    rest = {"reduction": reduction} if reduction else {}
    axis = call.arg(1) % len(call.shape)
    return call.emit("ScatterElements", call.name(0), call.name(2), source, axis=axis, **rest)


@lowers("aten.scatter.src", "aten.scatter_add.default")
def _scatter(call: AtenCall) -> Name:
    if call.shape_of(3) != call.shape_of(2):
        raise call.refuse("of fewer positions than values")
    return _scattered(call, call.name(3), "add" if "scatter_add" in str(call.node.target) else "")


@lowers("aten.scatter.value")
def _scatter_value(call: AtenCall) -> Name:
    return _scattered(call, call.emit.full(call.shape_of(2), call.arg(3), call.out.dtype), "")


def _front(call: AtenCall) -> tuple[list[int], list[fx.Node], list[int]]:
    """Return the indexed dimensions, which must be neighbours, their indices, and the shape of the indices."""
    given = list(call.arg(1))
    axes = [axis for axis, index in enumerate(given) if index is not None]
    if axes != list(range(axes[0], axes[0] + len(axes))):
        raise call.refuse("by several indices with a gap between them")
    indices = [given[axis] for axis in axes]
    if any(index.meta["val"].dtype is torch.bool for index in indices):
        raise call.refuse("by truth values: how many are chosen depends on the data; use torch.where")
    return axes, indices, list(torch.broadcast_shapes(*(index.meta["val"].shape for index in indices)))  # type: ignore[no-untyped-call]


def _places(call: AtenCall, axes: list[int], indices: list[fx.Node], shape: list[int]) -> Name:
    parts = []
    for axis, index in zip(axes, indices, strict=True):
        name, own = call.typed(index, torch.int64), list(index.meta["val"].shape)
        # ScatterND of some runtimes takes no indices that count from the end.
        size = call.emit.array(call.shape_of(0)[axis], torch.int64)
        is_low = call.emit("Less", name, call.emit.array(0, torch.int64))
        name = call.emit("Where", is_low, call.emit("Add", name, size), name)
        name = name if own == shape else call.emit.expand(name, shape)
        parts.append(call.emit.reshape(name, [*shape, 1]))
    return call.emit("Concat", *parts, axis=len(shape)) if len(parts) > 1 else parts[0]


@lowers("aten.index.Tensor", "aten._unsafe_index.Tensor")
def _index(call: AtenCall) -> Name:
    axes, indices, shape = _front(call)
    emit = call.emit
    if len(axes) == 1:
        return emit("Gather", call.name(0), call.typed(indices[0], torch.int64), axis=axes[0])
    rank = call.meta(0).dim()
    others = [axis for axis in range(rank) if axis not in axes]
    found = emit("GatherND", emit.transpose(call.name(0), axes + others), _places(call, axes, indices, shape))
    # Where the first of the indexed dimensions was.
    back = [len(shape) + place for place in range(axes[0])] + list(range(len(shape)))
    back += [len(shape) + place for place in range(axes[0], len(others))]
    return emit.transpose(found, back)


@lowers("aten.index_put.default", "aten._unsafe_index_put.default")
def _index_put(call: AtenCall) -> Name:
    axes, indices, shape = _front(call)
    emit, rank = call.emit, len(call.shape)
    others = [axis for axis in range(rank) if axis not in axes]
    rest = [call.shape[axis] for axis in others]
    wanted = rest[: axes[0]] + shape + rest[axes[0] :]
    values = call.name(2) if call.shape_of(2) == wanted else emit.expand(call.name(2), wanted)
    lead = axes[0]
    to_front = [lead + place for place in range(len(shape))] + list(range(lead))
    to_front += list(range(lead + len(shape), len(wanted)))
    values = emit.transpose(values, to_front)
    order = axes + others
    kept = emit.transpose(call.name(0), order)
    extra = {"reduction": "add"} if call.arg(3, "accumulate", False) else {}
    found = emit("ScatterND", kept, _places(call, axes, indices, shape), values, **extra)
    return emit.transpose(found, [order.index(axis) for axis in range(rank)])


# Random numbers --------------------------------------------------------------------------------------


@lowers("aten.rand.default", "aten.rand_like.default")
def _rand(call: AtenCall) -> Name:
    return call.emit.draw("uniform", call.shape)


@lowers("aten.uniform.default")
def _uniform(call: AtenCall) -> Name:
    low, high = call.arg(1, "from", 0.0), call.arg(2, "to", 1.0)
    drawn, dtype = call.emit.draw("uniform", call.shape), call.out.dtype
    scaled = call.emit("Mul", drawn, call.emit.number(high - low, dtype))
    return call.emit("Add", scaled, call.emit.number(low, dtype))


@lowers("aten.randn.default", "aten.randn_like.default")
def _randn(call: AtenCall) -> Name:
    return call.emit.draw("normal", call.shape)


@lowers("aten.randint.low", "aten.randint.default")
def _randint(call: AtenCall) -> Name:
    low, high = (call.arg(0), call.arg(1)) if "low" in str(call.node.target) else (0, call.arg(0))
    name = call.emit.draw("integers", call.shape, low=low, high=high)
    return name if call.out.dtype is torch.int64 else call.emit.cast(name, call.out.dtype)


@lowers("aten.randperm.default")
def _randperm(call: AtenCall) -> Name:
    return call.emit.draw("permutation", call.shape)


@lowers("aten.bernoulli.p", "aten.bernoulli.default")
def _bernoulli(call: AtenCall) -> Name:
    chance = call.arg(1, "p")
    limit = call.arg(0) if chance is None else chance
    is_hit = call.emit("Less", call.emit.draw("uniform", call.shape), call.typed(limit, torch.float32))
    return call.emit("Cast", is_hit, to=ELEMENT[call.out.dtype])
