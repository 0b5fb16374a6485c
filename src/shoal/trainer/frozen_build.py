"""Build a model around a frozen base without its base in memory: parameters have shapes only, until they are mapped.

A model that is built as usual holds random values of every parameter in memory of this process, which the job's base
replaces at once. Here a parameter becomes one of the ``meta`` device when a module registers it. Buffers and other
tensors are built as usual, since nothing else has the values that ``__init__`` computes (rotary frequencies, masks).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from shoal.task import Task
from shoal.trainer.placement import Placed, place


class NotOnMeta(Exception):
    """Why a model has to be built with all of its values."""


def build_on_meta(task: Task, build: Callable[[], nn.Module]) -> tuple[nn.Module, Placed]:
    """Return the model, its frozen parameters on ``meta``, and where its tensors live. The other parameters are zeros
    until the job's values are written to them.

    Raises NotOnMeta if the model would not be the one that is built as usual.
    """
    try:
        with _shapes_only():
            before = torch.get_rng_state()
            model = build()
            has_drawn = not torch.equal(before, torch.get_rng_state())
        placed = place(task, model)
    except Exception as error:  # whatever a task's code does with values that are not there
        raise NotOnMeta(f"{type(error).__name__}: {error}") from error
    if has_drawn:
        # Parameters draw nothing here, so that what is drawn after one is not what other devices have.
        raise NotOnMeta("it draws random numbers itself, outside of torch.nn.init")
    if placed.own:
        raise NotOnMeta("each device has a part of its own, which begins with the values that are built")
    if (name := next(_lost_on_meta(model, placed), None)) is not None:
        raise NotOnMeta(f"{name} is computed from parameters, and no file has it")
    for name, (tensor, _) in placed.shared.items():
        _fill_first(name, tensor, device="cpu")
    for name, tensor in placed.frozen.items():
        _fill_first(name, tensor, device="meta")
    return model, placed


def _fill_first(name: str, tensor: Tensor, *, device: str) -> None:
    """Fill a tensor on ``meta``, if it is one: with zeros, or on ``meta`` again, to find out whether that works."""
    try:
        if tensor.is_meta:
            fill(tensor, torch.zeros_like(tensor, device=device))
    except RuntimeError as error:
        # LSTM, GRU and RNN keep weak references to their parameters.
        raise NotOnMeta(f"{name} cannot be given its values later: {error}") from error


def fill(tensor: Tensor, values: Tensor) -> None:
    """Give a tensor on ``meta`` its values, in every module that holds it."""
    filled = nn.Parameter(values, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else values
    torch.utils.swap_tensors(tensor, filled)  # type: ignore[no-untyped-call]


@contextmanager
def _shapes_only() -> Iterator[None]:
    """Within this, modules keep only the shapes of the parameters that they register."""
    usual = nn.Module.register_parameter

    def register(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        # Swapped and not replaced: a tied parameter is registered twice, and stays one.
        if type(param) is nn.Parameter and not param.is_meta:
            empty = nn.Parameter(torch.empty_like(param, device="meta"), requires_grad=param.requires_grad)
            torch.utils.swap_tensors(param, empty)  # type: ignore[no-untyped-call]
        usual(module, name, param)

    nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = usual  # type: ignore[method-assign]


def _lost_on_meta(model: nn.Module, placed: Placed) -> Iterator[str]:
    """Yield the names of tensors that lack their values and get them from no file."""
    given = {id(tensor) for tensor in placed.frozen.values()} | {id(tensor) for tensor, _ in placed.shared.values()}
    for name, buffer in model.named_buffers():
        # Whole-number buffers are saved, but have no place in a job.
        if buffer.is_meta and id(buffer) not in given:
            yield name
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules") and _holds_meta(value, given):
                yield f"{path}.{name}" if path else name


def _holds_meta(value: object, given: Collection[int]) -> bool:
    """Whether a tensor without values is in an attribute, or in lists and dicts of it."""
    if isinstance(value, Tensor):
        return value.is_meta and not isinstance(value, nn.Parameter) and id(value) not in given
    several = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(_holds_meta(item, given) for item in several)
