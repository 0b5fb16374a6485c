"""A script that was started by hand: its leases are passes over its own data, and what they come to is printed."""

from __future__ import annotations

from typing import Any

import torch

from shoal.errors import Misuse
from shoal.loop import Evaluate, LoopLease

#: Passes over its loader that a script makes where it does not say how many.
PASSES = 3


class Alone:
    """Gives a script leases without a leader. The model stays in the script's hands."""

    def __init__(self, *, leases: int | None) -> None:
        if leases is not None and leases < 1:
            raise Misuse(f"shoal.worker(leases={leases}): a script trains at least one")
        self._leases = leases
        self._model: Any = None
        self._evaluate: Evaluate | None = None

    def attach(self, model: Any, optimizer: Any, evaluate: Evaluate | None) -> None:
        self._model, self._evaluate = model, evaluate

    def draw_apart(self) -> None:
        """Do nothing: there is no other device to differ from."""

    def exchange(self, done: LoopLease | None) -> LoopLease | None:
        number = 1
        if done is not None:
            number = done.number + 1
            print(f"lease {done.number}: {self._told(done)}", flush=True)
        if number > (self._leases or PASSES):
            return None
        return LoopLease(number=number, version=number - 1, whole_passes=self._leases is None)

    def _told(self, done: LoopLease) -> str:
        figures = {} if done.loss is None else {"loss": done.loss}
        if self._evaluate is not None:
            figures |= {f"held-out {name}": figure for name, figure in measured(self._model, self._evaluate).items()}
        words = [f"{name} {figure:.4g}" for name, figure in figures.items()]
        return ", ".join([*words, f"{done.steps} steps"])


def measured(model: Any, evaluate: Evaluate) -> dict[str, float]:
    """Return the metrics of an evaluation by name."""
    from shoal.learning.figures import value

    found = {metric.name: value(metric) for metric in judged(model, evaluate)}
    return {name: figure for name, figure in found.items() if figure is not None}


def judged(model: Any, evaluate: Evaluate) -> tuple[Any, ...]:
    """Run ``evaluate`` with the model in evaluation mode. Return its metrics as named sums, or () if it gave None."""
    from shoal.metrics import named

    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            found = evaluate()
    finally:
        model.train(was_training)
    return () if found is None else named(found, where="evaluate")
