"""Build a model around a frozen base without its base in memory: parameters have shapes only, until they are mapped.

A model that is built as usual holds random values of every parameter in memory of this process, which the job's base
replaces at once. Here a parameter becomes one of the ``meta`` device when a module registers it. Buffers and other
tensors are built as usual, since nothing else has the values that ``__init__`` computes (rotary frequencies, masks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    if (name := next(_unsaved_on_meta(model), None)) is not None:
        raise NotOnMeta(f"{name} is computed from parameters, and is not saved")
    for tensor, _ in placed.shared.values():
        if tensor.is_meta:
            fill(tensor, torch.zeros_like(tensor, device="cpu"))
    return model, placed


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


def _unsaved_on_meta(model: nn.Module) -> Iterator[str]:
    """Yield the names of tensors that lack their values and get them from no file."""
    saved = model.state_dict(keep_vars=True).keys()
    for name, buffer in model.named_buffers():
        if buffer.is_meta and name not in saved:
            yield name
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            several = value.values() if isinstance(value, dict) else value
            items = several if isinstance(value, dict | list | tuple) else (value,)
            if name not in ("_parameters", "_buffers", "_modules") and any(
                isinstance(item, Tensor) and not isinstance(item, nn.Parameter) and item.is_meta for item in items
            ):
                yield f"{path}.{name}" if path else name
