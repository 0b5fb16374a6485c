"""LSTM and GRU as one operation over all steps, forward and backward, which a graph has as a loop. Imports torch.

A recurrence that is traced as it is becomes a dozen nodes for each step. Only what depends on the step before is in
these loops: products with the inputs, and the gradients of the weights, are products over all steps at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from shoal.trainer.portable.refusal import Unportable


def _ordered(steps: int, reverse: bool) -> range:
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _before(values: Tensor, first: Tensor, reverse: bool) -> Tensor:
    """Return what each step found: the values of the step before it, ``first`` for the first."""
    lead = first.unsqueeze(0)
    return torch.cat([values[1:], lead]) if reverse else torch.cat([lead, values[:-1]])


def _weight_gradient(gates: Tensor, states: Tensor) -> Tensor:
    return gates.reshape(-1, gates.shape[-1]).t() @ states.reshape(-1, states.shape[-1])


# LSTM (Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000) ------------------------


@torch.library.custom_op("shoal::lstm", mutates_args=())
def lstm_steps(inputs: Tensor, h: Tensor, c: Tensor, weight: Tensor, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return h, c and the gates i, f, g, o of all steps. ``inputs`` are the parts of the gates that come from x."""
    hs, cs, gates = [], [], []
    for step in _ordered(len(inputs), reverse):
        i, f, g, o = (inputs[step] + h @ weight.t()).chunk(4, -1)
        i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
        c = f * c + i * g
        h = o * torch.tanh(c)
        hs.append(h)
        cs.append(c)
        gates.append(torch.cat([i, f, g, o], -1))
    found = [torch.stack(each[::-1] if reverse else each) for each in (hs, cs, gates)]
    return found[0], found[1], found[2]


