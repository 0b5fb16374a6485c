"""The optimiser that steps through one lease: the plan's ``inner``, or the task's own. Imports torch.

``fresh``, the default, builds it again for each lease, so that the lease stays a pure function. ``kept`` keeps its
state on the device; it is never sent, and it dies with the device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shoal.errors import Misuse
from shoal.plan_rules.choices import FRESH_STEPS_LEAST
from shoal.task import Task
from shoal.trainer.protocol import TrainerSettings

#: Optimisers that need more than dense gradients: a closure, or sparse gradients.
_UNFIT = ("LBFGS", "SparseAdam")


class InnerOptimiser:
    def __init__(self, task: Task, model: nn.Module, trainable: Sequence[Tensor], settings: TrainerSettings) -> None:
        self._task = task
        self._model = model
        self._trainable = list(trainable)
        self._settings = settings
        #: Looked up once: a lease may take less time than the lookup.
        self._kind, self._options = _named(settings)
        self._kept: tuple[torch.optim.Optimizer, list[float]] | None = None
        self._check(self._built())

    def for_lease(self, rate: float) -> torch.optim.Optimizer:
        """Return the optimiser for a lease. ``rate`` is the plan's learning rate for this version."""
        if self._kept is not None and self._settings.inner_state == "kept":
            optimiser, rates = self._kept
        else:
            optimiser = self._built()
            rates = [float(group["lr"]) for group in optimiser.param_groups]
            self._kept = (optimiser, rates)
        factor = rate / self._settings.learning_rate
        for group, own_rate in zip(optimiser.param_groups, rates, strict=True):
            # Exactly the task's own rate where there is no schedule.
            group["lr"] = own_rate if factor == 1.0 else own_rate * factor
        return optimiser

    def _built(self) -> torch.optim.Optimizer:
        made = self._task.optimizer(self._model)
        if made is None:
            return self._kind(self._trainable, **self._options)
        if not isinstance(made, torch.optim.Optimizer):
            raise Misuse(
                f"{type(self._task).__name__}.optimizer gave {type(made).__name__}, not a torch optimizer; "
                "a task with several needs its own train()"
            )
        return made

    def _check(self, optimiser: torch.optim.Optimizer) -> None:
        """Refuse an adaptive optimiser that is built again before its averages mean anything."""
        settings = self._settings
        is_adaptive = any("beta2" in group or "betas" in group or "alpha" in group for group in optimiser.param_groups)
        steps = -(-settings.lease_batches * settings.passes // settings.accumulate)
        if is_adaptive and settings.inner_state == "fresh" and steps < FRESH_STEPS_LEAST:
            raise Misuse(
                f"{type(optimiser).__name__} begins again with every lease, and after {steps} of at least"
                f" {FRESH_STEPS_LEAST} steps its averages are mostly bias correction. Set lease_batches for"
                f" {FRESH_STEPS_LEAST} steps or more, or inner_state = 'kept', or let the leader do it: outer = 'adamw'"
            )


def _named(settings: TrainerSettings) -> tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]:
    """Return a ``torch.optim`` class by its name in small letters, and its options: the plan's rate and decay."""
    classes = {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and name not in (*_UNFIT, "Optimizer")
    }
    if settings.inner not in classes:
        raise Misuse(f"inner = {settings.inner!r}: torch.optim has {', '.join(sorted(classes))}")
    kind = classes[settings.inner]
    options: dict[str, Any] = {"lr": settings.learning_rate}
    if "weight_decay" in inspect.signature(kind).parameters:
        # Passed even if it is 0: AdamW's own default is not.
        options["weight_decay"] = settings.weight_decay
    return kind, options
