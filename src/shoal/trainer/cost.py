"""What one example costs a model: the multiply-adds of its forward pass. Imports torch.

Only layers that multiply by weights count, since they do most of the work. Activations, norms, pooling, embeddings and
bare functions (``matmul``, ``torch.nn.functional``) count as free.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from shoal.task import Task
from shoal.trainer.arrays import rows_to_torch
from shoal.trainer.placement import Placed
from shoal.trainer.trial import lease_of

_GIGA = 1e9


def gmacs_per_example(task: Task, model: nn.Module, placed: Placed, rows: Any, *, examples: int) -> float:
    """Return the multiply-adds of one example's forward pass, in billions: the mean over a few stored examples.

    Leaves the model in evaluation mode.
    """
    total = 0

    def count(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        nonlocal total
        total += _macs(module, args, kwargs, output)

    hooks = [module.register_forward_hook(count, with_kwargs=True) for module in model.modules()]
    try:
        with torch.no_grad(), _layer_by_layer():
            model.eval()
            batch = task.collate(rows_to_torch(rows), training=False)
            if task._overrides("step"):
                task.step(model, batch, lease_of(task, placed))
            else:
                model(batch[0])
    finally:
        for hook in hooks:
            hook.remove()
    return total / examples / _GIGA


@contextlib.contextmanager
def _layer_by_layer() -> Iterator[None]:
    """Disable torch's fast path in evaluation: it runs a transformer layer as one call, which skips all hooks."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _macs(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> int:
    """Return the multiply-adds of one call of a layer, for all examples in it."""
    given = [*args, *kwargs.values()]
    match module:
        case nn.Linear():
            return int(output.numel()) * module.in_features
        case nn.Bilinear():
            return int(output.numel()) * module.in1_features * module.in2_features
        case nn.Conv1d() | nn.Conv2d() | nn.Conv3d():
            # Each output value is a dot product with one filter.
            return int(output.numel()) * module.weight[0].numel()
        case nn.ConvTranspose1d() | nn.ConvTranspose2d() | nn.ConvTranspose3d():
            # Each input value is spread through one filter.
            return int(given[0].numel()) * module.weight[0].numel()
        case nn.RNNBase() | nn.RNNCell() | nn.LSTMCell() | nn.GRUCell():
            return _positions(given[0]) * _matrix_values(module)
        case nn.MultiheadAttention():
            return _attention_macs(module, args, kwargs)
    return 0


def _positions(x: Tensor | PackedSequence) -> int:
    """Return how many vectors a sequence holds, over all examples."""
    data = x.data if isinstance(x, PackedSequence) else x
    return data.numel() // data.shape[-1]


def _matrix_values(module: nn.Module) -> int:
    """Return the multiply-adds of a recurrent layer per vector: it multiplies each vector by each matrix once."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() == 2)


def _attention_macs(module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return those of four projections, of the scores (queries by keys) and of the sums they weight (by values)."""
    given = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
    query: Tensor = given["query"]
    key: Tensor = given["key"]
    value: Tensor = given["value"]
    width: int = module.embed_dim
    queries, keys, values = _positions(query), _positions(key), _positions(value)
    examples = key.shape[0 if module.batch_first else 1] if key.dim() == 3 else 1
    projections = width * (queries * width + keys * key.shape[-1] + values * value.shape[-1] + queries * width)
    return projections + 2 * queries * (keys // examples) * width
