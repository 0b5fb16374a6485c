"""Turn a task into a job's starting point: its first model, and its examples in shards.

Run as ``python -m shoal.training.prepare``. Imports torch and the task's code, so the machine that starts a job runs
it as a process of its own. Progress goes to standard output as one JSON object a line; the last line is
``{"prepared": ...}`` or ``{"failed": ...}``.

The cache trusts the code to decide the data: the same bundle, entry, arguments and seed are prepared once, even if
files the task reads elsewhere have changed. ``--fresh`` prepares again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import numpy as np
import torch
from torch import nn

from shoal.errors import Misuse
from shoal.task import Split, Task
from shoal.training.bundle import unpack
from shoal.training.cost import gmacs_per_example
from shoal.training.flat import layout_of, read_into
from shoal.training.importer import make_task
from shoal.training.inside import TRAINER_VARIABLE
from shoal.training.prepared import LAYOUT_NOTE, Prepared, cache_key
from shoal.training.serve import place_of, print_to_stderr, reason_of
from shoal.training.shards import Array, Examples, Manifest, write_shards
from shoal.training.steps import build_model
from shoal.wire import tensors
from shoal.wire.encoding import to_json

Report: TypeAlias = Callable[[dict[str, Any]], None]

_SPLITS: tuple[Split, Split] = ("train", "test")
_PROGRESS_EVERY = 4096


def prepare(
    bundle_dir: Path, entry: str, arguments: dict[str, Any], *, seed: int, out: Path, key: str, report: Report
) -> Prepared:
    """Build the model, write it and the examples below ``out``, and describe what was written."""
    report({"step": "model"})
    task = make_task(bundle_dir, entry, arguments)
    model_file = out / key / "model.safetensors"
    model_file.parent.mkdir(parents=True, exist_ok=True)
    layout = layout_of(model := build_model(task, seed))
    flat = np.empty(layout.size, np.float32)
    read_into(flat, model, layout)
    with _draft(model_file).open("wb") as file:
        tensors.write(file, layout.views(flat), {LAYOUT_NOTE: layout.to_json()})
    _draft(model_file).replace(model_file)
    manifests = {split: _split(task, split, out / "shards", report) for split in _SPLITS}
    if not manifests["train"].examples:
        raise Misuse(f"{type(task).__name__}.examples('train') holds no examples")
    for split, manifest in manifests.items():
        _write_json(out / key / f"{split}.json", manifest.to_plain())
    return Prepared(
        model=str(model_file),
        model_sha256=hashlib.sha256(model_file.read_bytes()).hexdigest(),
        layout=layout,
        train=manifests["train"],
        test=manifests["test"],
        shards=str(out / "shards"),
        plan=to_json(task.plan) if task.plan else {},
        gmacs_per_example=_cost(task, model, manifests["train"], out / "shards"),
    )


def _cost(task: Task, model: nn.Module, manifest: Manifest, directory: Path) -> float:
    """What one example costs, from the first two; 0 if that cannot be told, which is no reason to refuse the job."""
    try:
        first = Examples([directory / manifest.shards[0].sha256])
        # Of a set of one example, that one twice.
        return gmacs_per_example(task, model, *first.take(np.arange(2) % len(first)))
    except Exception as error:
        print(f"what an example costs is not known: {reason_of(error)}", file=sys.stderr)
        return 0.0


def _split(task: Task, split: Split, directory: Path, report: Report) -> Manifest:
    report({"step": "examples", "split": split})
    x, y = materialise(
        task.examples(split), report=lambda done: report({"step": "read", "split": split, "examples": done})
    )
    return write_shards(
        x,
        y,
        directory,
        progress=lambda done: report({"step": "write", "split": split, "examples": done, "of": len(x)}),
    )


def materialise(examples: Any, *, report: Callable[[int], None] = lambda done: None) -> tuple[Array, Array]:
    """A pair of arrays from what ``Task.examples`` gave: a pair of arrays or tensors, or a Dataset of pairs."""
    if isinstance(examples, tuple | list):
        if len(examples) != 2:
            raise Misuse(f"examples() gave {len(examples)} things; it gives the pair (x, y)")
        return _array(examples[0], "x"), _array(examples[1], "y")
    indexable = hasattr(examples, "__getitem__") and hasattr(examples, "__len__")
    if not indexable or isinstance(examples, np.ndarray | torch.Tensor):
        raise Misuse(f"examples() gave {type(examples).__name__}; it gives a pair (x, y) or a Dataset with a length")
    return _stack(examples, report)


def _stack(dataset: Any, report: Callable[[int], None]) -> tuple[Array, Array]:
    count = len(dataset)
    if not count:
        return np.zeros((0, 1), np.float32), np.zeros(0, np.int64)
    columns: list[Array] = []
    for index in range(count):
        row = dataset[index]
        if not isinstance(row, tuple | list) or len(row) != 2:
            raise Misuse(f"item {index} of the dataset is not a pair (x, y)")
        pair = (_array(row[0], "x"), _array(row[1], "y"))
        if not columns:
            columns = [np.empty((count, *value.shape), value.dtype) for value in pair]
        for column, value, name in zip(columns, pair, "xy", strict=True):
            if value.shape != column.shape[1:]:
                raise Misuse(f"item {index} of the dataset has {name} of shape {value.shape}, not {column.shape[1:]}")
            column[index] = value
        if (index + 1) % _PROGRESS_EVERY == 0:
            report(index + 1)
    return columns[0], columns[1]


def _array(value: Any, name: str) -> Array:
    array: Array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.dtype == object:
        raise Misuse(f"{name} is not an array of numbers: make every example the same shape")
    # Twice the bytes on every link, for digits that float32 models do not read.
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _draft(file: Path) -> Path:
    return file.with_name(f".{file.name}-{os.getpid()}")


def _write_json(file: Path, plain: dict[str, Any]) -> None:
    _draft(file).write_text(json.dumps(plain))
    _draft(file).replace(file)


def _reporter(stream: TextIO) -> Report:
    def report(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=stream, flush=True)

    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="Prepare a task: write its first model and its examples.")
    parser.add_argument("--bundle", type=Path, required=True, help="the zip that shoal.training.bundle.pack made")
    parser.add_argument("--entry", required=True, help="module:Class")
    parser.add_argument("--arguments", default="{}", help="the task's constructor arguments, as JSON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="where the cache lives")
    parser.add_argument("--fresh", action="store_true", help="ignore what was prepared before")
    given = parser.parse_args()
    # The real standard output carries our lines; what the task prints goes to the log.
    report = _reporter(os.fdopen(os.dup(1), "w"))
    print_to_stderr()
    sys.argv = ["shoal-prepare"]
    os.environ[TRAINER_VARIABLE] = "1"
    with tempfile.TemporaryDirectory(prefix="shoal-prepare-") as directory:
        try:
            prepared = _cached(given, Path(directory).resolve(), report)
        except BaseException as error:
            traceback.print_exc()
            report(
                {
                    "failed": {
                        "reason": reason_of(error),
                        "where": place_of(error, str(Path(directory).resolve())),
                    }
                }
            )
            return 1
    report({"prepared": prepared.to_plain()})
    return 0


def _cached(given: argparse.Namespace, directory: Path, report: Report) -> Prepared:
    bundle = given.bundle.read_bytes()
    arguments = json.loads(given.arguments)
    out = given.out.resolve()
    key = cache_key(bundle, given.entry, arguments, given.seed)
    if not given.fresh and (found := Prepared.find(out, key)):
        report({"step": "cached"})
        return found
    unpack(bundle, directory)
    prepared = prepare(directory, given.entry, arguments, seed=given.seed, out=out, key=key, report=report)
    _write_json(out / key / "prepared.json", prepared.to_plain())
    return prepared


if __name__ == "__main__":
    sys.exit(main())
