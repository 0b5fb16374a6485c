"""A task's training step and its evaluation as ONNX graphs, made and verified where PyTorch is. Imports torch.

A task that cannot be captured, or does not agree with PyTorch, is refused with the reason: its job then trains only on
PyTorch devices.
"""

from __future__ import annotations

import random  # noqa: TID251 - to see whether a task draws from it
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal import metrics as task_metrics
from shoal.data.raw_values import made_up_rows
from shoal.errors import Misuse
from shoal.learning.metrics import lower_is_better
from shoal.plan import Plan
from shoal.task import Task, class_dimension
from shoal.trainer.judging import loss_of, pair_of
from shoal.trainer.optimisers import InnerOptimiser
from shoal.trainer.placement import Placed
from shoal.trainer.portable.build import Built, build
from shoal.trainer.portable.graph import check_graph
from shoal.trainer.portable.graphs_file import Graphs, Metric
from shoal.trainer.portable.refusal import Unportable, in_words
from shoal.trainer.portable.rules import Adagrad, Adam, Grouped, RmsProp, Sgd, StepRule
from shoal.trainer.portable.trace import trace_evaluation, trace_step
from shoal.trainer.portable.verify import Verifier, flat_of
from shoal.trainer.protocol import TrainerSettings
from shoal.trainer.shards import Examples

#: The two batch sizes that the step is traced with, which no layer is likely to have.
_SIZES = (22, 26)


class TracedLease:
    """A lease while a graph is traced. Refuses to give values that differ by lease: they would become constants."""

    device = torch.device("cpu")
    half = None

    def __getattr__(self, name: str) -> Any:
        raise Unportable(f"the task reads lease.{name}, which differs from lease to lease")


