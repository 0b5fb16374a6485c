"""Turns a task into a job's starting point: its first model, and its examples in shards.

Run as ``python -m shoal.trainer.prepare_child``. Imports torch and the task's code, so the machine that starts a job
runs it as a separate process. Progress goes to standard output as one JSON object per line; the last line is
``{"prepared": ...}`` or ``{"failed": ...}``.

The cache trusts the code to decide the data: the same bundle, entry, arguments and seed are prepared once, even if
files the task reads elsewhere have changed. ``--fresh`` prepares again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from torch import nn

from shoal.data.raw_columns import RawColumn
from shoal.data.raw_values import made_up_rows
from shoal.data.shared_entries import SHARED_VARIABLE
from shoal.deprecated import DeprecatedWarning
from shoal.errors import Misuse
from shoal.plan import Plan
from shoal.store.readable import write_readable
from shoal.task import Split, Task
from shoal.trainer.arrays import count_of, write_examples
from shoal.trainer.bundle import unpack
from shoal.trainer.child_loop import place_of, reason_of
from shoal.trainer.cost import gmacs_per_example
from shoal.trainer.first_files import write_first
from shoal.trainer.importer import is_script, make_task
from shoal.trainer.outside_files import opened_outside, told_of
from shoal.trainer.placement import Placed, place
from shoal.trainer.prepared_job import DIVIDED, PreparedJob, cache_key
from shoal.trainer.report import Report, reporting
from shoal.trainer.shards import NO_EXAMPLES, Examples, Manifest
from shoal.trainer.start import start_digest
from shoal.trainer.steps import build_model
from shoal.trainer.trial import try_batch
from shoal.wire.encoding import to_json

_SPLITS: tuple[Split, Split] = ("train", "test")


def prepare(
    bundle_dir: Path,
    entry: str,
    arguments: dict[str, Any],
    *,
    seed: int,
    out: Path,
    key: str,
    report: Report,
    data: str = "",
    start: Path | None = None,
) -> PreparedJob:
    """Build the model, write it and the examples below ``out``, try one batch, and describe what was written.

    If ``data`` is local, or is not given and the task's own plan has it local, there are no examples to train on here:
    each device has its own. If it is ``divided``, the examples here are what simulated devices have, each a part.
    """
    has_shared = SHARED_VARIABLE in os.environ
    if is_script(entry):
        if has_shared:
            raise Misuse("a script reads its examples itself, so --shared has no effect: write a task, or leave it out")
        from shoal.trainer.prepare_script import prepare_script

        return prepare_script(bundle_dir, entry, arguments, seed=seed, out=out, key=key, start=start, report=report)
    report({"step": "model"})
    task = make_task(bundle_dir, entry, arguments)
    with opened_outside(bundle_dir) as opened:
        model = build_model(task, seed)
    if opened:
        report({"step": "note", "told": told_of(opened, type(task).__name__)})
    placed = place(task, model)
    first = write_first(placed, out=out, key=key, start=start, report=report)
    where = data or (task.plan.data if task.plan else "")
    is_local = where == "local"
    if has_shared and is_local:
        raise Misuse('--shared has no effect with data = "local": each device trains on its own examples')
    if placed.own and where not in ("local", DIVIDED):
        raise Misuse(
            f"{type(task).__name__}.placement says own for {next(iter(placed.own))}: a device has a part of its own "
            'only where it has examples of its own; set data = "local" in the plan'
        )
    splits = _SPLITS[1:] if is_local else _SPLITS
    manifests = {"train": NO_EXAMPLES} | {split: _split(task, split, out / "shards", report) for split in splits}
    if not manifests["train"].examples and not is_local:
        raise Misuse(f"{type(task).__name__}.examples('train') holds no examples")
    sets = {
        split: Examples([out / "shards" / shard.sha256 for shard in each.shards]) for split, each in manifests.items()
    }
    columns = task._declared_columns() if is_local else {}
    if columns and len(sets["test"]):
        _check_held_out(type(task).__name__, sets["test"], columns)
    elif columns:
        # Only devices have examples. The task's code can be tried all the same.
        sets["test"] = Examples.of(made_up_rows(columns))
    cost = _cost(task, model, placed, sets[splits[0]])
    _try(task, model, placed, sets, seed=seed, report=report)
    for split, manifest in manifests.items():
        _write_json(out / key / f"{split}.json", manifest.to_plain())
    return PreparedJob(
        model=first.model,
        model_sha256=first.model_sha256,
        layout=first.layout,
        base=first.base,
        train=manifests["train"],
        test=manifests["test"],
        shards=str(out / "shards"),
        plan=to_json(task.plan) if task.plan else {},
        gmacs_per_example=cost,
    )


def _try(
    task: Task,
    model: nn.Module,
    placed: Placed,
    sets: Mapping[str, Examples],
    *,
    seed: int,
    report: Report,
) -> None:
    """Try one batch, so that a mistake in the task's code is found here and not on every device."""
    # A split that is empty here, such as the devices' own examples, is replaced by the other one.
    train, test = (sets[split] if len(sets[split]) else sets[other] for split, other in (_SPLITS, _SPLITS[::-1]))
    if not len(train):
        why = "the devices have the examples, and none are held out here"
        report({"step": "untried", "reason": why})
        return
    report({"step": "trial"})
    batch_size = (task.plan or Plan()).batch_size
    try_batch(task, model, placed, train=train, test=test, batch_size=batch_size, seed=seed)


