"""The interface of everything that multiplies matrices for a layer, here or elsewhere. No torch, no peer, no clock.

``multiply`` gives ``left @ right`` in float32. ``secret`` names the sides that executors may not see:

- ``"none"``: both may be seen;
- ``"left"``: the left one may not (activations and their gradients);
- ``"both"``: neither may (a weight gradient, of two secrets).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from shoal.errors import Misuse

Secret = Literal["none", "left", "both"]
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """The products so far, and their cost."""

    products: int = 0
    #: How many of these were sent, at least in part.
    sent: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    #: Multiply-adds here: products at home, checks and masks.
    operations_home: int = 0
    operations_away: int = 0
    #: Executors whose results were wrong, each once, in the order in which they were caught.
    liars: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def bytes_moved(self) -> int:
        return self.bytes_out + self.bytes_in

    @property
    def home_share(self) -> float:
        """Share of all multiply-adds that were done here."""
        every = self.operations_home + self.operations_away
        return self.operations_home / every if every else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Advert:
    """The speed of one pool, or of several together, as their brokers measured it."""

    executors: int
    #: All executors together, float32.
    operations_per_s: float
    #: Between the client and the pools, there and back, its own work for them included; 0 while it is not known.
    bytes_per_s: float
    #: There and back, with nothing to do.
    latency_s: float
    #: Pools that do not collude: masking takes two.
    pools: int = 1


class Products(Protocol):
    def multiply(self, left: Array, right: Array, *, secret: Secret, name: str) -> Array:
        """``left @ right``, float32. ``name`` is the layer's and the pass's, for logs."""
        ...

    @property
    def report(self) -> Report: ...


@runtime_checkable
class Advertises(Protocol):
    """Products that know the speed of their pools, so that the cost model can weigh a product before it is sent."""

    @property
    def advert(self) -> Advert | None: ...


def check(left: Array, right: Array) -> None:
    """Raise Misuse unless these are two float32 matrices that can be multiplied."""
    for side, matrix in (("left", left), ("right", right)):
        if matrix.ndim != 2 or matrix.dtype != np.float32:
            raise Misuse(f"{side} is {matrix.dtype} of shape {matrix.shape}; a product takes two float32 matrices")
    if left.shape[1] != right.shape[0]:
        raise Misuse(f"{left.shape} times {right.shape}: the inner sizes differ")
