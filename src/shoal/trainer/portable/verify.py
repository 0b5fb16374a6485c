"""Compares a captured graph with PyTorch in double precision, tensor by tensor. Imports torch.

A step is taken from the job's first model at a rate so high that the rounding of the weights is negligible. Some of
thousands of ReLU inputs may be within float32's rounding of zero, where two correct results differ. The reference
detects such batches, and others are taken.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.learning.metrics import MetricSum
from shoal.task import Task
from shoal.trainer.judging import loss_of, metrics_of
from shoal.trainer.placement import Placed, place, to_training
from shoal.trainer.portable.build import Built
from shoal.trainer.portable.draws import draw_all
from shoal.trainer.portable.graphs_file import Metric, Proof, metric_sums
from shoal.trainer.portable.refusal import Unportable
from shoal.trainer.portable.rules import StepRule
from shoal.trainer.portable.run import GraphRun, StepRun, columns_of, sums_of
from shoal.trainer.protocol import TrainerSettings
from shoal.trainer.trial import lease_of

if TYPE_CHECKING:
    from shoal.trainer.portable.capture import Rows

_aten = torch.ops.aten
#: The largest distance of an update from PyTorch's, as a part of its length.
LARGEST_ERROR = 1e-5
#: The largest error of a single tensor, relative to a floor: the gradient of a bias before BatchNorm is only noise.
_LARGEST_OF_TENSOR = 1e-3
_FLOOR = 1e-2
#: How near to zero, as a part of their spread, inputs of a ReLU may come before two correct results may differ.
_UNDECIDED = 2e-6
_LARGEST_UNDECIDED = 0.2
_RATE = 1024.0
#: The smallest gradient that is compared with Adam, as a part of the typical one.
_TELLING = 3e-2
_TRIES = 8
_PROOF_EXAMPLES = 8
_PROOF_VALUES = 1 << 16
_SEED = 23


class Verifier:
    def __init__(
        self,
        task: Task,
        model: nn.Module,
        placed: Placed,
        settings: TrainerSettings,
        *,
        rule: StepRule,
        weight_decay: float,
    ) -> None:
        self._weight_decay = weight_decay
        self._task = task
        self._model = model
        self._placed = placed
        self._settings = settings
        self._rule = rule
        self._vector, self._own = (flat_of(each).astype(np.float32) for each in (placed.shared, placed.own))
        self._trained = placed.shared | placed.own
        #: Which values of the vector, and of the own part behind it, are parameters.
        self._are_parameters = np.concatenate(
            [np.full(tensor.numel(), kind == "parameter") for tensor, kind in self._trained.values()]
        )
        self._parameters = int(self._are_parameters.sum())
        self._base = {f"base.{name}": tensor.detach().numpy() for name, tensor in placed.frozen.items()}
        #: The largest error of an update that was compared.
        self.error = 0.0

    def step(self, built: Built, rows: Rows) -> Proof:
        """Compare steps on small batches, and one of the job's batch size. Return the proof for devices."""
        graph = GraphRun(built.onnx, threads=1, fixed=self._base)
        size = min(_PROOF_EXAMPLES, self._settings.batch_size)
        for number in range(_TRIES):
            proof = self._compared(graph, built, rows, size, number)
            if proof is not None:
                break
        else:
            raise Unportable(f"its step agreed with PyTorch's in none of {_TRIES} batches of {size}")
        self._compared(graph, built, rows, self._settings.batch_size, 0)
        return proof

    def _compared(self, graph: GraphRun, built: Built, rows: Rows, size: int, number: int) -> Proof | None:
        """Return the proof of a step that agrees, or None if a ReLU was undecided. Raises Unportable if they differ."""
        warm = rows.take(size, start=(2 * number + 1) * size)
        columns = rows.take(size, start=2 * number * size)
        drawn = [draw_all(built.draws, size, seed) for seed in (_SEED + 1, _SEED)]
        decay = self._weight_decay
        ours = StepRun(graph, self._rule.states)
        ours.begin(self._parameters)
        ours.own = self._own if self._own.size else None
        # A step that changes no weights, so that the second begins with an optimiser state.
        vector, _ = ours.step(self._vector, warm, rate=0.0, weight_decay=decay, draws=drawn[0])
        vector, loss = ours.step(vector, columns, rate=_RATE, weight_decay=decay, draws=drawn[1])
        control = Reference(self._task, self._model, self._settings)
        control.step(warm, rate=0.0, draws=drawn[0])
        exact = control.step(columns, rate=_RATE, draws=drawn[1])
        theirs = control.vector()
        first = np.concatenate([self._vector, self._own]).astype(np.float64)
        after = vector if ours.own is None else np.concatenate([vector, ours.own])
        told = control.telling()
        move, gap = (theirs - first) * told, (after.astype(np.float64) - theirs) * told
        found = self._tensor_errors(move, gap)
        worst = max(found, key=lambda name: found[name])
        error = _norm(gap[self._are_parameters]) / max(_norm(move[self._are_parameters]), 1e-30)
        agrees = (
            error <= LARGEST_ERROR
            and found[worst] <= _LARGEST_OF_TENSOR
            and abs(loss - exact) <= 1e-4 * (1 + abs(exact))
        )
        if agrees:
            self.error = max(self.error, error)
            return self._proof(columns, drawn[1])
        if control.margin > _UNDECIDED or error > _LARGEST_UNDECIDED:
            raise Unportable(
                f"its step differs from PyTorch's by {error:.1e} of the update, most in {worst} ({found[worst]:.1e}); "
                f"loss {loss:.6g} and {exact:.6g}"
            )
        return None

    def _tensor_errors(self, move: np.ndarray[Any, Any], gap: np.ndarray[Any, Any]) -> dict[str, float]:
        """Return the error of each tensor, relative to its size or to a floor: a part of the mean of its kind."""
        spans, place_ = {}, 0
        for name, (tensor, kind) in self._trained.items():
            spans[name] = (slice(place_, place_ + tensor.numel()), kind)
            place_ += tensor.numel()
        found: dict[str, float] = {}
        for kind in ("parameter", "buffer"):
            own = {name: span for name, (span, its) in spans.items() if its == kind}
            floor = _FLOOR * float(np.mean([_norm(move[span]) for span in own.values()])) if own else 0.0
            found |= {name: _norm(gap[span]) / max(_norm(move[span]), floor, 1e-30) for name, span in own.items()}
        return found

    def _proof(self, columns: Mapping[str, Any], draws: Mapping[str, Any]) -> Proof:
        """Return a first step as PyTorch takes it, small enough to send. Values that cannot be compared are NaN."""
        theirs = Reference(self._task, self._model, self._settings)
        loss = theirs.step(columns, rate=_RATE, draws=draws)
        size = self._vector.size
        change = np.where(theirs.telling()[:size], theirs.vector()[:size] - self._vector, np.nan)
        stride = -(-change.size // _PROOF_VALUES)
        return Proof(
            columns=columns,
            rate=_RATE,
            weight_decay=self._weight_decay,
            seed=_SEED,
            loss=loss,
            stride=stride,
            change=change[::stride].astype(np.float32),
        )

    def evaluation(self, built: Built, metrics: tuple[Metric, ...], rows: Rows) -> None:
        """Compare sums over batches of several sizes, including a single example."""
        graph = GraphRun(built.onnx, threads=1, fixed=self._base)
        model = copy.deepcopy(self._model).eval()
        lease = lease_of(self._task, self._placed)
        for size in (_PROOF_EXAMPLES, 1, min(self._settings.batch_size, 64)):
            columns = rows.take(size)
            drawn = draw_all(built.draws, size, _SEED)
            given = {"vector": self._vector, "own": self._own, **columns_of(columns), **drawn}
            sums = metric_sums(metrics, sums_of(graph.run(given)))
            with torch.no_grad(), Drawing(drawn):
                batch = self._task.collate(_rows(_tensors(columns)), training=False)
                theirs = metrics_of(self._task, model, batch, lease, examples=size)
            for one, other in zip(sums, theirs, strict=True):
                _check_same(one, other)


def _check_same(one: MetricSum, other: MetricSum) -> None:
    same = (one.name, one.kind, one.lower, len(one.sums)) == (other.name, other.kind, other.lower, len(other.sums))
    near = same and all(abs(a - b) <= 1e-3 * (1 + abs(b)) for a, b in zip(one.sums, other.sums, strict=True))
    if not near:
        raise Unportable(f"its evaluation gives {one} where PyTorch gives {other}")


def flat_of(tensors: Mapping[str, tuple[Tensor, Any]]) -> np.ndarray[Any, Any]:
    """Return tensors end to end."""
    parts = [tensor.detach().numpy().reshape(-1) for tensor, _ in tensors.values()]
    return np.concatenate(parts) if parts else np.zeros(0)


#: Where torch's optimisers keep the mean or the sum of squared gradients.
_SQUARES = ("exp_avg_sq", "square_avg", "sum")


class Reference:
    """PyTorch's own step in float64, with the same random numbers."""

    def __init__(self, task: Task, model: nn.Module, settings: TrainerSettings) -> None:
        from shoal.trainer.optimisers import InnerOptimiser

        self._task = task
        self._model = copy.deepcopy(model).double()
        self._placed = place(task, self._model)
        self._trained = self._placed.shared | self._placed.own
        self._settings = settings
        trainable = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._trainable = trainable
        self._optimiser = InnerOptimiser(task, self._model, trainable, settings).for_lease(settings.learning_rate)
        rates = [float(group["lr"]) for group in self._optimiser.param_groups]
        self._parts = [each / max(rates) if max(rates) else 1.0 for each in rates]
        to_training(self._model, self._placed)
        #: How near to zero an input of a ReLU came.
        self.margin = float("inf")
        #: The smallest size of each gradient in all steps.
        self._least: dict[Tensor, Tensor] = {}

    def step(self, columns: Mapping[str, Any], *, rate: float, draws: Mapping[str, Any]) -> float:
        # Groups keep their parts of the largest rate, which a step is told.
        for group, part in zip(self._optimiser.param_groups, self._parts, strict=True):
            group["lr"] = rate * part
        mode = Drawing(draws, doubled=True)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with mode, torch.enable_grad():
                batch = self._task.collate(_rows(_tensors(columns, doubled=True)), training=True)
                loss = loss_of(self._task, self._model, batch, lease_of(self._task, self._placed))
            self._optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if self._settings.clip_gradient:
                nn.utils.clip_grad_norm_(self._trainable, self._settings.clip_gradient)
            for parameter in self._trainable:
                size = parameter.grad.abs() if parameter.grad is not None else torch.zeros_like(parameter)
                self._least[parameter] = torch.minimum(self._least.get(parameter, size), size)
            self._optimiser.step()
        finally:
            torch.set_default_dtype(before)
        self.margin = min(self.margin, mode.margin)
        return float(loss.item())

    def telling(self) -> np.ndarray[Any, Any]:
        """Return which values of the vector can be compared. Adam and its kin divide a gradient by its own size: where
        that is tiny, the step is rounding."""
        parts = []
        for tensor, _ in self._trained.values():
            state = self._optimiser.state.get(tensor, {})
            square = next((state[name] for name in _SQUARES if name in state), None)
            size = square.sqrt() if square is not None else None
            if size is not None and "momentum_buffer" in state:
                # Momentum carries a step along a tiny gradient, which was rounding, into the next.
                size = torch.minimum(size, self._least[tensor])
            parts.append(np.ones(tensor.numel()) if size is None else size.reshape(-1).numpy())
        sizes = np.concatenate(parts)
        if not any(name in state for state in self._optimiser.state.values() for name in _SQUARES):
            return np.asarray(sizes > 0)
        steps = np.concatenate(
            [np.full(tensor.numel(), kind == "parameter") for tensor, kind in self._trained.values()]
        )
        usual = float(np.sqrt(np.mean(sizes[steps] ** 2)))
        found = sizes > _TELLING * usual
        return np.asarray(found | ~steps)

    def vector(self) -> np.ndarray[Any, Any]:
        return flat_of(self._trained)


class Drawing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Replaces torch's random numbers with given ones, in order. Computes in float64 if ``doubled``."""

    _KINKED = frozenset(
        [
            "relu",
            "relu_",
            "hardtanh",
            "hardtanh_",
            "leaky_relu",
            "leaky_relu_",
            "clamp",
            "hardswish",
            "hardswish_",
            "hardsigmoid",
            "threshold",
        ]
    )

    def __init__(self, draws: Mapping[str, Any], *, doubled: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws = iter([draws[name] for name in sorted(draws, key=lambda name: int(name.removeprefix("draw")))])
        self._doubled = doubled
        self.margin = float("inf")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if self._doubled and kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        name = func._overloadpacket.__name__
        if self._doubled and name in self._KINKED and args[0].is_floating_point() and args[0].numel():
            self._look(args[0].detach(), name)
        match name:
            case "bernoulli_" | "bernoulli":
                # A probability of one half is the default, and then not passed on.
                usual = 0.5 if func._overloadname == "float" else args[0]
                chance = args[1] if len(args) > 1 else kwargs.get("p", usual)
                chance = chance if isinstance(chance, Tensor) else torch.tensor(float(np.float32(chance)))
                hit = (self._next(args[0]) < chance).to(args[0].dtype)
                return args[0].copy_(hit) if name.endswith("_") else hit
            case "rand" | "randn" | "randint" | "randperm":
                found = torch.from_numpy(np.array(next(self._draws)))
                made = func(*args, **kwargs)
                return found.to(made.dtype)
            case "rand_like" | "randn_like":
                return self._next(args[0]).to(args[0].dtype)
            case "uniform_" | "normal_":
                low = args[1] if len(args) > 1 else kwargs.get("from", kwargs.get("mean", 0.0))
                high = args[2] if len(args) > 2 else kwargs.get("to", kwargs.get("std", 1.0))
                scale = high - low if name == "uniform_" else high
                return args[0].copy_(self._next(args[0]).to(args[0].dtype) * scale + low)
        return func(*args, **kwargs)

    def _next(self, like: Tensor) -> Tensor:
        return torch.from_numpy(np.array(next(self._draws))).reshape(like.shape)

    def _look(self, x: Tensor, name: str) -> None:
        spread = x.square().mean().sqrt().item()
        if spread:
            ends = (0.0,) if "relu" in name else (0.0, 1.0, -1.0, 3.0, -3.0, 6.0)
            # An exact zero is zero in every precision.
            near = [((x - end).abs()[x != end]) for end in ends]
            least = min((float(each.min()) for each in near if each.numel()), default=float("inf"))
            self.margin = min(self.margin, least / spread)


def _tensors(columns: Mapping[str, Any], *, doubled: bool = False) -> dict[str, Tensor]:
    found = {name: torch.from_numpy(np.array(column)) for name, column in columns.items()}
    return {
        name: tensor.double() if doubled and tensor.dtype == torch.float32 else tensor for name, tensor in found.items()
    }


def _rows(columns: Mapping[str, Tensor]) -> Any:
    return (columns["x"], columns["y"]) if columns.keys() == {"x", "y"} else dict(columns)


def _norm(values: np.ndarray[Any, Any]) -> float:
    return float(np.linalg.norm(values))
