"""Write a trained model in another form, and check the file by running it. Run as a process of its own.

``python -m shoal.trainer.export_child JSON``. Imports torch and the task's code. The last line of standard output is
``{"exported": ...}`` or ``{"failed": ...}``.

The file is loaded again from the disk and run on every held-out example, beside the model that it was made of.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.errors import Misuse
from shoal.plan import Plan
from shoal.task import Task
from shoal.trainer.arrays import rows_to_torch, write_examples
from shoal.trainer.base import load_base
from shoal.trainer.child_loop import place_of, reason_of
from shoal.trainer.export_formats import FORMATS, Call, Format, Run, outputs_of, traced, traced_fixed
from shoal.trainer.exporting import LARGEST_DIFFERENCE, ExportDiffers, Exported, ExportSettings
from shoal.trainer.importer import make_task
from shoal.trainer.launch import opened
from shoal.trainer.placement import place
from shoal.trainer.report import Report, reporting
from shoal.trainer.shards import Examples
from shoal.trainer.steps import seeded
from shoal.trainer.trained import trained_model
from shoal.wire import tensors

#: How many batches are looked at to see which sizes differ between them.
_LOOKED_AT = 8


def export(settings: ExportSettings, report: Report) -> Exported:
    """Write the model, run the written file, and return how far the two are apart.

    If that is above ``LARGEST_DIFFERENCE``, removes the file and raises ExportDiffers.
    """
    form = FORMATS[settings.to]
    form.check_installed()
    report({"step": "model"})
    task = make_task(Path(settings.bundle_dir), settings.entry, settings.arguments)
    model = _model(task, settings)
    # Built again: a graph shares the values of the model it was made from, and a fault in one would be in both.
    original = _model(task, settings)
    with tempfile.TemporaryDirectory(prefix="shoal-export-") as folder:
        calls = Calls(task, model, _held_out(task, settings, Path(folder)), settings)
        path = Path(settings.out)
        with torch.no_grad(), warnings.catch_warnings():
            # PyTorch's passes warn of things that the person who exports cannot change.
            warnings.simplefilter("ignore")
            report({"step": "write"})
            batch = _write(form, model, calls, path)
            report({"step": "check", "examples": calls.examples})
            difference = _difference(original, form.load(path), calls, batch=batch)
    if not difference <= LARGEST_DIFFERENCE:
        path.unlink()
        raise ExportDiffers(_why_refused(settings.to, difference))
    return Exported(
        path=str(path),
        to=settings.to,
        size_bytes=sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*")),
        examples=calls.examples,
        difference=difference,
        batch=batch,
        inputs=calls.names,
    )


def _model(task: Task, settings: ExportSettings) -> nn.Module:
    model = trained_model(task, Path(settings.model), seed=settings.seed)
    placed = place(task, model)
    with opened(Path(settings.model)) as file:
        held, _ = tensors.read(file, mmap=True)
    if missing := [name for name in placed.shared if name not in held]:
        raise Misuse(f"{Path(settings.model).name} has no {missing[0]}, which {type(task).__name__}.model() builds")
    if settings.base:
        load_base(placed.frozen, settings.base)
    return model.requires_grad_(False)


def _held_out(task: Task, settings: ExportSettings, folder: Path) -> Examples:
    """Return the job's held-out examples, or else those that the task has on this machine."""
    files: tuple[str, ...] = settings.test
    if not settings.has_data:
        given = task.examples("test")
        manifest = write_examples(given, folder) if given is not None else None
        files = tuple(str(folder / shard.sha256) for shard in manifest.shards) if manifest else ()
    examples = Examples(files)
    if not len(examples):
        raise Misuse(
            f"{type(task).__name__} has no held-out examples to try the file with; "
            "let examples('test') give a few, and name the task"
        )
    return examples


class Calls:
    """The calls of the model with the held-out examples."""

    def __init__(self, task: Task, model: nn.Module, held_out: Examples, settings: ExportSettings) -> None:
        self._task = task
        self._model = model
        self._held_out = held_out
        self._settings = settings
        self._batch_size = (task.plan or Plan()).batch_size
        self.examples = len(held_out)
        first = self.of(np.arange(1))
        forward = list(inspect.signature(model.forward).parameters)
        self.names: tuple[str, ...] = (*forward[: len(first.args)], *first.kwargs)

    def of(self, indices: np.ndarray[Any, Any]) -> Call:
        seeded(self._settings.seed, int(indices[0]))
        batch = self._task.collate(rows_to_torch(self._held_out.take(indices)), training=False)
        return call_of(self._task, self._model, batch, self._settings.inputs)

    def example(self, count: int) -> Call:
        """Return a call with ``count`` examples to trace with, some of them twice if the set has fewer."""
        return self.of(np.arange(count) % self.examples)

    def batches(self, size: int) -> Iterator[Call]:
        """Yield calls with all examples, ``size`` at a time. If ``size`` is 0 (any), the first call has one example,
        and the last may be smaller."""
        if not size:
            yield self.of(np.arange(1))
        step = size or self._batch_size
        for start in range(0, self.examples, step):
            stop = min(start + step, self.examples)
            # The last batch of a fixed size is filled up with examples from the start.
            yield self.of(np.arange(start, start + step) % self.examples if size else np.arange(start, stop))

    def varying(self, first: Call) -> list[frozenset[int]]:
        """Return, for each tensor, the dimensions after the first that differ between some batches."""
        found: list[set[int]] = [set() for _ in first.tensors]
        for number in range(_LOOKED_AT):
            start = number * self._batch_size
            if start >= self.examples:
                break
            other = self.of(np.arange(start, min(start + self._batch_size, self.examples)))
            for sizes, ours, theirs in zip(found, first.tensors, other.tensors, strict=True):
                sizes |= {at for at in range(1, ours.dim()) if ours.shape[at] != theirs.shape[at]}
        return [frozenset(sizes) for sizes in found]


