"""Which products of a model would be worth sending: each product of one step, weighed. Sends and measures nothing.

The model is run once on a batch, with hooks that look at its layers.
"""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoal.errors import Misuse
from shoal.offload.cost import Home, Privacy, Shape, Verdict, Verify, home_seconds, worth
from shoal.offload.products import Advert
from shoal.offload.torch.desk import PASSES, SECRET, Decision, Pass, shape_of
from shoal.offload.torch.layers import why_not
from shoal.task import Task
from shoal.trainer.arrays import first_rows
from shoal.trainer.columns import as_pair
from shoal.trainer.find import find_task, tasks_in
from shoal.trainer.guard import importing
from shoal.trainer.importer import make_task


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """One step of training, product by product."""

    decisions: tuple[Decision, ...]

    @property
    def home_s(self) -> float:
        """The duration of all products here."""
        return sum(decision.verdict.home_s for decision in self.decisions)

    @property
    def best_s(self) -> float:
        """The duration with each product where it is faster."""
        return sum(
            decision.verdict.away_s if decision.verdict.sends and decision.verdict.away_s else decision.verdict.home_s
            for decision in self.decisions
        )

    @property
    def speedup(self) -> float:
        return self.home_s / self.best_s if self.best_s else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExplainRequest:
    """A product that a layer asks for."""

    layer: str
    step: Pass
    shape: Shape
    #: Why it cannot be sent, or None if it can.
    why_home: str | None


def read(path: Path, *, rows: int, example: Sequence[int] | None) -> tuple[nn.Module, Any]:
    """The model of a file, and a batch for it: of its examples, or of zeros if the shape of an example is given.

    A file defines a task (``shoal.Task``), or a function ``model()``; then ``example`` must give an example's shape.
    """
    if path.is_file() and not tasks_in(path):
        with importing():
            made = runpy.run_path(str(path)).get("model")
        if not callable(made):
            raise Misuse(f"{path} defines neither a task nor a function model(): write one that gives a torch module")
        if example is None:
            raise Misuse(f"{path} defines a model and no examples: say what one looks like, such as --input 1x28x28")
        return _module(made(), path), torch.zeros(rows, *example)
    found, entry = find_task(str(path))
    task = make_task(found if found.is_dir() else found.parent, entry, {})
    if example is not None:
        return _module(task.model(), path), torch.zeros(rows, *example)
    return _module(task.model(), path), _batch(task, rows)


def _module(model: object, path: Path) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise Misuse(f"the model of {path} is {type(model).__name__}, not a torch module")
    return model


def _batch(task: Task, rows_wanted: int) -> Any:
    rows = first_rows(task.examples("train"), rows_wanted)
    if not rows or not len(next(iter(rows.values()))):
        raise Misuse(f"{type(task).__name__}.examples('train') holds none: give --input, such as 1x28x28")
    x, y = as_pair(rows)
    # The same ones again, if there are too few: only the shape counts.
    chosen = torch.arange(rows_wanted).remainder(len(x)).numpy()
    return task.batch(torch.from_numpy(x[chosen]), torch.from_numpy(y[chosen]))[0]


def asked_by(model: nn.Module, inputs: Any) -> list[ExplainRequest]:
    """The products of one step, in the order of the forward pass."""
    found: list[ExplainRequest] = []
    names = {module: name or "the model" for name, module in model.named_modules()}

    def note(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if not isinstance(module, nn.Linear | nn.Conv2d):
            return
        is_linear = isinstance(module, nn.Linear)
        outputs, columns = module.weight.shape[0], module.weight[0].numel()
        rows = output.numel() // (output.shape[-1] if is_linear else outputs)
        wanted = {"forward": True, "input gradient": args[0].requires_grad, "weight gradient": True}
        for step in PASSES:
            if wanted[step] and rows:
                shape = shape_of(step, rows=rows, inputs=columns, outputs=outputs)
                found.append(ExplainRequest(layer=names[module], step=step, shape=shape, why_home=why_not(module)))

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        model.train()
        model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    if not found:
        raise Misuse("this model has no Linear or Conv2d layer whose products could be sent")
    return found


def weighed(
    asked: Sequence[ExplainRequest], *, home: Home, pool: Advert, privacy: Privacy, verify: Verify
) -> Explained:
    decisions = []
    for each in asked:
        if each.why_home is not None:
            verdict = Verdict(sends=False, reason=each.why_home, home_s=home_seconds(each.shape, home))
        else:
            verdict = worth(each.shape, SECRET[each.step], home=home, pool=pool, privacy=privacy, verify=verify)
        decisions.append(Decision(layer=each.layer, step=each.step, shape=each.shape, verdict=verdict))
    return Explained(decisions=tuple(decisions))
