"""The formats of an exported model: how each is written, and how it is run again. Imports torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from shoal.errors import Misuse
from shoal.extras import install_command

#: Some ONNX readers take at most 2 GB in one file; weights beyond this go to a file beside it.
_ONE_FILE_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of a model: tensors by position and by name."""

    args: tuple[Tensor, ...] = ()
    kwargs: Mapping[str, Tensor]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.args, *self.kwargs.values())

    def like(self, change: Callable[[Tensor], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(change, self.args)), {name: change(tensor) for name, tensor in self.kwargs.items()}


#: Runs a written file: the tensors that it gives for a call, in order.
Run: TypeAlias = Callable[[Call], list[Tensor]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """A format, the modules it needs, and how to get them."""

    needs: tuple[str, ...]
    install: str
    write: Callable[[ExportedProgram, Path], None]
    load: Callable[[Path], Run]
    #: Whether a file can take any number of examples at once.
    any_batch: bool = True

    def check_installed(self) -> None:
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if missing:
            raise Misuse(f"this needs {', '.join(missing)}, which is not installed here: {self.install}")


def traced(model: nn.Module, call: Call, varying: Sequence[frozenset[int]]) -> ExportedProgram:
    """Return the model as a graph. ``varying`` has the dimensions of each tensor, apart from the first, that differ by
    batch."""
    batch = Dim("batch")
    sizes = iter(varying)
    args, kwargs = call.like(lambda tensor: {0: batch} | dict.fromkeys(sorted(next(sizes)), Dim.AUTO))
    shapes: Any = kwargs if kwargs else args
    return torch.export.export(model, call.args, dict(call.kwargs), dynamic_shapes=shapes)


def traced_fixed(model: nn.Module, call: Call) -> ExportedProgram:
    """Return the model as a graph that takes tensors of exactly these shapes."""
    return torch.export.export(model, call.args, dict(call.kwargs))


def outputs_of(output: Any) -> list[Tensor]:
    """Return the tensors of a model's output, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [tensor for part in output.values() for tensor in outputs_of(part)]
    if isinstance(output, tuple | list):
        return [tensor for part in output for tensor in outputs_of(part)]
    if is_dataclass(output):
        return [tensor for each in fields(output) for tensor in outputs_of(getattr(output, each.name))]
    return []


# PyTorch's own -------------------------------------------------------------------------------------------


def _write_pt2(program: ExportedProgram, path: Path) -> None:
    torch.export.save(program, path)


def _load_pt2(path: Path) -> Run:
    module = torch.export.load(path).module()
    return lambda call: outputs_of(module(*call.args, **call.kwargs))


# ONNX ----------------------------------------------------------------------------------------------------


def _write_onnx(program: ExportedProgram, path: Path) -> None:
    size_bytes = sum(tensor.nbytes for tensor in program.state_dict.values())
    torch.onnx.export(
        program, (), path, dynamo=True, external_data=size_bytes > _ONE_FILE_BYTES, verbose=False, report=False
    )


def _load_onnx(path: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Only errors: its warnings about devices that it does not find do not help here.
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    wanted = [each.name for each in session.get_inputs()]

    def run(call: Call) -> list[Tensor]:
        given = {name: tensor.numpy() for name, tensor in call.kwargs.items()}
        if not set(wanted) <= given.keys():
            # In order: a tensor by position goes to the parameter of `forward` at that position.
            given = dict(zip(wanted, (tensor.numpy() for tensor in call.tensors), strict=True))
        return [torch.from_numpy(each) for each in session.run(None, {name: given[name] for name in wanted})]

    return run


# ExecuTorch ----------------------------------------------------------------------------------------------


def _write_executorch(program: ExportedProgram, path: Path) -> None:
    from executorch.exir import to_edge

    path.write_bytes(to_edge(program).to_executorch().buffer)


def _load_executorch(path: Path) -> Run:
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(path).load_method("forward")
    return lambda call: outputs_of(method.execute([tensor.contiguous() for tensor in call.tensors]))


FORMATS: dict[str, Format] = {
    "pt2": Format(needs=(), install="", write=_write_pt2, load=_load_pt2),
    "onnx": Format(
        needs=("onnx", "onnxscript", "onnxruntime"),
        install=install_command("export"),
        write=_write_onnx,
        load=_load_onnx,
    ),
    "executorch": Format(
        needs=("executorch",),
        install="pip install executorch, in a release made for the torch you have",
        write=_write_executorch,
        load=_load_executorch,
        # ExecuTorch plans its memory beforehand.
        any_batch=False,
    ),
}