def call_of(task: Task, model: nn.Module, batch: Any, chosen: tuple[str, ...]) -> Call:
    """Return the call for a batch: ``model(x)`` for a pair, or a dict's tensors by the names of ``forward``."""
    forward = inspect.signature(model.forward)
    if isinstance(batch, Mapping):
        found = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
        if unknown := [name for name in chosen if name not in found]:
            raise Misuse(f"there is no tensor {unknown[0]!r} in the batch; it has {', '.join(found) or 'none'}")
        names = chosen or tuple(name for name in forward.parameters if name in found)
        if chosen and not set(chosen) <= forward.parameters.keys():
            call = Call(args=tuple(found[name] for name in chosen), kwargs={})
        else:
            call = Call(kwargs={name: found[name] for name in names})
    elif isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[0], Tensor) and not chosen:
        call = Call(args=(batch[0],), kwargs={})
    else:
        raise Misuse(_cannot_call(task, model, batch))
    try:
        forward.bind(*call.args, **call.kwargs)
    except TypeError:
        raise Misuse(_cannot_call(task, model, batch)) from None
    if not call.tensors:
        raise Misuse(_cannot_call(task, model, batch))
    return call


def _cannot_call(task: Task, model: nn.Module, batch: Any) -> str:
    has = f"a dict of {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else f"a {type(batch).__name__}"
    parameters = ", ".join(inspect.signature(model.forward).parameters)
    return (
        f"{type(task).__name__}.collate gave {has}, and {type(model).__name__}.forward takes ({parameters}): an export "
        "calls model(x) of a pair (x, y), or passes tensors of a dict by the names that forward has; "
        "say which tensors of a dict with --inputs"
    )


# Written and run -------------------------------------------------------------------------------------


def _write(form: Format, model: nn.Module, calls: Calls, path: Path) -> int:
    """Write the file. Return how many examples it takes at once, or 0 for any number."""
    if form.any_batch:
        # More than one example, and a size that no other dimension has: PyTorch would take equal sizes for one.
        example = calls.example(_unlike(calls))
        try:
            form.write(traced(model, example, calls.varying(example)), path)
            return 0
        except Exception:
            # Each release raises different errors for a model that can take only one size.
            traceback.print_exc()
            print("not with any number of examples at once: trying with one", file=sys.stderr)
    form.write(traced_fixed(model, calls.example(1)), path)
    return 1


def _unlike(calls: Calls) -> int:
    taken = {size for tensor in calls.example(2).tensors for size in tensor.shape[1:]}
    return next(count for count in range(3, 1 << 16) if count not in taken)


def _difference(model: nn.Module, run: Run, calls: Calls, *, batch: int) -> float:
    """Return the largest difference over all examples, as a part of the largest value that the model gives."""
    gaps: list[float] = []
    scales: list[float] = []
    for call in calls.batches(batch):
        ours = outputs_of(model(*call.args, **call.kwargs))
        theirs = run(call)
        if [tensor.shape for tensor in ours] != [tensor.shape for tensor in theirs]:
            shapes = [[list(tensor.shape) for tensor in each] for each in (ours, theirs)]
            raise ExportDiffers(f"the model gives tensors of {shapes[0]} and the file of {shapes[1]}")
        if not ours:
            raise Misuse(f"{type(model).__name__} gives no tensor that could be compared")
        gaps = gaps or [0.0] * len(ours)
        scales = scales or [0.0] * len(ours)
        for place_, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            gap, scale = _apart(one, other)
            gaps[place_], scales[place_] = max(gaps[place_], gap), max(scales[place_], scale)
    return max((gap / scale if scale else gap) for gap, scale in zip(gaps, scales, strict=True))


def _apart(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Return the largest distance of two values, and the largest finite value of ``one``. NaN equals NaN here."""
    ours, theirs = one.double(), other.double()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    gap = torch.where(same, 0.0, (ours - theirs).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)
    scale = torch.where(ours.isfinite(), ours.abs(), 0.0)
    return (gap.max().item(), scale.max().item()) if one.numel() else (0.0, 0.0)


def _why_refused(to: str, difference: float) -> str:
    return (
        f"the {to} file differs from the model by {difference:.2g} of its largest output on the held-out examples, "
        f"more than {LARGEST_DIFFERENCE:g}: it was removed"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Export a trained model. Started by shoal, not by hand.")
    parser.add_argument("settings", type=json.loads)
    parser.add_argument("--confined", type=json.loads, default=[], help="the limits in force, from the launcher")
    settings = ExportSettings.from_plain(parser.parse_args().settings)
    report = reporting("shoal-export")
    try:
        exported = export(settings, report)
    except BaseException as error:
        traceback.print_exc()
        where = place_of(error, settings.bundle_dir)
        report({"failed": {"reason": reason_of(error), "where": where, "differs": isinstance(error, ExportDiffers)}})
        return 1
    report({"exported": exported.to_plain()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
