"""Joins the nodes of two batch sizes into one ONNX file that takes any. Imports torch only for its types, and onnx.

A graph is traced twice, with batches of two sizes. The nodes must be the same; a constant that differs is written as a
formula of the batch's size. A constant that fits no formula is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from shoal.trainer.portable.draws import Drawn
from shoal.trainer.portable.emit import ELEMENT, Draw, Emitter, Name, Node
from shoal.trainer.portable.graph import IR_VERSION, OPSET
from shoal.trainer.portable.lower_graph import lower
from shoal.trainer.portable.refusal import Unportable
from shoal.trainer.portable.trace import Traced

_BATCH = "batch"
_INT64 = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """The bytes of a graph, the names of its inputs in order, and the random numbers that it needs."""

    onnx: bytes
    inputs: tuple[str, ...]
    draws: tuple[Drawn, ...]


def build(trace: Callable[[int], Traced], sizes: tuple[int, int]) -> Built:
    """Build one file from the graphs that ``trace`` gives for batches of two sizes."""
    traced = [trace(size) for size in sizes]
    (emit, results, read), (other, *_) = (lower(each) for each in traced)
    if emit.nodes != other.nodes:
        raise Unportable("the step differs between batch sizes: " + _first_difference(emit, other))
    if emit.constants.keys() != other.constants.keys():
        raise Unportable("the step's constants differ between batch sizes")
    column = _count_of(traced[0])
    sized = _Sized(emit, other, sizes, column)
    if sized.nodes:
        read.add(column)
    nodes = [*sized.nodes, *emit.nodes]
    nodes += [Node("Identity", (value,), (name,), ()) for name, value in results.items()]
    nodes = _alive(nodes, set(results))
    inputs = {name: tensor for name, tensor in traced[0].inputs.items() if name in read}
    varying = {name: _dims(tensor.shape, traced[1].inputs[name].shape) for name, tensor in inputs.items()}
    draws = tuple(_sized_draw(one, two, sizes) for one, two in zip(emit.draws, other.draws, strict=True))
    model = _model(nodes, sized.constants, traced[0], varying, draws)
    return Built(onnx=model.SerializeToString(), inputs=tuple(inputs), draws=draws)


def _first_difference(one: Emitter, other: Emitter) -> str:
    for ours, theirs in zip(one.nodes, other.nodes, strict=False):
        if ours != theirs:
            return f"{ours.kind} {dict(ours.attributes)} and {theirs.kind} {dict(theirs.attributes)}"
    return f"{len(one.nodes)} and {len(other.nodes)} nodes"


def _count_of(traced: Traced) -> Name:
    """Return an input whose first dimension is the batch."""
    return next(name for name in traced.inputs if name.startswith("column."))


class _Sized:
    """The constants. Those that depend on the batch's size are nodes that compute them."""

    def __init__(self, one: Emitter, other: Emitter, sizes: tuple[int, int], column: Name) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[Name, np.ndarray[Any, Any]] = {}
        self._known: dict[tuple[Any, ...], Name] = {}
        self._column = column
        self._same: dict[Name, Name] = {}
        for name, array in one.constants.items():
            theirs = other.constants[name]
            if array.shape != theirs.shape:
                raise Unportable(
                    f"a table of {list(array.shape)} values has {list(theirs.shape)} for another batch size"
                )
            if np.array_equal(array, theirs, equal_nan=array.dtype.kind == "f"):
                self.constants[name] = array
            elif array.dtype == np.int64:
                self._linear(name, array, theirs, sizes)
            elif name in one.exact:
                self._fraction(name, array.dtype, (one.exact[name], other.exact[name]), sizes)
            else:
                raise Unportable("a table depends on the batch's size")

    def _size(self) -> Name:
        """Return the node that holds the number of examples."""
        if "size" not in self._same:
            shape = self._node("Shape", self._column)
            self.constants["n0"] = np.array(0, np.int64)
            self._same["size"] = self._node("Gather", shape, "n0", axis=0)
        return self._same["size"]

    def _node(self, kind: str, *inputs: Name, out: Name = "", **attributes: Any) -> Name:
        name = out or f"n{len(self.nodes) + 1}"
        self.nodes.append(Node(kind, inputs, (name,), tuple(sorted(attributes.items()))))
        return name

    def _constant(self, name: Name, value: Any) -> Name:
        self.constants[name] = np.asarray(value)
        return name

    def _linear(
        self, name: Name, one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], sizes: tuple[int, int]
    ) -> None:
        slope, rest = np.divmod(other - one, sizes[1] - sizes[0])
        if rest.any():
            raise Unportable("a size is not a multiple of the batch's")
        scaled = self._node("Mul", self._size(), self._constant(f"{name}a", slope))
        fixed = one - slope * sizes[0]
        self._node("Add", scaled, self._constant(f"{name}b", fixed), out=name)

    def _fraction(self, name: Name, dtype: Any, values: tuple[float, float], sizes: tuple[int, int]) -> None:
        """Write a number as a n, a / n, or n a / (n a - 1): the factors of a mean and of a variance without bias.

        In float32, unless the number is itself float64: graphics processors have no float64, and batch sizes are exact
        in both.
        """
        exactly: Any = np.float64 if np.dtype(dtype) == np.float64 else np.float32
        count = self._node("Cast", self._size(), to=_element(exactly))
        one, other = values
        if math.isclose(one / sizes[0], other / sizes[1], rel_tol=1e-9):
            exact = self._node("Mul", count, self._constant(f"{name}a", exactly(one / sizes[0])))
        elif math.isclose(one * sizes[0], other * sizes[1], rel_tol=1e-9):
            exact = self._node("Div", self._constant(f"{name}a", exactly(one * sizes[0])), count)
        else:
            per = [round(value / (value - 1) / size, 3) for value, size in zip(values, sizes, strict=True)]
            if per[0] != per[1] or per[0] != round(per[0]):
                raise Unportable(f"a number is {one:g} for {sizes[0]} examples and {other:g} for {sizes[1]}")
            many = self._node("Mul", count, self._constant(f"{name}a", exactly(per[0])))
            fewer = self._node("Sub", many, self._constant(f"{name}b", exactly(1)))
            exact = self._node("Div", many, fewer)
        self._node("Cast", exact, out=name, to=_element(dtype))


