"""ONNX nodes, one after the other, with the constants that they read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch

#: The name of a value in the graph.
Name: TypeAlias = str

#: ONNX's numbers of element types.
ELEMENT = {
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.int16: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.bool: 9,
    torch.float16: 10,
    torch.float64: 11,
}
NUMPY: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.uint8: np.uint8,
    torch.int8: np.int8,
    torch.int16: np.int16,
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.bool: np.bool_,
    torch.float16: np.float16,
    torch.float64: np.float64,
}

#: WebGPU promises a kernel eight tensors. A Split reads one and writes the others: with more it fails when it runs.
_SPLIT_MAX = 7


@dataclass(frozen=True, slots=True)
class Node:
    kind: str
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    attributes: tuple[tuple[str, Any], ...]
    body: Body | None = None

    @property
    def reads(self) -> tuple[Name, ...]:
        """Return all that it needs: its inputs, and what the steps of a loop read from outside."""
        return self.inputs + (self.body.outside if self.body is not None else ())


@dataclass(frozen=True, slots=True)
class Body:
    """A step of a Scan: nodes of float32 values, whose inputs, and whose outputs, are states and then rows."""

    nodes: tuple[Node, ...]
    inputs: tuple[Name, ...]
    outputs: tuple[Name, ...]
    #: Values of the graph around it, which are the same in each step.
    outside: tuple[Name, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """Random numbers that are an input: the program that runs the graph draws them."""

    name: Name
    #: ``uniform`` in [0, 1), ``normal``, ``integers`` from low to below high, or ``permutation`` of the first N.
    kind: str
    shape: tuple[int, ...]
    low: int = 0
    high: int = 0


@dataclass(slots=True)
class Emitter:
    nodes: list[Node] = field(default_factory=list)
    #: By name. A number that Python computed is also kept in double precision, to find its formula of the batch size.
    constants: dict[Name, np.ndarray[Any, Any]] = field(default_factory=dict)
    exact: dict[Name, float] = field(default_factory=dict)
    draws: list[Draw] = field(default_factory=list)
    _count: int = 0

    def __call__(self, kind: str, *inputs: Name, **attributes: Any) -> Name:
        return self.many(kind, 1, *inputs, **attributes)[0]

    def many(self, kind: str, outputs: int, *inputs: Name, **attributes: Any) -> list[Name]:
        names = [f"v{self._count + number}" for number in range(outputs)]
        self._count += outputs
        self.nodes.append(Node(kind, inputs, tuple(names), tuple(sorted(attributes.items()))))
        return names

    def scan(self, body: Body, states: Sequence[Name], rows: Sequence[Name], *, reverse: bool) -> list[Name]:
        """Walk along the first dimension of ``rows``. Return the last states, and the rows that the steps gave."""
        made = len(body.outputs) - len(states)
        options = {
            "num_scan_inputs": len(rows),
            "scan_input_directions": [int(reverse)] * len(rows),
            "scan_output_directions": [int(reverse)] * made,
        }
        names = self.many("Scan", len(body.outputs), *states, *rows, **options)
        self.nodes[-1] = replace(self.nodes[-1], body=body)
        return names

    # Constants. None is shared, so that both batch sizes give the same constants in the same order.

    def array(self, value: Any, dtype: torch.dtype) -> Name:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.array(value, NUMPY[dtype])
        return name

    def number(self, value: Any, dtype: torch.dtype) -> Name:
        name = self.array(value, dtype)
        self.exact[name] = float(value)
        return name

    def ints(self, *values: int) -> Name:
        return self.array(values, torch.int64)

    # Shorthands.

    def cast(self, name: Name, to: torch.dtype) -> Name:
        return self("Cast", name, to=ELEMENT[to])

    def reshape(self, name: Name, shape: Sequence[int]) -> Name:
        return self("Reshape", name, self.ints(*shape), allowzero=1)

    def transpose(self, name: Name, order: Sequence[int]) -> Name:
        return name if list(order) == list(range(len(order))) else self("Transpose", name, perm=list(order))

    def expand(self, name: Name, shape: Sequence[int]) -> Name:
        return self("Expand", name, self.ints(*shape))

    def full(self, shape: Sequence[int], value: Any, dtype: torch.dtype) -> Name:
        return self.expand(self.number(value, dtype), shape)

    def slice(
        self, name: Name, starts: Sequence[int], stops: Sequence[int], axes: Sequence[int], steps: Sequence[int] = ()
    ) -> Name:
        rest = (self.ints(*steps),) if any(step != 1 for step in steps) else ()
        return self("Slice", name, self.ints(*starts), self.ints(*stops), self.ints(*axes), *rest)

    def split(self, name: Name, sizes: Sequence[int], axis: int) -> list[Name]:
        if len(sizes) <= _SPLIT_MAX:
            return self.many("Split", len(sizes), name, self.ints(*sizes), axis=axis)
        stops = list(itertools.accumulate(sizes))
        return [self.slice(name, [stop - size], [stop], [axis]) for size, stop in zip(sizes, stops, strict=True)]

    def draw(self, kind: str, shape: Sequence[int], *, low: int = 0, high: int = 0) -> Name:
        name = f"draw{len(self.draws)}"
        self.draws.append(Draw(name=name, kind=kind, shape=tuple(shape), low=low, high=high))
        return name
