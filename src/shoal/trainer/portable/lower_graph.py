"""A traced graph as ONNX: each operation by its row of ``lowering.TABLE``, in the order of the graph."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor, fx

# Their rows are in the table once they are imported.
from shoal.trainer.portable import lower_layers as lower_layers
from shoal.trainer.portable import lower_loops as lower_loops
from shoal.trainer.portable import lower_values as lower_values
from shoal.trainer.portable.emit import ELEMENT, Emitter, Name
from shoal.trainer.portable.lowering import TABLE, AtenCall, key_of
from shoal.trainer.portable.refusal import Unportable, instead_of
from shoal.trainer.portable.trace import Traced


def lower(traced: Traced) -> tuple[Emitter, dict[str, Name], set[str]]:
    """Return the nodes of a graph, the value of each output, and the inputs that are read."""
    graph = traced.graph
    calls = [node for node in graph.graph.nodes if node.op == "call_function" and node.target is not operator.getitem]
    if lost := sorted({str(node.target) for node in calls if key_of(node) not in TABLE}):
        raise Unportable(f"no ONNX for {', '.join(lost)}{instead_of(lost[0])}")
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
        return TABLE[key_of(node)](AtenCall(emit, node, values))
    except Unportable:
        raise
    except Exception as error:
        raise Unportable(f"{node.format_node()}: {type(error).__name__}: {error}") from error
