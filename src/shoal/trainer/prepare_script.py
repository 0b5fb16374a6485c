"""Turns a script into a job's starting point: runs it as far as ``shoal.worker``, which has the model. Imports torch.

No batch is tried: the data may be only on the devices.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from shoal import loop
from shoal.errors import Misuse
from shoal.loop import Evaluate, LoopLease
from shoal.task import Task
from shoal.trainer.first_files import write_first
from shoal.trainer.importer import file_of
from shoal.trainer.placement import place
from shoal.trainer.prepared_job import PreparedJob
from shoal.trainer.report import Report
from shoal.trainer.script import checked_model, run_script, seed_all
from shoal.trainer.shards import NO_EXAMPLES

#: The plan of a script's job, unless the person who starts it chooses otherwise. Each device has its data and keeps its
#: optimiser, so a lease cannot be trained again elsewhere. A version is the mean of the devices' models. The leader
#: does not see batches: ``batch_size`` is the most examples that a lease counts for.
SCRIPT_PLAN: dict[str, Any] = {
    "data": "local",
    "inner_state": "kept",
    "momentum": 0.0,
    "batch_size": 1 << 18,
    "lease_batches": 1,
}


class Reached(BaseException):
    """Ends a script where it calls ``shoal.worker``. Not an Exception, so that no script catches it by accident."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__("the script has built its model")
        self.model = model


class _Preparing:
    def attach(self, model: Any, optimizer: Any, evaluate: Evaluate | None) -> None:
        raise Reached(checked_model(model, optimizer))

    def draw_apart(self) -> None:
        """Do nothing: the script ends before it draws a batch."""

    def exchange(self, done: LoopLease | None) -> LoopLease | None:
        raise Misuse("no lease is trained while a job is prepared")


def prepare_script(
    bundle_dir: Path,
    entry: str,
    arguments: dict[str, Any],
    *,
    seed: int,
    out: Path,
    key: str,
    report: Report,
    start: Path | None = None,
) -> PreparedJob:
    """Run the script until it has a model, and write the model below ``out``."""
    report({"step": "script", "name": file_of(entry)})
    placed = place(Task(), _model_of(bundle_dir, entry, arguments, seed=seed))
    first = write_first(placed, out=out, key=key, start=start, report=report)
    return PreparedJob(
        model=first.model,
        model_sha256=first.model_sha256,
        layout=first.layout,
        base=first.base,
        train=NO_EXAMPLES,
        test=NO_EXAMPLES,
        shards=str(out / "shards"),
        plan=SCRIPT_PLAN,
    )


def _model_of(bundle_dir: Path, entry: str, arguments: dict[str, Any], *, seed: int) -> nn.Module:
    seed_all(seed)
    loop.connect(_Preparing())
    try:
        run_script(bundle_dir, entry, arguments)
    except Reached as reached:
        return reached.model
    finally:
        loop.connect(None)
    raise Misuse(f"{file_of(entry)} ended without a call of shoal.worker: see docs/loops.md")
