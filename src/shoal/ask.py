"""``shoal.tally`` and ``shoal.evaluate``: put a question to devices, and wait for the answers. No torch here."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.api import TaskSource, fitted
from shoal.errors import JobFailed
from shoal.questions import (
    METRICS,
    Answers,
    Tally,
    evaluated,
    evaluation_of,
    question_plan,
    tallied,
    tally_of,
    why_not_whole,
)
from shoal.result import Result
from shoal.task import Task
from shoal.trainer.find import source_of


def tally(
    task: Tally,
    *,
    devices: int,
    plan: Mapping[str, Any] | None = None,
    cluster: str | Path | None = None,
    progress: bool = True,
) -> Answers:
    """Have this many devices count, and return the sums.

    ``plan`` has other keys, such as ``{"trust": "sealed"}``. Without ``cluster`` the devices are processes here.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-tally-") as scratch:
        path, entry = source_of(task, Path(scratch))
        source = TaskSource(*tally_of(path, entry, Path(scratch, "code"), plan), task.arguments)
        answers = Path(scratch, "answers.safetensors")
        chosen = question_plan(devices, plan)
        result = fitted(source, workers=devices, chosen=chosen, cluster=cluster, save=answers, progress=progress)
        return tallied(result.job, _file_of(result, devices), devices=devices)


def evaluate(
    task: Task,
    model: str | Path,
    *,
    devices: int,
    metrics: Sequence[str] = METRICS,
    plan: Mapping[str, Any] | None = None,
    cluster: str | Path | None = None,
    progress: bool = True,
) -> Answers:
    """Have this many devices evaluate a model on their own examples, and return the means over all of these.

    ``model`` is a safetensors file, or with ``cluster`` a job of it, or ``JOB@VERSION``.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-evaluate-") as scratch:
        path, entry = source_of(task, Path(scratch))
        code = evaluation_of(path, entry, Path(scratch, "code"))
        source = TaskSource(*code, {"arguments": task.arguments, "metrics": list(metrics)})
        result = fitted(
            source,
            workers=devices,
            chosen=question_plan(devices, plan, is_tally=False),
            start=model,
            cluster=cluster,
            save=Path(scratch, "answers.safetensors"),
            progress=progress,
        )
        return evaluated(result.job, _file_of(result, devices), devices=devices, metrics=metrics)


def _file_of(result: Result, devices: int) -> Path:
    if result.path is None or not result.version:
        why = f"job {result.job} {result.state} before devices had answered: {result.reason}"
        raise JobFailed(why, job=result.job)
    if (lacks := why_not_whole(devices=devices, took_part=result.took_part, version=result.version)) is not None:
        raise JobFailed(f"job {result.job}: {lacks}", job=result.job)
    return result.path
