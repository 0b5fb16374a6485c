"""Where each tensor of a model lives: in the shared vector, in the frozen base, or on the device. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from shoal.errors import Misuse
from shoal.learning.layout import Kind, Layout
from shoal.task import Task

Place = Literal["shared", "frozen", "own"]


@dataclass(frozen=True, slots=True)
class Placed:
    """The tensors of one model by where they live, each once, under its first name (tied weights have several)."""

    #: Trained by all devices together: these are the job's vector.
    shared: dict[str, tuple[Tensor, Kind]] = field(default_factory=dict)
    #: Fetched once and never changed.
    frozen: dict[str, Tensor] = field(default_factory=dict)
    #: Trained by each device for itself; they never leave it.
    own: dict[str, tuple[Tensor, Kind]] = field(default_factory=dict)
    #: Modules that hold frozen running means. They stay in evaluation mode, or training would change the means.
    still: tuple[nn.Module, ...] = ()

    @property
    def layout(self) -> Layout:
        return _layout(self.shared)

    @property
    def own_layout(self) -> Layout | None:
        return _layout(self.own) if self.own else None


def place(task: Task, model: nn.Module) -> Placed:
    """Decide where each tensor lives. Turns off the gradients of frozen parameters.

    Integer buffers (BatchNorm's count of batches) and buffers that the module does not save are left out: an average
    of them means nothing, and every device builds its own.
    """
    placed, still = Placed(), []
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise Misuse(f"parameter {name} has no shape yet: run one batch through the model in model()")
        where = _asked(task, name, parameter) or ("shared" if parameter.requires_grad else "frozen")
        if where == "frozen":
            parameter.requires_grad_(False)
            placed.frozen[name] = parameter
            continue
        if not parameter.requires_grad:
            raise Misuse(f"{type(task).__name__}.placement says {where} for {name}, which has requires_grad = False")
        if not parameter.is_floating_point():
            raise Misuse(f"parameter {name} is {parameter.dtype}; what is trained is of a floating-point type")
        getattr(placed, where)[name] = (parameter, "parameter")
    for name, owner, buffer in _saved_buffers(model):
        asked = _asked(task, name, buffer)
        if (asked or ("frozen" if _is_frozen(model, name) else "shared")) == "frozen":
            placed.frozen[name] = buffer
            if buffer.is_floating_point():
                still.append(owner)
        elif buffer.is_floating_point():
            getattr(placed, asked or "shared")[name] = (buffer, "buffer")
    if not any(kind == "parameter" for _, kind in placed.shared.values()):
        raise Misuse("the model has no parameter that can be trained: all have requires_grad = False, or are own")
    return Placed(placed.shared, placed.frozen, placed.own, tuple(dict.fromkeys(still)))


def placed_again(placed: Placed, model: nn.Module) -> Placed:
    """Return the same places with the tensors that the model holds now: a move to another device replaces buffers."""
    held: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    held |= dict(model.named_buffers(remove_duplicate=False))
    return Placed(
        {name: (held.get(name, tensor), kind) for name, (tensor, kind) in placed.shared.items()},
        {name: held.get(name, tensor) for name, tensor in placed.frozen.items()},
        {name: (held.get(name, tensor), kind) for name, (tensor, kind) in placed.own.items()},
        placed.still,
    )


def to_training(model: nn.Module, placed: Placed) -> None:
    """Put a model into training mode, except modules with frozen running means."""
    model.train()
    for module in placed.still:
        module.training = False


def _asked(task: Task, name: str, tensor: Tensor) -> Place | None:
    where = task.placement(name, tensor)
    if where is not None and where not in get_args(Place):
        raise Misuse(f"{type(task).__name__}.placement gave {where!r} for {name}; there is shared, frozen and own")
    return where  # type: ignore[return-value]


def _saved_buffers(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor]]:
    """Yield each buffer that a state dict holds, with its module."""
    saved = model.state_dict(keep_vars=True).keys()
    modules = dict(model.named_modules())
    for name, buffer in model.named_buffers():
        if name in saved:
            yield name, modules[name.rpartition(".")[0]], buffer


def _is_frozen(model: nn.Module, buffer: str) -> bool:
    """Whether all parameters are frozen in the nearest module around a buffer that has any."""
    path = buffer
    while path:
        path = path.rpartition(".")[0]
        parameters = list(model.get_submodule(path).parameters())
        if parameters:
            return not any(parameter.requires_grad for parameter in parameters)
    return False


def _layout(tensors: dict[str, tuple[Tensor, Kind]]) -> Layout:
    return Layout.of((name, tuple(tensor.shape), kind) for name, (tensor, kind) in tensors.items())
