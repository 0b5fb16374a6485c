"""The table from aten to ONNX, and the walk along a traced graph that uses it. Imports torch.

The table is filled by ``lower_values`` (numbers, shapes, places) and ``lower_layers`` (products, convolutions, pools).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from shoal.trainer.portable.emit import ELEMENT, Emitter, Name
from shoal.trainer.portable.trace import Traced, Unportable

Lowering: TypeAlias = Callable[["Call"], Any]

TABLE: dict[str, Lowering] = {}


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    def enter(lowering: Lowering) -> Lowering:
        for name in names:
            assert name not in TABLE, name
            TABLE[name] = lowering
        return lowering

    return enter


class Call:
    """One call of an aten operation, as its lowering sees it."""

    def __init__(self, emit: Emitter, node: fx.Node, values: dict[fx.Node, Any]) -> None:
        self.emit = emit
        self.node = node
        self._values = values

    @property
    def out(self) -> Tensor:
        """A stand-in for the result: its shape and type."""
        found: Tensor = self.node.meta["val"]
        return found

    @property
    def shape(self) -> list[int]:
        return list(self.out.shape)

    def arg(self, place: int, name: str = "", default: Any = None) -> Any:
        if place < len(self.node.args):
            return self.node.args[place]
        return self.node.kwargs.get(name, default)

    def meta(self, place: int) -> Tensor:
        found: Tensor = self.node.args[place].meta["val"]  # type: ignore[union-attr]
        return found

    def shape_of(self, place: int) -> list[int]:
        return list(self.meta(place).shape)

    def name(self, place: int) -> Name:
        return self.value(self.arg(place))

    def value(self, node: Any) -> Name:
        assert isinstance(node, fx.Node), node
        found = self._values[node]
        if not isinstance(found, str):
            raise Unportable(f"{node.target} was lowered without the part that {self.node.target} reads")
        return found

    def typed(self, given: Any, dtype: torch.dtype) -> Name:
        """A tensor or a number, in this type."""
        if not isinstance(given, fx.Node):
            return self.emit.number(given, dtype)
        name = self.value(given)
        return name if given.meta["val"].dtype == dtype else self.emit.cast(name, dtype)

    def refuse(self, why: str) -> Unportable:
        return Unportable(f"{self.node.target}: {why}")


def lower(traced: Traced) -> tuple[Emitter, dict[str, Name], set[str]]:
    """The nodes of a graph, the value of each output, and the inputs that are read."""
    # Filled where they are imported.
    from shoal.trainer.portable import lower_layers, lower_values  # noqa: F401

    graph = traced.graph
    calls = [node for node in graph.graph.nodes if node.op == "call_function" and node.target is not operator.getitem]
    if lost := sorted({str(node.target) for node in calls if key_of(node) not in TABLE}):
        raise Unportable(f"no ONNX for {', '.join(lost)}")
    emit = Emitter()
    values: dict[fx.Node, Any] = {}
    names = iter(traced.inputs)
    read: set[str] = set()
    for node in graph.graph.nodes:
        match node.op:
            case "placeholder":
                values[node] = next(names)
                if node.users:
                    read.add(values[node])
            case "get_attr":
                constant = getattr(graph, node.target)
                values[node] = emit.array(constant.detach().numpy(), constant.dtype)
                node.meta.setdefault("val", constant)
            case "call_function" if node.target is operator.getitem:
                values[node] = values[node.args[0]][node.args[1]]
            case "call_function":
                values[node] = _lowered(emit, node, values)
            case "output":
                results = node.args[0] if isinstance(node.args[0], list | tuple) else (node.args[0],)
    return emit, {name: values[node] for name, node in zip(traced.outputs, results, strict=True)}, read


def _lowered(emit: Emitter, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    found = node.meta.get("val")
    for each in found if isinstance(found, list | tuple) else (found,):
        if isinstance(each, Tensor) and each.dtype not in ELEMENT:
            raise Unportable(f"{node.target} gives {each.dtype}, which the graphs do not have")
    try:
        return TABLE[key_of(node)](Call(emit, node, values))
    except Unportable:
        raise
    except Exception as error:
        raise Unportable(f"{node.format_node()}: {type(error).__name__}: {error}") from error


def key_of(node: fx.Node) -> str:
    """The operation's name. A view that became a value is named like the view."""
    name = str(node.target)
    return name if name.startswith(("aten._to_copy", "aten.lift_fresh_copy")) else name.replace("_copy.", ".")
