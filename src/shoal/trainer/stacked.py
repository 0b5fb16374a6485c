"""Trains the leases of several devices at once: one stack of models, one product per layer. Imports torch.

Only the simulator does this, for plain models of linear layers, where most of a lease's time is the start of each
operation. It keeps to what gives the same bits as training one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from shoal.learning.layout import Layout
from shoal.task import Task
from shoal.trainer.protocol import TrainerSettings

_Lease = TypeVar("_Lease")

aten = torch.ops.aten

#: Modules whose result for an example does not depend on chance or on other examples -> the gradient of their input,
#: from that of their output, their input and their output, by the function that autograd calls.
_GRADIENTS: Mapping[type[nn.Module], Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    nn.ReLU: lambda change, x, output: aten.threshold_backward.default(change, output, 0),
    nn.Tanh: lambda change, x, output: aten.tanh_backward.default(change, output),
    nn.Sigmoid: lambda change, x, output: aten.sigmoid_backward.default(change, output),
    nn.GELU: lambda change, x, output: aten.gelu_backward.default(change, x),
    nn.Identity: lambda change, x, output: change,
}

#: Values of all models of a stack and of one batch for each, at most: 4 MB, which stay in a processor's cache.
STACK_VALUES = 1 << 20


class ModelStack:
    """A model whose layers are known one by one, of a task that leaves the training to Shoal.

    The loss is the task's default one or PyTorch's cross entropy, which have the same values and gradients.
    """

    def __init__(self, layers: Sequence[tuple[str, nn.Module]]) -> None:
        self._layers = layers
        #: Use -> its memory. The system takes long to give fresh memory, and a batch needs megabytes.
        self._rooms: dict[str, Tensor] = {}
        #: The first layer that has weights. Gradients go no further back.
        linear = (number for number, (_, layer) in enumerate(layers) if isinstance(layer, nn.Linear))
        self._first = next(linear, len(layers))

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
        return cls(layers)

    def groups(self, leases: Sequence[_Lease], layout: Layout, rows: int) -> list[Sequence[_Lease]]:
        """Divide leases, with batches of this many rows, into stacks of about the same size that fit into a cache."""
        widths = sum(each.in_features + each.out_features for _, each in self._layers if isinstance(each, nn.Linear))
        most = max(1, STACK_VALUES // (layout.size + rows * widths))
        size = math.ceil(len(leases) / math.ceil(len(leases) / most))
        return [leases[start : start + size] for start in range(0, len(leases), size)]

    def train(
        self, start: Mapping[str, Tensor], leases: Sequence[Iterable[tuple[Tensor, Tensor]]], *, rate: float
    ) -> tuple[dict[str, Tensor], list[list[float]]]:
        """Train one model per lease from the same start. All leases have batches of the same sizes. Return the tensors
        after it, stacked, and the loss of each batch of each lease. The tensors change with the next call."""
        weights = self._weights(start, len(leases))
        losses: list[list[float]] = [[] for _ in leases]
        # Batch by batch: all batches of a stack do not fit into a cache.
        for batches in zip(*leases, strict=True):
            for told, value in zip(losses, self._step(weights, batches, rate).tolist(), strict=True):
                told.append(value)
        return weights, losses

    @torch.inference_mode()
    def _weights(self, start: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
        """Return the tensors that models start from, this many times."""
        return {name: self._room(name, (count, *tensor.shape), tensor).copy_(tensor) for name, tensor in start.items()}

    def _room(self, use: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return memory of this shape, the same as before if that is large enough. ``like`` has the type of its values,
        and is where they are."""
        room = self._rooms.get(use)
        if room is None or len(room) < shape[0] or room.shape[1:] != shape[1:] or room.dtype != like.dtype:
            room = self._rooms[use] = like.new_empty(shape)
        return room[: shape[0]]

    def _stacked(self, batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        first, y = batches[0][0], torch.stack([y for _, y in batches])
        if y.dim() != 2 or y.is_floating_point() or int(y.min()) < 0:
            # Other targets than one class per example: losses leave some out, or have another mean.
            raise ValueError("these targets cannot be stacked")
        room = self._room("inputs", (len(batches), *first.shape), first)
        return torch.stack([x for x, _ in batches], out=room), y

    @torch.inference_mode()
    def _step(self, weights: Mapping[str, Tensor], batches: Sequence[tuple[Tensor, Tensor]], rate: float) -> Tensor:
        """Take a step with each model, and return the loss that it had.

        The gradients are written out: autograd would keep those of all layers in fresh memory until the end. Products
        have the operands in the order of a single layer's. By PyTorch's own rule for stacks, gradients have other bits.
        """
        x, y = self._stacked(batches)
        passed: list[tuple[Tensor, Tensor]] = []
        for name, layer in self._layers:
            output = _output(layer, x, weights, name)
            passed.append((x, output))
            x = output
        logs, classes = x.log_softmax(2), y.long().unsqueeze(2)
        change = torch.zeros_like(logs).scatter_(2, classes, -1.0 / y.shape[1])
        change = aten._log_softmax_backward_data.default(change, logs, 2, logs.dtype)
        for number in range(len(passed) - 1, self._first - 1, -1):
            (name, layer), (x, output) = self._layers[number], passed[number]
            if isinstance(layer, nn.Linear):
                weight, bias, below = weights[f"{name}weight"], weights.get(f"{name}bias"), change
                if number > self._first:
                    below = torch.bmm(change, weight)
                gradient = self._room(f"{name}gradient", weight.shape, weight)
                weight.add_(torch.bmm(change.transpose(1, 2), x, out=gradient), alpha=-rate)
                if bias is not None:
                    bias.add_(change.sum(1), alpha=-rate)
                change = below
            elif isinstance(layer, nn.Flatten):
                change = change.reshape(x.shape)
            else:
                change = _GRADIENTS[type(layer)](change, x, output)
        return -logs.gather(2, classes).squeeze(2).mean(1)


def _output(layer: nn.Module, x: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    if isinstance(layer, nn.Linear):
        turned, bias = weights[f"{name}weight"].transpose(1, 2), weights.get(f"{name}bias")
        return torch.bmm(x, turned) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, turned)
    output: Tensor = x.flatten(2) if isinstance(layer, nn.Flatten) else layer(x)
    return output


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
    if is_flat or type(module) is nn.Linear or (type(module) in _GRADIENTS and not is_gelu):
        return [(name, module)]
    return None
