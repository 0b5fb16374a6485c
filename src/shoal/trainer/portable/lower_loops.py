"""Recurrent layers to ONNX: a Scan over the steps, which ends with its rows. Imports torch."""

from __future__ import annotations

from shoal.trainer.portable.emit import Body, Name, Node
from shoal.trainer.portable.lowering import AtenCall, lowers


class _Step:
    """The nodes of one step. Names in it begin with an underscore: no name of the graph around it does."""

    def __init__(self, *inputs: Name) -> None:
        self._nodes: list[Node] = []
        self._inputs = inputs
        self._count = 0

    def __call__(self, kind: str, *inputs: Name, **attributes: object) -> Name:
        return self.many(kind, 1, *inputs, **attributes)[0]

    def many(self, kind: str, outputs: int, *inputs: Name, **attributes: object) -> list[Name]:
        names = [f"_{self._count + number}" for number in range(outputs)]
        self._count += outputs
        self._nodes.append(Node(kind, inputs, tuple(names), tuple(sorted(attributes.items()))))
        return names

    def parts(self, name: Name, count: int) -> list[Name]:
        return self.many("Split", count, name, num_outputs=count, axis=-1)

    def body(self, *outputs: Name, outside: tuple[Name, ...]) -> Body:
        # A state that is also a row needs two names.
        own = [self("Identity", name) for name in outputs]
        return Body(tuple(self._nodes), self._inputs, tuple(own), outside)


def _turned(call: AtenCall, place: int) -> Name:
    return call.emit("Transpose", call.name(place), perm=[1, 0])


@lowers("shoal.lstm.default")
def _lstm(call: AtenCall) -> list[Name]:
    weight = _turned(call, 3)
    step = _Step("_h", "_c", "_x")
    i, f, g, o = step.parts(step("Add", "_x", step("MatMul", "_h", weight)), 4)
    i, f, g, o = step("Sigmoid", i), step("Sigmoid", f), step("Tanh", g), step("Sigmoid", o)
    c = step("Add", step("Mul", f, "_c"), step("Mul", i, g))
    h = step("Mul", o, step("Tanh", c))
    gates = step("Concat", i, f, g, o, axis=-1)
    body = step.body(h, c, h, c, gates, outside=(weight,))
    states = [call.name(1), call.name(2)]
    return call.emit.scan(body, states, [call.name(0)], reverse=bool(call.arg(4)))[2:]


@lowers("shoal.lstm_backward.default")
def _lstm_backward(call: AtenCall) -> list[Name]:
    weight = call.emit("Identity", call.name(5))
    step = _Step("_h", "_c", "_dh", "_dc", "_slopes", "_through", "_forget")
    h = step("Add", "_dh", "_h")
    c = step("Add", step("Add", "_dc", "_c"), step("Mul", h, "_through"))
    gates = step("Mul", step("Concat", c, c, c, h, axis=-1), "_slopes")
    body = step.body(step("MatMul", gates, weight), step("Mul", c, "_forget"), gates, outside=(weight,))
    nothing = [call.emit.full(list(part.shape), 0, part.dtype) for part in call.node.meta["val"][1:]]
    h, c, gates = call.emit.scan(body, nothing, [call.name(place) for place in range(5)], reverse=not call.arg(6))
    return [gates, h, c]


@lowers("shoal.gru.default")
def _gru(call: AtenCall) -> list[Name]:
    weight, bias = _turned(call, 2), call.emit("Identity", call.name(3))
    step = _Step("_h", "_x")
    x_r, x_z, x_n = step.parts("_x", 3)
    h_r, h_z, h_n = step.parts(step("Add", step("MatMul", "_h", weight), bias), 3)
    r, z = step("Sigmoid", step("Add", x_r, h_r)), step("Sigmoid", step("Add", x_z, h_z))
    n = step("Tanh", step("Add", x_n, step("Mul", r, h_n)))
    h = step("Add", n, step("Mul", z, step("Sub", "_h", n)))
    body = step.body(h, h, step("Concat", r, z, n, h_n, axis=-1), outside=(weight, bias))
    return call.emit.scan(body, [call.name(1)], [call.name(0)], reverse=bool(call.arg(4)))[1:]


@lowers("shoal.gru_backward.default")
def _gru_backward(call: AtenCall) -> list[Name]:
    weight = call.emit("Identity", call.name(3))
    step = _Step("_h", "_dh", "_slopes", "_kept")
    whole = step("Add", "_dh", "_h")
    from_h = step("Mul", step("Concat", whole, whole, whole, axis=-1), "_slopes")
    h = step("Add", step("Mul", whole, "_kept"), step("MatMul", from_h, weight))
    body = step.body(h, whole, outside=(weight,))
    first = call.node.meta["val"][1]
    nothing = call.emit.full(list(first.shape), 0, first.dtype)
    h, whole = call.emit.scan(body, [nothing], [call.name(place) for place in range(3)], reverse=not call.arg(4))
    return [whole, h]