def _element(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _dims(one: Any, other: Any) -> list[int | str]:
    return [ours if ours == theirs else _BATCH for ours, theirs in zip(one, other, strict=True)]


def _sized_draw(one: Draw, other: Draw, sizes: tuple[int, int]) -> Drawn:
    if (one.low, one.high, one.kind) != (other.low, other.high, other.kind):
        raise Unportable("the kind of random numbers depends on the batch's size")
    shape = []
    for ours, theirs in zip(one.shape, other.shape, strict=True):
        slope, rest = divmod(theirs - ours, sizes[1] - sizes[0])
        if rest:
            raise Unportable("the number of random numbers is not a multiple of the batch's size")
        shape.append((slope, ours - slope * sizes[0]))
    return Drawn(name=one.name, kind=one.kind, shape=tuple(shape), low=one.low, high=one.high)


def _alive(nodes: list[Node], wanted: set[Name]) -> list[Node]:
    """Return the nodes whose values are read. Trailing outputs that are not read lose their names."""
    kept: list[Node] = []
    for node in reversed(nodes):
        if not wanted & set(node.outputs):
            continue
        wanted |= set(node.reads)
        outputs = list(node.outputs)
        # A loop has as many as its steps give.
        while len(outputs) > 1 and outputs[-1] not in wanted and node.body is None:
            outputs.pop()
        kept.append(replace(node, outputs=tuple(outputs)))
    return kept[::-1]


def _model(
    nodes: list[Node],
    constants: Mapping[Name, np.ndarray[Any, Any]],
    traced: Traced,
    varying: Mapping[str, list[int | str]],
    draws: tuple[Drawn, ...],
) -> onnx.ModelProto:
    nodes, constants = _shared_constants(nodes, constants)
    used = {name for node in nodes for name in node.reads}
    inputs = [
        helper.make_tensor_value_info(name, ELEMENT[traced.inputs[name].dtype], dims) for name, dims in varying.items()
    ]
    for draw in draws:
        kind = 1 if draw.kind in ("uniform", "normal") else _INT64
        dims = [fixed if not slope else (_BATCH if (slope, fixed) == (1, 0) else None) for slope, fixed in draw.shape]
        inputs.append(helper.make_tensor_value_info(draw.name, kind, dims))
    results = _results(traced)
    outputs = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in results.items()]
    graph = helper.make_graph(
        [_node(node) for node in nodes],
        "step",
        inputs,
        outputs,
        [numpy_helper.from_array(array, name) for name, array in constants.items() if name in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model


def _node(node: Node) -> onnx.NodeProto:
    made = helper.make_node(node.kind, node.inputs, node.outputs, **dict(node.attributes))
    if node.body is not None:
        inputs, outputs = (
            [helper.make_tensor_value_info(name, ELEMENT[torch.float32], None) for name in names]
            for names in (node.body.inputs, node.body.outputs)
        )
        body = helper.make_graph([_node(each) for each in node.body.nodes], "step", inputs, outputs)
        made.attribute.append(helper.make_attribute("body", body))
    return made


def _results(traced: Traced) -> dict[str, tuple[int, list[int]]]:
    last = next(node for node in traced.graph.graph.nodes if node.op == "output").args[0]
    found = last if isinstance(last, list | tuple) else (last,)
    return {
        name: (ELEMENT[node.meta["val"].dtype], list(node.meta["val"].shape))
        for name, node in zip(traced.outputs, found, strict=True)
    }


def _shared_constants(
    nodes: list[Node], constants: Mapping[Name, np.ndarray[Any, Any]]
) -> tuple[list[Node], dict[Name, np.ndarray[Any, Any]]]:
    """Merge equal constants: a graph has hundreds of zeros."""
    first: dict[tuple[Any, ...], Name] = {}
    alias: dict[Name, Name] = {}
    for name, array in constants.items():
        alias[name] = first.setdefault((array.dtype.str, array.shape, array.tobytes()), name)
    renamed = [replace(node, inputs=tuple(alias.get(name, name) for name in node.inputs)) for node in nodes]
    return renamed, {name: constants[name] for name in first.values()}
