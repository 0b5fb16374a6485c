"""A task's training step and its evaluation as graphs of few aten operations. Imports torch, not onnx.

``make_fx`` runs over the whole step: forward, loss, gradients, optimiser, buffers. It runs twice, because autograd
cannot be traced once in-place operations have become values.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.stateless import _reparametrize_module

from shoal.trainer.placement import Placed, to_training
from shoal.trainer.portable import interpolation
from shoal.trainer.portable.refusal import Unportable
from shoal.trainer.portable.rewrites import rewritten
from shoal.trainer.portable.rules import StepRule

_aten = torch.ops.aten

#: The inputs of a step by name, in the order of the graph's inputs.
Inputs: TypeAlias = dict[str, Tensor]
#: Returns the loss of a batch, or its sums, from columns by name.
Judge: TypeAlias = Callable[[nn.Module, dict[str, Tensor]], Any]

#: Operations that torch would decompose, but that are kept: ONNX has them, or there is a faster lowering.
_WHOLE = (
    "addmm", "amax", "avg_pool2d_backward", "convolution_backward", "embedding_dense_backward", "index_put",
    "max_pool2d_with_indices_backward", "mean", "rsub", "squeeze", "stack", "sum", "var", "var_mean",
)  # fmt: skip
#: Operations to decompose in addition to torch's core set.
_BROKEN_UP = (
    "_log_softmax", "_log_softmax_backward_data",
    "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_softmax", "_softmax_backward_data",
    "_unsafe_view", "addcdiv", "addcmul", "baddbmm", "binary_cross_entropy",
    "binary_cross_entropy_backward", "elu", "elu_backward", "gelu_backward", "glu_backward", "hardsigmoid",
    "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardtanh", "hardtanh_backward", "huber_loss",
    "huber_loss_backward", "leaky_relu", "leaky_relu_backward", "lerp", "lift_fresh", "log_sigmoid_backward",
    "log_sigmoid_forward", "masked_fill", "mish_backward", "mse_loss", "mse_loss_backward",
    "native_batch_norm_backward", "native_dropout_backward", "native_group_norm", "native_group_norm_backward",
    "linalg_vector_norm", "native_layer_norm", "native_layer_norm_backward", "nll_loss_backward", "nll_loss_forward",
    "nll_loss2d_backward", "nll_loss2d_forward", "roll", "select_backward", "select_scatter", "sigmoid_backward",
    "silu", "silu_backward", "slice_backward", "slice_scatter", "smooth_l1_loss", "smooth_l1_loss_backward",
    "softplus", "softplus_backward", "tanh_backward", "threshold_backward",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Traced:
    """A graph, and the names of its inputs and outputs, in order."""

    graph: fx.GraphModule
    inputs: Inputs
    outputs: tuple[str, ...]


def trace_step(
    judge: Judge, model: nn.Module, placed: Placed, columns: Mapping[str, Tensor], rule: StepRule, *, clip: float
) -> Traced:
    """Trace one step of training: from ``vector``, the optimiser's state, ``rate``, ``weight_decay``, columns and base
    to the next vector and state, and ``loss``."""
    model = copy.deepcopy(model)
    placed = _same_places(placed, model)
    to_training(model, placed)
    trained = placed.shared | placed.own
    kinds = {name: kind for name, (_, kind) in trained.items()}
    parameters = [name for name in trained if kinds[name] == "parameter"]
    counts = [_parameters_in(each) for each in (placed.shared, placed.own)]
    count = sum(counts)
    state = [f"state{number}" for number in range(rule.states)]
    inputs: Inputs = {
        **_vectors(placed),
        **{name: torch.zeros(count) for name in state},
        "count": torch.ones(()),
        "rate": torch.tensor(0.1),
        "weight_decay": torch.tensor(0.1),
        **{f"column.{name}": column for name, column in columns.items()},
        **_base(placed),
    }

    def step(*given: Tensor) -> tuple[Tensor, ...]:
        by_name = dict(zip(inputs, given, strict=True))
        values = _values(by_name, placed)
        leaves = {
            name: value.detach().requires_grad_(True) if kinds[name] == "parameter" else value.clone()
            for name, value in values.items()
        }
        with _reparametrize_module(model, leaves | _rest(model, placed, by_name), tie_weights=True):
            loss = judge(model, _columns(by_name))
        gradients = torch.autograd.grad(loss, [leaves[name] for name in parameters], allow_unused=True)
        if missing := [name for name, grad in zip(parameters, gradients, strict=True) if grad is None]:
            raise Unportable(f"the loss does not depend on parameter {missing[0]}")
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients if gradient is not None])
        if clip:
            # The same formula as torch.nn.utils.clip_grad_norm_.
            flat = flat * (clip / (flat.square().sum().sqrt() + 1e-6)).clamp(max=1.0)
        before = by_name["vector"][: counts[0]]
        if placed.own:
            before = torch.cat([before, by_name["own"][: counts[1]]])
        after, states = rule.step(
            before,
            flat,
            tuple(by_name[name] for name in state),
            step=by_name["count"],
            rate=by_name["rate"],
            weight_decay=by_name["weight_decay"],
        )
        afters = after.split(counts) if placed.own else (after,)  # type: ignore[no-untyped-call]
        next_ = [
            torch.cat([part, *(leaves[name].detach().reshape(-1) for name in tensors if kinds[name] == "buffer")])
            for part, tensors in zip(afters, (placed.shared, placed.own), strict=False)
        ]
        return (*next_, *states, loss.detach())

    outputs = (*(f"{name}_next" for name in (*_vectors(placed), *state)), "loss")
    return Traced(graph=_traced(step, inputs), inputs=inputs, outputs=outputs)


def trace_evaluation(judge: Judge, model: nn.Module, placed: Placed, columns: Mapping[str, Tensor]) -> Traced:
    """Trace the sums of a batch of held-out examples, each as a number, from ``vector``, columns and base."""
    model = copy.deepcopy(model).eval()
    placed = _same_places(placed, model)
    inputs: Inputs = {
        **_vectors(placed),
        **{f"column.{name}": column for name, column in columns.items()},
        **_base(placed),
    }

    def evaluate(*given: Tensor) -> Tensor:
        by_name = dict(zip(inputs, given, strict=True))
        values = _values(by_name, placed)
        with torch.no_grad(), _reparametrize_module(model, values | _rest(model, placed, by_name), tie_weights=True):
            sums: Sequence[Tensor] = judge(model, _columns(by_name))
            return torch.stack([torch.as_tensor(each).reshape(()).float() for each in sums])

    return Traced(graph=_traced(evaluate, inputs), inputs=inputs, outputs=("sums",))


# The inputs of a graph ---------------------------------------------------------------------------------


def _same_places(placed: Placed, model: nn.Module) -> Placed:
    """Return the placement of a model's tensors for a copy of the model."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    shared, own = (
        {name: (tensors[name], kind) for name, (_, kind) in each.items()} for each in (placed.shared, placed.own)
    )
    frozen = {name: tensors[name] for name in placed.frozen}
    # Modules with frozen running means, found by the names of the means.
    owners = {name.rpartition(".")[0] for name, tensor in frozen.items() if not isinstance(tensor, nn.Parameter)}
    modules = dict(model.named_modules())
    still = tuple(modules[name] for name in sorted(owners)) if placed.still else ()
    return Placed(shared, frozen, own, still)


