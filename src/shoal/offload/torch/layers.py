"""``nn.Linear`` and ``nn.Conv2d`` whose products go over a desk. Same parameters, same names; knows no pool, no cost.

A layer becomes one of these in place (its class is changed): every reference to it stays, hooks and ties included, and
``state_dict``, ``parameters``, ``train`` and ``eval`` are those of torch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, unfold

from shoal.offload.torch.affine import affine
from shoal.offload.torch.desk import PASSES, Desk, shape_of


class Linear(nn.Linear):
    _desk: Desk
    _name: str

    def forward(self, input: Tensor) -> Tensor:
        if stays(self, input):
            return super().forward(input)
        rows = input.reshape(-1, self.in_features)
        y = affine(rows, self.weight, self.bias, self._desk, self._name)
        return y.reshape(*input.shape[:-1], self.out_features)


class Conv2d(nn.Conv2d):
    """As im2col: each place of the kernel is a row. The rows take the kernel's size times the image in memory."""

    _desk: Desk
    _name: str

    def forward(self, input: Tensor) -> Tensor:
        if stays(self, input):
            return super().forward(input)
        images = input if input.dim() == 4 else input.unsqueeze(0)
        padded = padded_images(self, images)
        count, high, wide = len(images), *(places(self, padded, side) for side in (0, 1))
        if not self._sends(count * high * wide, wants_input=input.requires_grad):
            return super().forward(input)
        kernel, stride, dilation = _pair(self.kernel_size), _pair(self.stride), _pair(self.dilation)
        # (images, values under the kernel, places): a row for each place.
        columns = unfold(padded, kernel, dilation=dilation, stride=stride)
        rows = columns.transpose(1, 2).reshape(count * high * wide, -1)
        weight = self.weight.reshape(self.out_channels, -1)
        y = affine(rows, weight, self.bias, self._desk, self._name)
        made = y.reshape(count, high * wide, self.out_channels).transpose(1, 2)
        made = made.reshape(count, self.out_channels, high, wide)
        return made if input.dim() == 4 else made.squeeze(0)

    def _sends(self, rows: int, *, wants_input: bool) -> bool:
        """If no pass goes away, torch's own convolution is faster than rows."""
        wanted = {"forward": True, "input gradient": wants_input, "weight gradient": self.weight.requires_grad}
        steps = [step for step in PASSES if wanted[step]] if torch.is_grad_enabled() else ["forward"]
        inputs, outputs = self.weight[0].numel(), self.out_channels
        decisions = [
            self._desk.decide(self._name, step, shape_of(step, rows=rows, inputs=inputs, outputs=outputs))
            for step in PASSES
            if step in steps
        ]
        return any(decision.verdict.sends for decision in decisions)


def stays(layer: Linear | Conv2d, input: Tensor) -> bool:
    """Whether this call cannot be sent."""
    why = why_at_home(input, layer.weight)
    if why is not None:
        layer._desk.say_once(f"{layer._name}: at home: {why}")
    return why is not None or not input.numel()


def why_at_home(input: Tensor, weight: Tensor) -> str | None:
    """Why this call cannot be sent; None if it can."""
    if input.dtype != torch.float32 or weight.dtype != torch.float32:
        return f"its values are {input.dtype} and {weight.dtype}, and only float32 is sent"
    if input.device.type != "cpu" or weight.device.type != "cpu":
        return f"it runs on {weight.device}: what is there already should stay there"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on, and only float32 is sent"
    return None


def why_not(module: nn.Module) -> str | None:
    """Why a layer with weights cannot become one of these; None if it can, or if it has no weights to multiply by."""
    if type(module) is nn.Linear:
        return None
    if type(module) is nn.Conv2d:
        return f"it has {module.groups} groups: as many small products" if module.groups > 1 else None
    if isinstance(module, nn.Linear | nn.Conv2d):
        return f"{type(module).__name__} is a {type(module).__mro__[1].__name__} that may do something else"
    return None


def padded_images(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """The images with the layer's padding: numbers, "same" or "valid"; zeros or another mode."""
    around = layer._reversed_padding_repeated_twice
    if not any(around):
        return images
    if layer.padding_mode == "zeros":
        return pad(images, around)
    return pad(images, around, mode=layer.padding_mode)


def places(layer: nn.Conv2d, padded: Tensor, side: int) -> int:
    """The number of places of the kernel, from top to bottom (side 0) or from left to right (1)."""
    covered = layer.dilation[side] * (layer.kernel_size[side] - 1) + 1
    return (padded.shape[2 + side] - covered) // layer.stride[side] + 1


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    return values[0], values[1]
