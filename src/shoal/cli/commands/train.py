"""`shoal train`: prepare a task, start it on the cluster, watch it."""

from __future__ import annotations

import dataclasses
import json as json_module
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli import train_options
from shoal.cli.options import (
    DEFAULT_HOME,
    Aggregators,
    Codec,
    Detach,
    Endless,
    Epochs,
    Home,
    Json,
    Minutes,
    Pace,
    PlanKeys,
    TaskArguments,
    Topology,
    UntilAccuracy,
    UntilMetric,
    Workers,
)
from shoal.errors import Misuse

if TYPE_CHECKING:
    from pathlib import Path

    from shoal.cli.job_history import Story
    from shoal.runtime.operator import Operator


def train(
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="A folder, `file.py` or `file.py:Class` that defines a task."),
    ],
    workers: Workers = "",
    where: train_options.Where = None,
    until_accuracy: UntilAccuracy = None,
    until: UntilMetric = None,
    epochs: Epochs = None,
    minutes: Minutes = None,
    endless: Endless = False,
    batch_size: train_options.BatchSize = None,
    learning_rate: train_options.LearningRate = None,
    momentum: train_options.Momentum = None,
    pace: Pace = None,
    topology: Topology = None,
    aggregators: Aggregators = None,
    codec: Codec = None,
    work: train_options.Work = None,
    budget_s: train_options.BudgetS = None,
    set_: TaskArguments = None,
    plan: PlanKeys = None,
    start: train_options.Start = "",
    shared: train_options.Shared = "",
    start_when: train_options.StartWhen = None,
    portable: train_options.Portable = False,
    name: Annotated[str, typer.Option(help="What to call the job.", show_default="the task's folder or file")] = "",
    detach: Detach = False,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Train a task on the cluster and watch it. Ctrl-C leaves it running; `shoal attach` returns.

    Example:  `shoal train examples/mnist --workers 2:8 --until-accuracy 0.98`

    An end you name (accuracy, another metric, epochs, minutes; whichever comes first; or none) replaces the task's own.

    Examples that stay on the devices:  `shoal train TASK --plan data=local --work sized --budget-s 3 --endless`
    """
    from shoal.trainer.find import find_task

    chosen = overrides(
        workers=workers,
        until=ends_typed(
            until_accuracy=until_accuracy, epochs=epochs, minutes=minutes, endless=endless, until=until or ()
        ),
        numbers={
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "momentum": momentum,
            "pace": pace,
            "topology": topology,
            "aggregators": aggregators,
            "codec": codec,
            "work": work,
            "budget_s": budget_s,
            "where": where,
        },
        pairs=plan or (),
    )
    arguments = pairs_of(set_ or (), option="--set")
    _check_shared(shared, start_when, chosen)
    # Before the cluster is asked: a wrong path should be told at once.
    find_task(task)
    order = _Order(
        task=task,
        name=name,
        kwargs=arguments,
        plan=chosen,
        start=start,
        shared=shared,
        start_when=start_when or 1,
        portable=portable,
    )
    _submit(order, home, detach=detach, json=json)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Order:
    """What is to be trained."""

    task: str
    name: str
    kwargs: dict[str, Any]
    plan: dict[str, Any]
    start: str
    shared: str
    start_when: int
    portable: bool


def _check_shared(shared: str, start_when: int | None, plan: Mapping[str, Any]) -> None:
    """Refuse, before anything is asked, what a shared set cannot go with."""
    from shoal.runtime.shared_sets import check_set

    if start_when is not None and not shared:
        raise Misuse("--start-when counts the entries of a shared set: name it with --shared SET")
    if shared:
        check_set(shared)
        if plan.get("data") == "local":
            raise Misuse('--shared has no effect with data = "local": each device trains on its own examples')


def _submit(order: _Order, home: Path, *, detach: bool, json: bool) -> None:
    """Prepare the task, start its job, and watch it unless it is left to the cluster."""
    from shoal.cli import screen
    from shoal.cli.commands.attach import finish, left, watch_job
    from shoal.cli.connect import with_operator

    started = ""

    async def begin(operator: Operator) -> Story | None:
        nonlocal started
        started = await operator.prepare_and_submit(
            order.task,
            name=order.name,
            kwargs=order.kwargs,
            plan=order.plan,
            start=order.start,
            shared=order.shared,
            start_when=order.start_when,
            portable=order.portable,
            on_progress=screen.Teller(screen.err()),
        )
        screen.say(f"Job {started} is queued.")
        return None if detach else await watch_job(operator, started, to_stderr=json)

    try:
        story = with_operator(home, begin)
    except KeyboardInterrupt:
        raise left(started) from None
    if story is not None:
        finish(story, json=json)
    elif json:
        screen.print_json({"job": started})
    else:
        print(started)


def ends_typed(
    *,
    until_accuracy: float | None,
    epochs: int | None,
    minutes: float | None,
    endless: bool,
    until: Sequence[str] = (),
) -> dict[str, Any]:
    """Where a job ends, in the plan's words; None: not typed."""
    from shoal.plan import Until
    from shoal.until import parse_until

    typed = {"--until-accuracy": until_accuracy, "--until": until or None, "--epochs": epochs, "--minutes": minutes}
    given = [name for name, value in typed.items() if value is not None]
    if endless and given:
        raise Misuse(f"--endless goes on until it is stopped, and {given[0]} ends it: choose one of them")
    seconds = None if minutes is None else minutes * 60
    ends = Until()
    for text in until:
        ends |= parse_until(text)
    return {
        "accuracy": until_accuracy,
        "epochs": epochs,
        "seconds": seconds,
        "endless": endless or None,
        "goals": ends.goals or None,
        "plateaus": ends.plateaus or None,
    }


