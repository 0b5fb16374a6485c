"""The table from aten to ONNX, and the walk along a traced graph that uses it. Imports torch.

``lower_values`` (numbers, shapes, indexing) and ``lower_layers`` (products, convolutions, pools) fill the table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from shoal.trainer.portable.emit import Emitter, Name
from shoal.trainer.portable.refusal import Unportable

Lowering: TypeAlias = Callable[["AtenCall"], Any]

TABLE: dict[str, Lowering] = {}


def lowers(*names: str) -> Callable[[Lowering], Lowering]:
    def enter(lowering: Lowering) -> Lowering:
        for name in names:
            assert name not in TABLE, name
            TABLE[name] = lowering
        return lowering

    return enter


class AtenCall:
    """One call of an aten operation, as its lowering sees it."""

    def __init__(self, emit: Emitter, node: fx.Node, values: dict[fx.Node, Any]) -> None:
        self.emit = emit
        self.node = node
        self._values = values

    @property
    def out(self) -> Tensor:
        """A placeholder for the result, with its shape and type."""
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
        """Return a tensor or a number converted to this type."""
        if not isinstance(given, fx.Node):
            return self.emit.number(given, dtype)
        name = self.value(given)
        return name if given.meta["val"].dtype == dtype else self.emit.cast(name, dtype)

    def refuse(self, why: str) -> Unportable:
        return Unportable(f"{self.node.target}: {why}")


def key_of(node: fx.Node) -> str:
    """Return the operation's name. A view that became a value has the name of the view."""
    name = str(node.target)
    return name if name.startswith(("aten._to_copy", "aten.lift_fresh_copy")) else name.replace("_copy.", ".")