@lstm_steps.register_fake
def _(inputs: Tensor, h: Tensor, c: Tensor, weight: Tensor, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    shape = (*inputs.shape[:-1], h.shape[-1])
    return inputs.new_empty(shape), inputs.new_empty(shape), inputs.new_empty(inputs.shape)


@torch.library.custom_op("shoal::lstm_backward", mutates_args=())
def lstm_steps_backward(
    grad_h: Tensor, grad_c: Tensor, slopes: Tensor, through: Tensor, forget: Tensor, weight: Tensor, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the gates' inputs of all steps, of the first h and of the first c.

    ``slopes`` are the gates' derivatives by c (three of them) and by h, ``through`` that of h by c.
    """
    h = torch.zeros_like(grad_h[0])
    c = torch.zeros_like(h)
    made = []
    for step in _ordered(len(grad_h), not reverse):
        h = grad_h[step] + h
        c = grad_c[step] + c + h * through[step]
        gates = torch.cat([c, c, c, h], -1) * slopes[step]
        made.append(gates)
        c = c * forget[step]
        h = gates @ weight
    return torch.stack(made if reverse else made[::-1]), h, c


@lstm_steps_backward.register_fake
def _(
    grad_h: Tensor, grad_c: Tensor, slopes: Tensor, through: Tensor, forget: Tensor, weight: Tensor, reverse: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return slopes.new_empty(slopes.shape), grad_h.new_empty(grad_h.shape[1:]), grad_h.new_empty(grad_h.shape[1:])


def _keep_lstm(ctx: Any, inputs: Any, output: Any) -> None:
    _, h, c, weight, ctx.reverse = inputs
    ctx.save_for_backward(h, c, weight, *output)


def _lstm_gradients(ctx: Any, grad_h: Tensor, grad_c: Tensor, _: Any) -> tuple[Any, ...]:
    first_h, first_c, weight, hs, cs, gates = ctx.saved_tensors
    i, f, g, o = gates.chunk(4, -1)
    bent = torch.tanh(cs)
    slopes = torch.cat(
        [g * i * (1 - i), _before(cs, first_c, ctx.reverse) * f * (1 - f), i * (1 - g * g), bent * o * (1 - o)], -1
    )
    through = o * (1 - bent * bent)
    made, h, c = lstm_steps_backward(grad_h, grad_c, slopes, through, f.contiguous(), weight, ctx.reverse)
    return made, h, c, _weight_gradient(made, _before(hs, first_h, ctx.reverse)), None


lstm_steps.register_autograd(_lstm_gradients, setup_context=_keep_lstm)

# GRU (Cho et al., 2014, as torch has it) ----------------------------------------------------------------------


@torch.library.custom_op("shoal::gru", mutates_args=())
def gru_steps(inputs: Tensor, h: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    """Return h of all steps, and r, z, n and the part of n that comes from h."""
    hs, gates = [], []
    for step in _ordered(len(inputs), reverse):
        x_r, x_z, x_n = inputs[step].chunk(3, -1)
        h_r, h_z, h_n = (h @ weight.t() + bias).chunk(3, -1)
        r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        h = n + z * (h - n)
        hs.append(h)
        gates.append(torch.cat([r, z, n, h_n], -1))
    found = [torch.stack(each[::-1] if reverse else each) for each in (hs, gates)]
    return found[0], found[1]


@gru_steps.register_fake
def _(inputs: Tensor, h: Tensor, weight: Tensor, bias: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    shape = inputs.shape[:-1]
    return inputs.new_empty((*shape, h.shape[-1])), inputs.new_empty((*shape, 4 * h.shape[-1]))


@torch.library.custom_op("shoal::gru_backward", mutates_args=())
def gru_steps_backward(
    grad_h: Tensor, slopes: Tensor, kept: Tensor, weight: Tensor, reverse: bool
) -> tuple[Tensor, Tensor]:
    """Return the whole gradient of h after each step, and that of the first h. ``slopes`` are the derivatives of what
    comes from h, ``kept`` is the gate z."""
    h = torch.zeros_like(grad_h[0])
    made = []
    for step in _ordered(len(grad_h), not reverse):
        h = grad_h[step] + h
        made.append(h)
        h = h * kept[step] + (torch.cat([h, h, h], -1) * slopes[step]) @ weight
    return torch.stack(made if reverse else made[::-1]), h


@gru_steps_backward.register_fake
def _(grad_h: Tensor, slopes: Tensor, kept: Tensor, weight: Tensor, reverse: bool) -> tuple[Tensor, Tensor]:
    return grad_h.new_empty(grad_h.shape), grad_h.new_empty(grad_h.shape[1:])


def _keep_gru(ctx: Any, inputs: Any, output: Any) -> None:
    _, h, weight, _, ctx.reverse = inputs
    ctx.save_for_backward(h, weight, *output)


def _gru_gradients(ctx: Any, grad_h: Tensor, _: Any) -> tuple[Any, ...]:
    first, weight, hs, gates = ctx.saved_tensors
    r, z, n, h_n = gates.chunk(4, -1)
    before = _before(hs, first, ctx.reverse)
    of_n = (1 - z) * (1 - n * n)
    of_r, of_z = of_n * h_n * r * (1 - r), (before - n) * z * (1 - z)
    slopes = torch.cat([of_r, of_z, of_n * r], -1)
    whole, h = gru_steps_backward(grad_h, slopes, z.contiguous(), weight, ctx.reverse)
    from_h = torch.cat([whole, whole, whole], -1) * slopes
    from_x = torch.cat([whole * of_r, whole * of_z, whole * of_n], -1)
    return from_x, h, _weight_gradient(from_h, before), from_h.sum((0, 1)), None


gru_steps.register_autograd(_gru_gradients, setup_context=_keep_gru)

# Layers, as torch's functions have them -------------------------------------------------------------------------


def _lstm_layer(x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor], reverse: bool) -> list[Tensor]:
    inputs = functional.linear(x, weights[0], weights[2] + weights[3] if len(weights) > 2 else None)
    hs, cs, _ = lstm_steps(inputs, first[0], first[1], weights[1], reverse)
    return [hs, hs[0 if reverse else -1], cs[0 if reverse else -1]]


def _gru_layer(x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor], reverse: bool) -> list[Tensor]:
    inputs = functional.linear(x, weights[0], weights[2] if len(weights) > 2 else None)
    bias = weights[3] if len(weights) > 2 else torch.zeros_like(weights[1][:, 0])
    hs, _ = gru_steps(inputs, first[0], weights[1], bias, reverse)
    return [hs, hs[0 if reverse else -1]]


def _layers(
    layer: Callable[..., list[Tensor]],
    x: Tensor,
    first: Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    count: int,
    dropout: float,
    training: bool,
    both_ways: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Run layers of one or two directions. The last states of each kind are stacked, as torch has them."""
    per, ways = 4 if has_biases else 2, 2 if both_ways else 1
    x = x.transpose(0, 1) if batch_first else x
    last: list[list[Tensor]] = [[] for _ in first]
    for number in range(count):
        made = []
        for way in range(ways):
            at = number * ways + way
            own = weights[at * per : (at + 1) * per]
            hs, *ends = layer(x, [state[at] for state in first], own, bool(way))
            made.append(hs)
            for kind, end in zip(last, ends, strict=True):
                kind.append(end)
        x = torch.cat(made, -1) if both_ways else made[0]
        if dropout and training and number < count - 1:
            x = torch.dropout(x, dropout, True)
    return (x.transpose(0, 1) if batch_first else x, *(torch.stack(kind) for kind in last))


def lstm(x: Tensor, first: Any, weights: Any, *options: Any) -> tuple[Tensor, ...]:
    if isinstance(first, Tensor):
        raise Unportable("an LSTM of packed sequences: give it padded ones, and mask what comes after their ends")
    if len(first) == 2 and first[0].shape != first[1].shape:
        # With proj_size, which is rare, the steps are unrolled.
        made: tuple[Tensor, ...] = torch._C._VariableFunctions.lstm(x, first, weights, *options)
        return made
    return _layers(_lstm_layer, x, first, weights, *options)


def gru(x: Tensor, first: Any, weights: Any, *options: Any) -> tuple[Tensor, ...]:
    if not isinstance(weights, list | tuple):
        raise Unportable("a GRU of packed sequences: give it padded ones, and mask what comes after their ends")
    return _layers(_gru_layer, x, [first], weights, *options)
