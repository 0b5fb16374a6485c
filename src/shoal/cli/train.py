"""`shoal train`: prepare a task, start it on the cluster, watch it."""

from __future__ import annotations

import dataclasses
import json as json_module
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.options import (
    DEFAULT_HOME,
    Codec,
    Epochs,
    Home,
    Json,
    Pace,
    Shape,
    SubLeaders,
    TaskArguments,
    UntilAccuracy,
)
from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.cli.story import Story
    from shoal.runtime.operator import Operator


def train(
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="A folder, `file.py` or `file.py:Class` that defines a task."),
    ],
    workers: Annotated[
        str, typer.Option(metavar="MIN:MAX", help="How many devices at least and at most.", show_default=False)
    ] = "",
    until_accuracy: UntilAccuracy = None,
    epochs: Epochs = None,
    minutes: Annotated[float | None, typer.Option(metavar="M", help="End after M minutes.")] = None,
    batch_size: Annotated[int | None, typer.Option(metavar="N", help="Examples in one step of one device.")] = None,
    learning_rate: Annotated[float | None, typer.Option(metavar="X", help="The size of a step.")] = None,
    momentum: Annotated[float | None, typer.Option(metavar="X", help="How much of the last step is kept.")] = None,
    pace: Pace = None,
    shape: Shape = None,
    sub_leaders: SubLeaders = None,
    codec: Codec = None,
    work: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Who trains what: leased (the next to whoever is ready) or fixed (shares)."),
    ] = None,
    set_: TaskArguments = None,
    plan: Annotated[
        list[str] | None,
        typer.Option("--plan", metavar="KEY=VALUE", help="Any other number of the plan; may be repeated."),
    ] = None,
    name: Annotated[str, typer.Option(help="What to call the job.", show_default="the task's folder or file")] = "",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start the job and return at once.")] = False,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Train a task on the cluster and watch it. Ctrl-C leaves it running; `shoal attach` returns.

    Example:  `shoal train examples/mnist --workers 2:8 --until-accuracy 0.98`

    An end you name (accuracy, epochs, minutes; whichever comes first) replaces the task's own.
    """
    from shoal.cli import console
    from shoal.cli.attach import finish, left, watch_job
    from shoal.cli.reach import with_operator
    from shoal.training.find import find_task

    chosen = overrides(
        workers=workers,
        until={"accuracy": until_accuracy, "epochs": epochs, "seconds": None if minutes is None else minutes * 60},
        numbers={
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "momentum": momentum,
            "pace": pace,
            "shape": shape,
            "sub_leaders": sub_leaders,
            "codec": codec,
            "work": work,
        },
        pairs=plan or (),
    )
    arguments = pairs_of(set_ or (), option="--set")
    # Before the cluster is asked: a wrong path should be told at once.
    find_task(task)
    started = ""

    async def start(operator: Operator) -> Story | None:
        nonlocal started
        started = await operator.prepare_and_submit(
            task, name=name, kwargs=arguments, plan=chosen, on_progress=console.Teller(console.err())
        )
        console.say(f"Job {started} is queued.")
        return None if detach else await watch_job(operator, started, to_stderr=json)

    try:
        story = with_operator(home, start)
    except KeyboardInterrupt:
        raise left(started) from None
    if story is not None:
        finish(story, json=json)
    elif json:
        console.print_json({"job": started})
    else:
        print(started)


def overrides(
    *, workers: str, until: dict[str, float | None], numbers: Mapping[str, float | str | None], pairs: Sequence[str]
) -> dict[str, Any]:
    """What the person typed about the plan, and nothing else: the rest is the task's to say."""
    from shoal.plan import Plan, Until, parse_workers

    typed: dict[str, Any] = {}
    if workers:
        typed["workers_min"], typed["workers_max"] = parse_workers(workers)
    typed |= {name: value for name, value in numbers.items() if value is not None}
    for name, value in pairs_of(pairs, option="--plan").items():
        typed[name] = _plan_value(name, value)
    if any(value is not None for value in until.values()):
        typed["until"] = Until(**until)  # type: ignore[arg-type]
    # Built once to be told now, by the plan's own words, what is wrong with a value.
    dataclasses.replace(Plan(), **typed)
    return typed


def _plan_value(name: str, value: object) -> object:
    """A value of the type that the plan's default has."""
    from shoal.plan import Plan

    known = {field.name: getattr(Plan(), field.name) for field in dataclasses.fields(Plan)}
    if name == "until":
        raise Misuse("the end of a job is set with --until-accuracy, --epochs and --minutes, not with --plan")
    if name not in known:
        raise Misuse(f"a plan has no {name!r}; it has {', '.join(sorted(set(known) - {'until'}))}")
    wanted = type(known[name])
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        kinds = {int: "a whole number", float: "a number", str: "a word"}
        raise Misuse(f"--plan {name}={value}: {name} is {kinds[wanted]}")
    return value


def pairs_of(pairs: Sequence[str], *, option: str) -> dict[str, Any]:
    """``key=value`` texts as a dict. A value is JSON, or else the text itself."""
    values: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key.isidentifier():
            raise Misuse(f"{option} takes KEY=VALUE, such as {option} width=64; {pair!r} is not")
        if key in values:
            raise Misuse(f"{option} {key} is given twice")
        try:
            values[key] = json_module.loads(text, parse_constant=_refuse_constant)
        except ValueError:
            values[key] = text
    return values


def _refuse_constant(text: str) -> float:
    raise Misuse(f"{text} is not a number that JSON knows")
