"""Trains the leases of several devices at once: one stack of models, one product per layer. Imports torch.

Only the simulator does this, for plain models of linear layers, where most of a lease's time is the start of each
operation. It keeps to what gives the same bits as training one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shoal.learning.layout import Layout
from shoal.task import Task
from shoal.trainer.protocol import TrainerSettings

#: Modules whose result for an example does not depend on chance or on other examples.
_PLAIN = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Identity)

#: Values of all models of a stack, at most: 4 MB, which stay in a processor's cache from one batch to the next.
STACK_VALUES = 1 << 20


class _Linear(torch.autograd.Function):
    """One linear layer of each model of a stack. Its products have the operands in the order of a single layer's: by
    PyTorch's own rule for stacks, gradients have other bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        turned = weight.transpose(1, 2)
        return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, turned)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, _, needs_bias = ctx.needs_input_grad
        (change,) = gradients
        return (
            torch.bmm(change, weight) if needs_x else None,
            torch.bmm(change.transpose(1, 2), x),
            change.sum(1) if needs_bias else None,
        )


class ModelStack:
    """A model whose layers are known one by one, and the loss of a task that leaves the training to Shoal."""

    def __init__(self, layers: Sequence[tuple[str, nn.Module]], loss: type[Task] | None) -> None:
        self._layers = layers
        #: The task if its loss is the default one, or None for ``nn.functional.cross_entropy``.
        self._default = loss

    @classmethod
    def of(cls, task: Task, model: nn.Module, settings: TrainerSettings) -> ModelStack | None:
        """Return the stack for a task, or None if only single models can be trained."""
        layers = _layers(model, "")
        kind = type(task)
        is_cross_entropy = kind.loss is nn.functional.cross_entropy
        is_plain_task = not any(task._overrides(hook) for hook in ("train", "step", "optimizer"))
        is_plain_plan = (
            settings.inner == "sgd"
            and settings.inner_state == "fresh"
            and not settings.weight_decay
            and not settings.clip_gradient
            and settings.accumulate == 1
            and settings.precision == "float32"
            and not settings.compile
            and not settings.share_labels
        )
        if layers is None or not (kind.loss is Task.loss or is_cross_entropy) or not (is_plain_task and is_plain_plan):
            return None
        return cls(layers, None if is_cross_entropy else Task)

    def train(
        self, start: Mapping[str, Tensor], leases: Sequence[Sequence[tuple[Tensor, Tensor]]], *, rate: float
    ) -> tuple[dict[str, Tensor], list[list[float]]]:
        """Train one model per lease from the same start. All leases have batches of the same sizes. Return the tensors
        after it, stacked, and the loss of each batch of each lease."""
        count = len(leases)
        weights = {name: tensor.detach().expand(count, *tensor.shape).clone() for name, tensor in start.items()}
        losses: list[list[float]] = [[] for _ in leases]
        for batches in zip(*leases, strict=True):
            x, y = torch.stack([x for x, _ in batches]), torch.stack([y for _, y in batches])
            if y.dim() != 2 or y.is_floating_point() or int(y.min()) < 0:
                # Other targets than one class per example: losses leave some out, or have another mean.
                raise ValueError("these targets cannot be stacked")
            for tensor in weights.values():
                tensor.requires_grad_(True)
            mean = self._loss(self._output(weights, x), y)
            changes = torch.autograd.grad(mean.sum(), list(weights.values()))
            with torch.no_grad():
                for tensor, change in zip(weights.values(), changes, strict=True):
                    tensor.requires_grad_(False)
                    tensor.add_(change, alpha=-rate)
            for told, value in zip(losses, mean.tolist(), strict=True):
                told.append(value)
        return weights, losses

    def _output(self, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
        for name, layer in self._layers:
            if isinstance(layer, nn.Linear):
                x = _Linear.apply(x, weights[f"{name}weight"], weights.get(f"{name}bias"))  # type: ignore[no-untyped-call]
            elif isinstance(layer, nn.Flatten):
                x = x.flatten(2)
            else:
                x = layer(x)
        return x

    def _loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of each model's batch."""
        if self._default is None:
            each = nn.functional.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none")
            return each.view(len(output), -1).mean(1)
        return -output.log_softmax(2).gather(2, y.long().unsqueeze(2)).squeeze(2).mean(1)


def _layers(module: nn.Module, name: str) -> list[tuple[str, nn.Module]] | None:
    """Return the layers of a model in their order, each with its prefix in the names of tensors, or None if the model
    is anything else than linear layers one after the other."""
    if type(module) is nn.Sequential:
        found: list[tuple[str, nn.Module]] = []
        for part, child in module.named_children():
            inner = _layers(child, f"{name}{part}.")
            if inner is None:
                return None
            found += inner
        return found
    is_flat = type(module) is nn.Flatten and module.start_dim == 1 and module.end_dim == -1
    is_gelu = isinstance(module, nn.GELU) and module.approximate != "none"
    if is_flat or type(module) is nn.Linear or (type(module) in _PLAIN and not is_gelu):
        return [(name, module)]
    return None


def sizes_fit(layout: Layout, count: int) -> int:
    """Return how many models fit into a stack, of ``count`` that would."""
    return max(1, min(count, STACK_VALUES // max(1, layout.size)))
