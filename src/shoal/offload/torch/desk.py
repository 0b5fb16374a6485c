"""The desk of a model: decides for each product of its layers whether it is sent or computed here. No torch.

The desk decides for each layer, pass and number of rows, and logs the decision ("shoal"). It decides again from time to
time: a pool grows and shrinks, and products take longer or shorter than expected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NoReturn

from shoal.errors import Misuse
from shoal.offload.cost import Shape, Verdict
from shoal.offload.products import Array, Products, Secret

log = logging.getLogger("shoal")

Pass = Literal["forward", "input gradient", "weight gradient"]
PASSES: tuple[Pass, ...] = ("forward", "input gradient", "weight gradient")

#: Activations and their gradients are secret, weights are not. A weight gradient is a product of two secrets.
SECRET: dict[Pass, Secret] = {"forward": "left", "input gradient": "left", "weight gradient": "both"}

#: ``pace``: how many times as long as expected products took, there and back.
Weigh = Callable[[Shape, Secret, float], Verdict]

#: A decision holds for at most this many products. The first ones hold for fewer, because they teach most.
HOLDS = 20
#: How much of the newest product goes into the pace.
NEWEST = 0.25
#: How much of the pace is forgotten when a product stays: a pool that was slow once is tried again some day.
FORGOTTEN = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The decision for one pass of one layer, at one number of rows."""

    layer: str
    step: Pass
    shape: Shape
    verdict: Verdict

    def __str__(self) -> str:
        where = "sent" if self.verdict.sends else "at home"
        return f"{self.layer}, {self.step}, {self.shape}: {where}: {self.verdict.reason}"


def shape_of(step: Pass, *, rows: int, inputs: int, outputs: int) -> Shape:
    """Return the shape of the product of one pass of an affine layer, for ``rows`` examples."""
    match step:
        case "forward":
            return Shape(rows=rows, inner=inputs, columns=outputs)
        case "input gradient":
            return Shape(rows=rows, inner=outputs, columns=inputs)
        case "weight gradient":
            return Shape(rows=outputs, inner=rows, columns=inputs)


class Desk:
    """One for a model. Copies of the model share it; it cannot be written to a file."""

    def __init__(
        self,
        products: Products,
        weigh: Weigh,
        *,
        clock: Callable[[], float] = time.monotonic,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.products = products
        self.at_end = at_end
        self._weigh = weigh
        self._clock = clock
        self._pace = 1.0
        self._decisions: dict[tuple[str, Pass, Shape], Decision] = {}
        #: How often each was asked for, and from when on it is weighed again.
        self._used: dict[tuple[str, Pass, Shape], int] = {}
        self._due: dict[tuple[str, Pass, Shape], int] = {}
        self._said: set[str] = set()

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(self._decisions.values())

    @property
    def pace(self) -> float:
        return self._pace

    def decide(self, layer: str, step: Pass, shape: Shape) -> Decision:
        key = (layer, step, shape)
        known, used = self._decisions.get(key), self._used.get(key, 0)
        self._used[key] = used + 1
        if known is not None and used < self._due[key]:
            return known
        self._due[key] = used + min(max(used, 1), HOLDS)
        verdict = self._weigh(shape, SECRET[step], self._pace)
        made = Decision(layer=layer, step=step, shape=shape, verdict=verdict)
        self._decisions[key] = made
        if not verdict.sends:
            self._pace += FORGOTTEN * (1 - self._pace)
        if known is None or known.verdict.sends != verdict.sends:
            log.info("offload: %s", made)
        return made

    def multiply(self, decision: Decision, left: Array, right: Array) -> Array:
        """Send a product, and compare its duration with the expected one."""
        name = f"{decision.layer}.{decision.step}"
        began_s = self._clock()
        result = self.products.multiply(left, right, secret=SECRET[decision.step], name=name)
        expected_s = decision.verdict.away_s
        if expected_s:
            # The expected duration had the pace in it already.
            took = decision.verdict.pace * (self._clock() - began_s) / expected_s
            self._pace += NEWEST * (took - self._pace)
        return result

    def say_once(self, text: str) -> None:
        """Log once why a layer cannot be sent."""
        if text not in self._said:
            self._said.add(text)
            log.info("offload: %s", text)

    def __deepcopy__(self, memo: object) -> Desk:
        # A line to a pool cannot be doubled; a copy of the model has its own weights and brings them to the same desk.
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise Misuse(
            "an offloaded model holds a line to its pool and cannot be written whole: save model.state_dict(), "
            "which is as before, or bring the model home first (shoal.offload.torch.wrap.bring_home)"
        )
