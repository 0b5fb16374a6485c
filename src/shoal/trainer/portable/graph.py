"""What a captured graph may contain, checked byte by byte before any library reads it. No torch, onnx or onnxruntime.

A browser's tab has the same rules, generated from these (``tab/src/graph_rules.ts``).

A graph is data from a peer. It must be small, use only operations of one list, and have no function, no file name and
no domain but ONNX's own. Only loops over the rows of a tensor have another graph, their step, which has no loops.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.errors import Corrupt

OPSET = 18
IR_VERSION = 9

GRAPH_MAX_BYTES = 4 << 20
NODES_MAX = 20_000
#: Inputs and outputs of one node: a vector may be split into as many tensors as a model has.
NODE_NAMES_MAX = 10_000

OPERATIONS = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "ArgMax",
        "ArgMin",
        "Atan",
        "AveragePool",
        "Cast",
        "Ceil",
        "Concat",
        "Conv",
        "ConvTranspose",
        "Cos",
        "Cosh",
        "CumSum",
        "Div",
        "Equal",
        "Erf",
        "Exp",
        "Expand",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "Gemm",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "IsInf",
        "IsNaN",
        "Less",
        "LessOrEqual",
        "Log",
        "MatMul",
        "Max",
        "MaxPool",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Pad",
        "Pow",
        "Range",
        "Reciprocal",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "Relu",
        "Reshape",
        "Round",
        "ScatterElements",
        "ScatterND",
        "Scan",
        "Shape",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Slice",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Tan",
        "Tanh",
        "Tile",
        "TopK",
        "Transpose",
        "Unsqueeze",
        "Where",
        "Xor",
    ]
)

#: The operation that has a graph of its own: a step, for each row of its inputs. It cannot run for ever.
LOOP = "Scan"

#: Fields of onnx.proto that a graph of ours has; all others are refused, external data among them.
FIELDS = {
    "model": {"ir_version": 1, "producer_name": 2, "graph": 7, "opset": 8},
    "opset": {"domain": 1, "version": 2},
    "graph": {"node": 1, "name": 2, "initializer": 5, "input": 11, "output": 12},
    "node": {"input": 1, "output": 2, "name": 3, "kind": 4, "attribute": 5},
    "attribute": {"name": 1, "f": 2, "i": 3, "s": 4, "floats": 7, "graph": 6, "ints": 8, "type": 20},
    "constant": {"dims": 1, "type": 2, "floats": 4, "int32s": 5, "int64s": 7, "name": 8, "raw": 9, "doubles": 10},
}
_MODEL, _GRAPH, _NODE = FIELDS["model"], FIELDS["graph"], FIELDS["node"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def check_graph(graph: bytes) -> int:
    """Refuse bytes that are not a graph as Shoal writes them. Return the number of nodes."""
    if len(graph) > GRAPH_MAX_BYTES:
        raise Corrupt(f"a graph has {len(graph):,} bytes, at most {GRAPH_MAX_BYTES:,}")
    bodies, opsets = [], []
    for field, value in _fields(memoryview(graph), "model"):
        if field == _MODEL["ir_version"] and value != IR_VERSION:
            raise Corrupt(f"a graph of format {value!r}, not {IR_VERSION}")
        if field == _MODEL["graph"]:
            bodies.append(_message(value))
        elif field == _MODEL["opset"]:
            opsets.append(dict(_fields(_message(value), "opset")))
    if len(bodies) != 1 or len(opsets) != 1:
        raise Corrupt("a graph file holds one graph and one set of operations")
    if bytes(_message(opsets[0].get(1, memoryview(b"")))) or opsets[0].get(2) != OPSET:
        raise Corrupt(f"a graph has operations other than those of ONNX's set {OPSET}")
    return _check_body(bodies[0], LOOP)


def _check_body(body: memoryview, loop: str) -> int:
    """Return the number of nodes, with those of a loop's step. ``loop`` is the operation that may have a graph."""
    nodes = 0
    for field, value in _fields(body, "graph"):
        if field == _GRAPH["node"]:
            nodes += 1 + _check_node(_message(value), loop)
            if nodes > NODES_MAX:
                raise Corrupt(f"a graph has more than {NODES_MAX:,} nodes")
        elif field == _GRAPH["initializer"]:
            for _ in _fields(_message(value), "constant"):
                pass
    return nodes


def _check_node(node: memoryview, loop: str) -> int:
    """Return the number of nodes in its steps, if it is a loop."""
    kind, names = "", 0
    steps: list[memoryview] = []
    for field, value in _fields(node, "node"):
        if field == _NODE["kind"]:
            kind = bytes(_message(value)[:40]).decode(errors="replace")
        elif field in (_NODE["input"], _NODE["output"]):
            names += 1
        elif field == _NODE["attribute"]:
            for part, inside in _fields(_message(value), "attribute"):
                if part == FIELDS["attribute"]["graph"]:
                    steps.append(_message(inside))
    if kind not in OPERATIONS:
        raise Corrupt(f"a graph has the operation {kind!r}, which is not among those that devices run")
    if names > NODE_NAMES_MAX:
        raise Corrupt(f"a node of a graph reads and gives more than {NODE_NAMES_MAX:,} values")
    if len(steps) != (kind == LOOP) or (steps and kind != loop):
        raise Corrupt(f"{kind!r} has {len(steps)} graphs: a graph has loops of one step, and a step has no loops")
    return sum(_check_body(step, "") for step in steps)


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise Corrupt("a graph has a number where a part of it is due")
    return value


def _fields(data: memoryview, what: str) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of one protobuf message, in order. Refuses unknown fields."""
    place, allowed = 0, frozenset(FIELDS[what].values())
    while place < len(data):
        key, place = _varint(data, place)
        field, kind = key >> 3, key & 7
        if field not in allowed:
            raise Corrupt(f"the {what} of a graph has field {field}, which is unknown")
        value: int | memoryview
        if kind == _VARINT:
            value, place = _varint(data, place)
        else:
            if kind == _BYTES:
                length, place = _varint(data, place)
            elif kind in (_FIXED32, _FIXED64):
                length = 4 if kind == _FIXED32 else 8
            else:
                raise Corrupt("a graph is not what protobuf writes")
            if length > len(data) - place:
                raise Corrupt("a graph ends early")
            value = data[place : place + length]
            place += length
        yield field, value


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            raise Corrupt("a graph ends early")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise Corrupt("a graph has a number that does not end")