def _vectors(placed: Placed) -> Inputs:
    """Return what is trained as flat vectors: the shared ``vector``, and the device's ``own`` if there is one."""
    parts = {"vector": placed.shared, "own": placed.own}
    return {
        name: torch.cat([tensor.detach().reshape(-1) for tensor, _ in tensors.values()])
        for name, tensors in parts.items()
        if tensors
    }


def _parameters_in(tensors: Mapping[str, tuple[Tensor, str]]) -> int:
    return sum(tensor.numel() for tensor, kind in tensors.values() if kind == "parameter")


def _base(placed: Placed) -> Inputs:
    return {f"base.{name}": tensor.detach() for name, tensor in placed.frozen.items() if tensor.is_floating_point()}


def _columns(inputs: Inputs) -> dict[str, Tensor]:
    return {name.removeprefix("column."): value for name, value in inputs.items() if name.startswith("column.")}


def _values(inputs: Inputs, placed: Placed) -> dict[str, Tensor]:
    """Cut the vectors into tensors by name."""
    values: dict[str, Tensor] = {}
    for vector, tensors in (("vector", placed.shared), ("own", placed.own)):
        if tensors:
            sizes = [tensor.numel() for tensor, _ in tensors.values()]
            pieces = inputs[vector].split(sizes)  # type: ignore[no-untyped-call]
            shaped = zip(tensors.items(), pieces, strict=True)
            values |= {name: piece.view(tensor.shape) for (name, (tensor, _)), piece in shaped}
    return values