def overrides(
    *, workers: str, until: Mapping[str, Any], numbers: Mapping[str, float | str | None], pairs: Sequence[str]
) -> dict[str, Any]:
    """What the person typed about the plan, and nothing else: the rest is the task's to say."""
    from shoal.plan import Plan, Until, parse_workers

    typed: dict[str, Any] = {}
    if workers:
        typed["workers_min"], typed["workers_max"] = parse_workers(workers)
    typed |= {name: value for name, value in numbers.items() if value is not None}
    typed |= plan_values(pairs)
    if any(value is not None for value in until.values()):
        typed["until"] = Until(**{name: value for name, value in until.items() if value is not None})
    # Built once to be told now, by the plan's own words, what is wrong with a value.
    Plan(**_companions(typed) | typed)
    return typed


def plan_values(pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``--plan KEY=VALUE`` as values of the types that the plan has."""
    return {name: _plan_value(name, value) for name, value in pairs_of(pairs, option="--plan").items()}


def _companions(typed: Mapping[str, Any]) -> dict[str, Any]:
    """What the task's own plan may say for a typed choice to make sense. Whether it does is seen when the two meet."""
    from shoal.plan_rules.choices import FRESH_STEPS_LEAST, INNER_ADAPTIVE, SIZED_ONLY

    wanted: dict[str, Any] = {}
    if typed.get("work") == "sized" or ("work" not in typed and any(typed.get(name) for name in SIZED_ONLY)):
        wanted |= {"work": "sized", "data": "local"}
        if not (typed.get("budget_joules") or typed.get("budget_battery_percent")):
            wanted["budget_s"] = 1.0
    if typed.get("staleness") == "similar" or typed.get("share_labels"):
        wanted |= {"share_labels": True, "data": "local"}
    if typed.get("local_epochs") or typed.get("sampling") == "by_examples":
        wanted["data"] = "local"
    if typed.get("sampling") in ("uniform", "by_examples"):
        wanted["cohort"] = 8
    if typed.get("inner") in INNER_ADAPTIVE and "lease_batches" not in typed:
        wanted["lease_batches"] = FRESH_STEPS_LEAST * typed.get("accumulate", 1)
    elif typed.get("accumulate", 1) > 1 and "lease_batches" not in typed:
        wanted["lease_batches"] = typed["accumulate"]
    return wanted


def _plan_value(name: str, value: object) -> object:
    """A value of the type that the plan's default has."""
    from shoal.plan import Plan, unknown_key

    known = {field.name: getattr(Plan(), field.name) for field in dataclasses.fields(Plan)}
    if name == "until":
        ends = "--until, --until-accuracy, --epochs, --minutes or --endless"
        raise Misuse(f"the end of a job is set with {ends}, not with --plan")
    if name not in known:
        raise Misuse(unknown_key(name))
    # A number that is left out until it is said.
    wanted = float if known[name] is None else type(known[name])
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        kinds = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}
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