def _check_held_out(name: str, held_out: Examples, columns: Mapping[str, RawColumn]) -> None:
    """Refuse held-out examples that are not what the devices' rows are declared to be."""
    found = held_out.take(np.arange(1))
    for each in sorted(columns.keys() | found.keys()):
        column, declared = found.get(each), columns.get(each)
        here = f"{column.dtype} {list(column.shape[1:])}" if isinstance(column, np.ndarray) else "no array"
        if declared is None or here != f"{declared.dtype} {list(declared.shape)}":
            told = declared if declared is not None else "no such column"
            raise Misuse(f"{name}.examples('test') has {each} as {here}, and columns says {told}")


def _cost(task: Task, model: nn.Module, placed: Placed, first: Examples) -> float:
    """Return what one example costs, from the first two, or 0 if it cannot be measured: the job can run without it."""
    if not len(first):
        return 0.0
    try:
        # A set of one example gives that one twice.
        return gmacs_per_example(task, model, placed, first.take(np.arange(2) % len(first)), examples=2)
    except Exception as error:
        print(f"what an example costs is not known: {reason_of(error)}", file=sys.stderr)
        return 0.0


def _split(task: Task, split: Split, directory: Path, report: Report) -> Manifest:
    report({"step": "examples", "split": split})
    examples = task.examples(split)
    if examples is None:
        return NO_EXAMPLES
    count = count_of(examples)
    return write_examples(
        examples,
        directory,
        read=lambda done: report({"step": "read", "split": split, "examples": done}),
        wrote=lambda done: report({"step": "write", "split": split, "examples": done, "of": count or done}),
    )


def _write_json(file: Path, plain: dict[str, Any]) -> None:
    write_readable(file, lambda out: out.write(json.dumps(plain).encode()))


def main() -> int:
    parser = argparse.ArgumentParser(description="Prepare a task: write its first model and its examples.")
    parser.add_argument("--bundle", type=Path, required=True, help="the zip that shoal.trainer.bundle.pack made")
    parser.add_argument("--entry", required=True, help="module:Class")
    parser.add_argument("--arguments", default="{}", help="the task's constructor arguments, as JSON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="where the cache lives")
    parser.add_argument("--data", default="", help="where examples live, if that is not what the task's plan says")
    parser.add_argument("--shared", type=Path, help="a folder with the files of a shared set, each named by its hash")
    parser.add_argument("--start", type=Path, help="a safetensors file whose tensors the first model takes")
    parser.add_argument("--fresh", action="store_true", help="ignore what was prepared before")
    given = parser.parse_args()
    report = reporting("shoal-prepare")
    _report_deprecated(report)
    with tempfile.TemporaryDirectory(prefix="shoal-prepare-") as directory:
        try:
            prepared = _cached(given, Path(directory).resolve(), report)
        except BaseException as error:
            traceback.print_exc()
            where = place_of(error, str(Path(directory).resolve()))
            report({"failed": {"reason": reason_of(error), "where": where}})
            return 1
    report({"prepared": prepared.to_plain()})
    return 0


def _report_deprecated(report: Report) -> None:
    """Report what a task's plan should no longer use as a note: nobody reads the standard error of this process."""
    shown = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, DeprecatedWarning):
            report({"step": "note", "told": str(message)})
        else:
            shown(message, category, filename, lineno, file, line)

    warnings.showwarning = show


def _cached(given: argparse.Namespace, directory: Path, report: Report) -> PreparedJob:
    bundle = given.bundle.read_bytes()
    arguments = json.loads(given.arguments)
    out = given.out.resolve()
    start = start_digest(given.start) if given.start else ""
    shared = sorted(path.name for path in given.shared.iterdir()) if given.shared else []
    key = cache_key(bundle, given.entry, arguments, given.seed, given.data, start, shared)
    if not given.fresh and (found := PreparedJob.find(out, key)):
        report({"step": "cached"})
        return found
    unpack(bundle, directory)
    os.environ.pop(SHARED_VARIABLE, None)
    if given.shared:
        os.environ[SHARED_VARIABLE] = str(given.shared.absolute())
    prepared = prepare(
        directory,
        given.entry,
        arguments,
        seed=given.seed,
        out=out,
        key=key,
        report=report,
        data=given.data,
        start=given.start,
    )
    _write_json(out / key / "prepared.json", prepared.to_plain())
    return prepared


if __name__ == "__main__":
    sys.exit(main())