def capture(
    task: Task,
    model: nn.Module,
    placed: Placed,
    settings: TrainerSettings,
    *,
    train: Examples,
    test: Examples,
    evaluates: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> Graphs:
    """Return the graphs of a task, verified. Raises Unportable. Only benchmarks leave out the evaluation. ``tell``
    hears what is being done: a large model takes minutes."""
    _check_plan(task, placed, settings)
    columns = task._declared_columns() if settings.is_local else {}
    rule, rate, weight_decay = rule_of(task, model, settings, placed)
    if columns:
        # No row of a device is here. The shapes are declared, and the values make no difference to a graph.
        train = test if len(test) else Examples.of(made_up_rows(columns))
    rows = Rows(train)
    held_out = Rows(test if len(test) else train)

    def loss(module: nn.Module, columns: dict[str, Tensor]) -> Tensor:
        batch = task.collate(given_rows(columns), training=True)
        return loss_of(task, module, batch, TracedLease())  # type: ignore[arg-type]

    found: list[Metric] = []

    def judge(module: nn.Module, columns: dict[str, Tensor]) -> list[Any]:
        metrics = traced_metrics(task, module, columns)
        found[:] = [
            Metric(name=name, kind=sums.kind, sums=len(sums.sums), lower=_is_lower(name, sums))
            for name, sums in metrics.items()
        ]
        return [number for sums in metrics.values() for number in sums.sums]

    tell("tracing the training step")
    step = _built(
        lambda size: trace_step(loss, model, placed, rows.torch(size), rule, clip=settings.clip_gradient), "the step"
    )
    verifier = Verifier(task, model, placed, settings, rule=rule, weight_decay=weight_decay)
    tell(f"comparing the step's {check_graph(step.onnx):,} nodes with PyTorch in float64")
    proof = verifier.step(step, rows)
    evaluation = Built(onnx=b"", inputs=(), draws=())
    if evaluates:
        tell("tracing the evaluation")
        evaluation = _built(lambda size: trace_evaluation(judge, model, placed, held_out.torch(size)), "the evaluation")
        tell("comparing the evaluation with PyTorch")
        verifier.evaluation(evaluation, tuple(found), held_out)
    return Graphs(
        train=step.onnx,
        evaluate=evaluation.onnx,
        states=rule.states,
        rate=rate,
        weight_decay=weight_decay,
        draws=step.draws,
        evaluation_draws=evaluation.draws,
        metrics=tuple(found),
        proof=proof,
        error=verifier.error,
        columns=columns,
        own=flat_of(placed.own).astype(np.float32),
    )


class Rows:
    """Stored examples, taken round and round."""

    def __init__(self, examples: Examples) -> None:
        self._examples = examples
        if not len(examples):
            raise Unportable("there are no examples here to capture a batch of")

    def take(self, size: int, start: int = 0) -> dict[str, np.ndarray[Any, Any]]:
        taken = self._examples.take((start + np.arange(size)) % len(self._examples))
        for name, column in taken.items():
            if not isinstance(column, np.ndarray):
                raise Unportable(f"column {name} holds texts or rows of unequal shapes")
        return {name: np.array(column) for name, column in taken.items() if isinstance(column, np.ndarray)}

    def torch(self, size: int, start: int = 0) -> dict[str, Tensor]:
        return {name: torch.from_numpy(column) for name, column in self.take(size, start).items()}


def given_rows(columns: Mapping[str, Tensor]) -> Any:
    """Return columns as ``Task.collate`` takes them."""
    return (columns["x"], columns["y"]) if columns.keys() == {"x", "y"} else dict(columns)


def rule_of(task: Task, model: nn.Module, settings: TrainerSettings, placed: Placed) -> tuple[StepRule, float, float]:
    """Return the optimiser of a lease as a rule, with its rate and its weight decay: the largest of its groups."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = InnerOptimiser(task, model, trainable, settings).for_lease(settings.learning_rate)
    kind, groups = type(optimiser).__name__, optimiser.param_groups
    stepped = {id(each): group for group in groups for each in group["params"]}
    if stepped.keys() != {id(each) for each in trainable}:
        raise Unportable(f"its {kind} steps only some of the parameters; set requires_grad = False on the others")
    for group in groups:
        if odd := [name for name in _ODD if group.get(name)]:
            raise Unportable(f"its {kind} has {odd[0]}; leave it out")
        if unlike := [name for name, value in group.items() if name not in _OF_GROUP and value != groups[0][name]]:
            raise Unportable(f"the groups of its {kind} differ in {unlike[0]}; they may differ in lr and weight_decay")
    rate = max(float(group["lr"]) for group in groups)
    decay = max(float(group["weight_decay"]) for group in groups)
    rule = _rule(optimiser, groups[0])
    runs: list[tuple[int, float, float]] = []
    for tensor, where in (*placed.shared.values(), *placed.own.values()):
        if where != "parameter":
            continue
        group = stepped[id(tensor)]
        parts = (float(group["lr"]) / rate if rate else 1.0, float(group["weight_decay"]) / decay if decay else 1.0)
        if runs and runs[-1][1:] == parts:
            runs[-1] = (runs[-1][0] + tensor.numel(), *parts)
        else:
            runs.append((tensor.numel(), *parts))
    return rule if len(runs) == 1 else Grouped(inner=rule, runs=tuple(runs)), rate, decay


#: What the rules do not have.
_ODD = ("maximize", "dampening", "centered", "initial_accumulator_value")
#: In what groups of parameters may differ.
_OF_GROUP = ("params", "lr", "weight_decay", "initial_lr", "param_names")


def _rule(optimiser: torch.optim.Optimizer, group: Mapping[str, Any]) -> StepRule:
    kind = type(optimiser)
    if kind is torch.optim.SGD:
        return Sgd(momentum=float(group["momentum"]), nesterov=bool(group["nesterov"]))
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        beta1, beta2 = map(float, group["betas"])
        return Adam(
            beta1=beta1,
            beta2=beta2,
            epsilon=float(group["eps"]),
            is_decoupled=bool(group.get("decoupled_weight_decay", kind is torch.optim.AdamW)),
            keeps_largest=bool(group["amsgrad"]),
        )
    if kind is torch.optim.RMSprop:
        return RmsProp(alpha=float(group["alpha"]), epsilon=float(group["eps"]), momentum=float(group["momentum"]))
    if kind is torch.optim.Adagrad:
        return Adagrad(epsilon=float(group["eps"]), rate_decay=float(group["lr_decay"]))
    raise Unportable(f"its optimiser is {kind.__name__}: SGD, Adam, AdamW, RMSprop and Adagrad are captured")


def traced_metrics(task: Task, model: nn.Module, columns: dict[str, Tensor]) -> dict[str, Any]:
    """Return the metrics like ``judging.metrics_of``, but with sums that are still tensors."""
    batch = task.collate(given_rows(columns), training=False)
    examples = len(next(iter(columns.values())))
    with task_metrics.unread():
        if task._overrides("metrics"):
            found = dict(task.metrics(model, batch))
            if "loss" not in found:
                loss = loss_of(task, model, batch, TracedLease())  # type: ignore[arg-type]
                found = {"loss": task_metrics.mean(loss * examples, _whole(examples)), **found}
            return found
        if task._overrides("step"):
            loss = loss_of(task, model, batch, TracedLease())  # type: ignore[arg-type]
            return {"loss": task_metrics.mean(loss * examples, _whole(examples))}
        x, y = pair_of(task, batch)
        output = model(x)
        loss = task.loss(output, y)
        return {"loss": task_metrics.mean(loss * examples, _whole(examples)), **_accuracy(task, output, y)}


def _accuracy(task: Task, output: Any, y: Any) -> dict[str, Any]:
    if task._overrides("correct"):
        correct: Any = task.correct(output, y)
        if not isinstance(correct, Tensor) or y.dim() != 1:
            raise Unportable("Task.correct gives a number that is read out of a tensor; let it give the tensor")
        return {"accuracy": task_metrics.mean(correct, _whole(len(y)))}
    classes = class_dimension(output.shape, y.shape) if isinstance(output, Tensor) else None
    if y.is_floating_point() or classes is None:
        return {}
    correct = (output.argmax(classes) == y).sum()
    return {"accuracy": task_metrics.mean(correct, _whole(y.numel()))}


def _whole(number: int) -> Tensor:
    # Not as_tensor: a table of one number could not become a formula of the batch's size.
    return torch.full((), float(number))


def _is_lower(name: str, sums: Any) -> bool:
    return bool(sums.better == "lower" if sums.better else lower_is_better(name))


def _built(trace: Any, what: str) -> Built:
    before = _chance()
    try:
        with torch.random.fork_rng(devices=[]):
            built = build(trace, _SIZES)
        check_graph(built.onnx)
    except Exception as error:
        # torch raises many kinds of errors here, such as for data-dependent control flow.
        lines = str(error).strip().splitlines()
        if isinstance(error, Unportable):
            told = str(error)
        else:
            kind, first = type(error).__name__, lines[0][:300] if lines else ""
            told = in_words(kind, str(error)) or f"{kind}: {first}"
        raise Unportable(f"{what} cannot be captured: {_DREW if _chance() != before else told}") from error
    if _chance() != before:
        raise Unportable(f"{what} cannot be captured: {_DREW}")
    return built


_DREW = "it draws numbers by numpy or random, which a graph cannot: draw them by torch"


def _chance() -> tuple[Any, ...]:
    """Return the state of the generators that a graph cannot use."""
    state: Any = np.random.get_state()
    return bytes(state[1]), state[2], random.getstate()


def _check_plan(task: Task, placed: Placed, settings: TrainerSettings) -> None:
    if task._overrides("train"):
        raise Unportable("the task trains by a loop of its own (Task.train)")
    if settings.is_local and not task._declared_columns():
        raise Unportable(
            "each device has its own examples, which the task's code reads there: declare what rows they have, such as"
            ' columns = {"x": shoal.column("uint8", (28, 28)), "y": shoal.column("int64")}'
        )
    if settings.accumulate != 1:
        raise Unportable(f"accumulate = {settings.accumulate}: a graph takes a step for each batch")
    if settings.precision != "float32":
        raise Unportable(f"precision = {settings.precision!r}: graphs compute in float32")
    for name, (tensor, _) in (placed.shared | placed.own).items():
        if tensor.dtype != torch.float32:
            raise Unportable(f"{name} is {tensor.dtype}; graphs train only float32")
    for name, tensor in placed.frozen.items():
        if tensor.dtype not in (torch.float32, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool):
            raise Unportable(f"the frozen {name} is {tensor.dtype}, which no graph takes")


def settings_of(plan: Plan, *, task: Task, layout: Any) -> TrainerSettings:
    """Return the trainer settings of a plan, as far as a graph depends on them."""
    if type(task) is Task:
        raise Misuse("a script has a loop of its own")
    return TrainerSettings.of_plan(
        plan, bundle_dir="", entry="", train=(), layout=layout, is_local=plan.data == "local"
    )
