"""Functions of ``torch.nn.functional`` that a graph has in other operations, while a task is traced. Imports torch.

The values are those of the originals, which the verification in float64 runs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from shoal.trainer.portable import recurrence
from shoal.trainer.portable.refusal import Unportable

#: Less than any sum of logarithms of probabilities, and far from where float32 ends.
_NEVER = -1e30


@contextlib.contextmanager
def rewritten() -> Iterator[None]:
    """Replace the functions that have no form in ONNX as they are."""
    with (
        mock.patch.object(functional, "embedding_bag", embedding_bag),
        mock.patch.object(functional, "ctc_loss", ctc_loss),
        mock.patch.object(torch, "_weight_norm", weight_norm),
        mock.patch.object(torch._VF, "lstm", recurrence.lstm),
        mock.patch.object(torch._VF, "gru", recurrence.gru),
    ):
        yield


def embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Bags of equal length: the sum, mean or maximum of the rows of each."""
    if input.dim() != 2 or offsets is not None:
        raise Unportable("embedding_bag with offsets: give it bags of equal length, as a tensor of two dimensions")
    if max_norm is not None or scale_grad_by_freq:
        raise Unportable("embedding_bag with max_norm or scale_grad_by_freq; leave them out")
    padding = -1 if padding_idx is None else padding_idx % weight.shape[0]
    rows = functional.embedding(input, weight, padding_idx)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding < 0:
        return rows.amax(1) if mode == "max" else rows.sum(1) if mode == "sum" else rows.mean(1)
    is_word = (input != padding).unsqueeze(-1)
    if mode == "max":
        # A bag without words is zero.
        largest = torch.where(is_word, rows, torch.full_like(rows, _NEVER)).amax(1)
        return torch.where(is_word.any(1), largest, torch.zeros_like(largest))
    total = torch.where(is_word, rows, torch.zeros_like(rows)).sum(1)
    return total if mode == "sum" else total / is_word.sum(1).clamp(min=1).to(total.dtype)


def weight_norm(direction: Tensor, size: Tensor, dim: int = 0) -> Tensor:
    """A weight as a size and a direction (Salimans and Kingma, 2016)."""
    others = [each for each in range(direction.dim()) if dim < 0 or each != dim % direction.dim()]
    return direction * (size / direction.square().sum(others, keepdim=dim >= 0).sqrt())


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Connectionist temporal classification (Graves et al., 2006, equations 6 to 8), step by step, for padded targets.

    Labels get blanks between them. A place is reached from itself, from the one before, and from the one before that
    where neither is a blank nor the same label twice.
    """
    if log_probs.dim() != 3 or targets.dim() != 2:
        raise Unportable("ctc_loss: give it a batch, and padded targets, as a tensor of examples x labels")
    steps, examples, _ = log_probs.shape
    inputs, labels = _lengths(input_lengths, log_probs), _lengths(target_lengths, log_probs)
    blanks = torch.full_like(targets, blank)
    # The padding of the targets need not be a valid label.
    targets = torch.where(torch.arange(targets.shape[1]) < labels.unsqueeze(1), targets, blanks)
    # blank, label, blank, label, ..., blank
    wide = torch.cat([torch.stack([blanks, targets], 2).reshape(examples, -1), blanks[:, :1]], 1)
    places = wide.shape[1]
    ahead = torch.cat([torch.full_like(wide[:, :2], blank), wide[:, :-2]], 1)
    is_skipped = (wide != blank) & (wide != ahead)
    emitted = log_probs.gather(2, wide.unsqueeze(0).expand(steps, examples, places))
    never = torch.full_like(emitted[0], _NEVER)
    reached = torch.cat([emitted[0][:, :2], never[:, 2:]], 1)
    for step in range(1, steps):
        one = torch.cat([never[:, :1], reached[:, :-1]], 1)
        two = torch.where(is_skipped, torch.cat([never[:, :2], reached[:, :-2]], 1), never)
        after = _log_sum(reached, one, two) + emitted[step]
        reached = torch.where((step < inputs).unsqueeze(1), after, reached)
    last = (2 * labels).unsqueeze(1)
    ends = [reached.gather(1, last), reached.gather(1, (last - 1).clamp(min=0))]
    # Without labels there is one end only.
    ends[1] = torch.where(last > 0, ends[1], torch.full_like(ends[1], _NEVER))
    losses = -_log_sum(*ends).squeeze(1)
    is_impossible = losses > -_NEVER / 10
    if zero_infinity:
        losses = torch.where(is_impossible, torch.zeros_like(losses), losses)
    else:
        # As PyTorch has it: more labels than steps make the loss infinite and the gradient no number. A lease that met
        # them is not sent.
        losses = losses * torch.where(is_impossible, torch.full_like(losses, math.inf), torch.ones_like(losses))
    if reduction == "mean":
        return (losses / labels.clamp(min=1).to(losses.dtype)).mean()
    return losses.sum() if reduction == "sum" else losses


def _lengths(given: Any, like: Tensor) -> Tensor:
    return given if isinstance(given, Tensor) else torch.tensor(given, device=like.device)


def _log_sum(*parts: Tensor) -> Tensor:
    """Return the logarithm of the sum of what these are the logarithms of."""
    most = parts[0]
    for part in parts[1:]:
        most = torch.maximum(most, part)
    most = most.detach()
    total = (parts[0] - most).exp()
    for part in parts[1:]:
        total = total + (part - most).exp()
    return most + total.log()
