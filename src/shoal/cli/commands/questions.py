"""`shoal tally` and `shoal evaluate`: questions to the examples of devices, without training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.commands.train import pairs_of, plan_values
from shoal.cli.options import DEFAULT_HOME, Home, Json, PlanKeys, TaskArguments
from shoal.errors import JobFailed

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.questions import Answers
    from shoal.runtime.operator import Operator

Devices = Annotated[int, typer.Option("--devices", metavar="N", help="How many devices answer.")]
Asked = Annotated[str, typer.Argument(metavar="TASK", help="A folder, `file.py` or `file.py:Class` with a task.")]


def tally(
    task: Asked,
    devices: Devices,
    set_: TaskArguments = None,
    plan: PlanKeys = None,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Sum up what devices count in their own examples. The task is a `shoal.Tally`.

    Example:  `shoal tally ages.py --devices 20 --plan trust=sealed`
    """
    import tempfile
    from pathlib import Path

    from shoal.questions import question_plan, tallied, tally_of
    from shoal.trainer.find import find_task

    path, entry = find_task(task)
    given, changes = pairs_of(set_ or (), option="--set"), plan_values(plan or ())
    chosen = question_plan(devices, changes)
    with tempfile.TemporaryDirectory(prefix="shoal-tally-") as folder:
        path, entry = tally_of(path, entry, Path(folder, "code"), changes)
        _answered(_Asked(path, entry, given, devices=devices, plan=chosen), tallied, home, json=json)


def evaluate(
    task: Asked,
    devices: Devices,
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="A safetensors file, a job of the cluster, or JOB@VERSION.")
    ],
    metrics: Annotated[
        str, typer.Option("--metrics", metavar="NAMES", help="Means to report, separated by commas.")
    ] = "loss,accuracy",
    set_: TaskArguments = None,
    plan: PlanKeys = None,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Evaluate a model on the own examples of devices. Nothing is trained, and no example leaves its device.

    Example:  `shoal evaluate digits.py --model digits.safetensors --devices 20`
    """
    import functools
    import tempfile
    from pathlib import Path

    from shoal.questions import evaluated, evaluation_of, question_plan
    from shoal.trainer.find import find_task

    names = [name.strip() for name in metrics.split(",") if name.strip()]
    path, entry = find_task(task)
    chosen = question_plan(devices, plan_values(plan or ()), is_tally=False)
    with tempfile.TemporaryDirectory(prefix="shoal-evaluate-") as folder:
        code, question = evaluation_of(path, entry, Path(folder, "code"))
        given = {"arguments": pairs_of(set_ or (), option="--set"), "metrics": names}
        asked = _Asked(code, question, given, devices=devices, plan=chosen, start=model)
        _answered(asked, functools.partial(evaluated, metrics=names), home, json=json)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question: the task that asks it, and of whom."""

    path: Path
    entry: str
    arguments: dict[str, Any]
    devices: int = field(kw_only=True)
    plan: dict[str, Any] = field(kw_only=True)
    start: str = field(kw_only=True, default="")


def _answered(asked: _Asked, read: Callable[..., Answers], home: Path, *, json: bool) -> None:
    """Put a question to the cluster, and print the answers."""
    import tempfile
    from pathlib import Path

    from shoal.cli import screen
    from shoal.cli.commands.attach import watch_job
    from shoal.cli.connect import with_operator
    from shoal.questions import why_not_whole

    async def ask(operator: Operator) -> Answers:
        tell = screen.Teller(screen.err())
        ready = await operator.prepare(
            asked.path, asked.entry, kwargs=asked.arguments, plan=asked.plan, start=asked.start, on_progress=tell
        )
        job = await operator.submit(ready, plan=asked.plan, on_progress=tell)
        await watch_job(operator, job, to_stderr=True)
        view = (await operator.status(job)).jobs[0]
        if view.progress is None or view.state != "finished" or not view.progress.version:
            raise JobFailed(f"job {job} {view.state} before devices had answered: {view.reason}", job=job)
        told = view.progress
        lacks = why_not_whole(devices=asked.devices, took_part=told.took_part, version=told.version)
        if lacks is not None:
            raise JobFailed(f"job {job}: {lacks}", job=job)
        with tempfile.TemporaryDirectory(prefix="shoal-answers-") as folder:
            file = Path(folder, "answers.safetensors")
            await operator.pull_model(job, file)
            return read(job, file, devices=asked.devices)

    answers = with_operator(home, ask)
    if json:
        screen.print_json(answers.to_plain())
        return
    print(f"{answers.devices} {'device' if answers.devices == 1 else 'devices'} answered")
    for name, value in answers.to_plain()["figures"].items():
        print(f"{name:<20} {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "  ".join(_shown(each) for each in value)
    return f"{value:,.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"