def _rest(model: nn.Module, placed: Placed, inputs: Inputs) -> dict[str, Tensor]:
    """Return the tensors that are in no vector: the frozen base from its inputs, and the task's counters and tables."""
    frozen = {name: inputs[f"base.{name}"] for name in placed.frozen if f"base.{name}" in inputs}
    placed_names = placed.shared.keys() | placed.own.keys() | frozen.keys()
    others = {name: buffer.clone() for name, buffer in model.named_buffers() if name not in placed_names}
    return frozen | others


# Tracing -----------------------------------------------------------------------------------------------


def _traced(function: Callable[..., Any], inputs: Inputs) -> fx.GraphModule:
    given = tuple(inputs.values())
    with _plainly():
        with torch.enable_grad():
            # BatchNorm's schema does not show that it changes its buffers, so it is decomposed in the first pass.
            first = make_fx(
                function,
                decomposition_table=get_decompositions([_aten.native_batch_norm]),  # type: ignore[arg-type]
                tracing_mode="fake",
                _allow_non_fake_inputs=True,
            )(*given)
        _forget_counters(first)
        with torch.no_grad():
            second = make_fx(
                functionalize(first, remove="mutations_and_views"),
                decomposition_table=_decompositions(),
                tracing_mode="fake",
                _allow_non_fake_inputs=True,
            )(*given)
    # Not recompiled: only the nodes are read, and the code never runs.
    second.graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    return second


@contextlib.contextmanager
def _plainly() -> Iterator[None]:
    """Trace attention as products and a softmax, and recurrent layers step by step, without torch's warnings."""
    fast = torch.backends.mha.get_fastpath_enabled()
    loggers = [logging.getLogger(name) for name in ("torch._subclasses.fake_tensor", "torch.fx")]
    levels = [logger.level for logger in loggers]
    onednn = torch._C._get_mkldnn_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._set_mkldnn_enabled(False)
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with sdpa_kernel(SDPBackend.MATH), rewritten():
            yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        torch.backends.mha.set_fastpath_enabled(fast)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _forget_counters(graph: fx.GraphModule) -> None:
    """Remove BatchNorm's count of batches: an integer that is not a weight and that nothing reads."""
    for node in reversed(graph.graph.nodes):
        if node.target is _aten.add_.Tensor and not node.users and not isinstance(node.args[1], fx.Node):
            graph.graph.erase_node(node)
    graph.recompile()


@functools.cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions, cached: torch takes half a second to find them, and a task is traced four times."""
    table = dict(core_aten_decompositions())
    for name in _BROKEN_UP:
        packet, _, overload = name.partition(".")
        operation = getattr(_aten, packet)
        table |= get_decompositions([getattr(operation, overload) if overload else operation])
    for name in _WHOLE:
        operation = getattr(_aten, name)
        for overload in operation.overloads():
            table.pop(getattr(operation, overload), None)
    return table | interpolation.decompositions()
