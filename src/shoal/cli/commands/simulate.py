"""`shoal simulate`: what will this plan do on a thousand devices? The code that devices run, under a virtual clock."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.exits import Exit, exit_for_state
from shoal.cli.options import (
    DEFAULT_HOME,
    Aggregators,
    Codec,
    Epochs,
    Home,
    Json,
    Pace,
    TaskArguments,
    Topology,
    UntilAccuracy,
    UntilMetric,
)
from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.cli.comparison import PlanComparison
    from shoal.cli.simulation import Question, SimulationAnswer

_PICTURE = "simulation.png"


_Task = Annotated[
    str,
    typer.Argument(metavar="[TASK]", help="A folder, `file.py` or `file.py:Class` that defines a task."),
]

_Plan = Annotated[
    list[str] | None,
    typer.Option("--plan", metavar="KEY=VALUE", help="Anything else the plan says; may be repeated."),
]

_Versus = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A second plan beside it, which differs in this; may be repeated."),
]

_SystemOnly = Annotated[
    bool, typer.Option("--system-only", help="Train nothing: only time, bytes and devices. Fast; no torch.")
]

_Partition = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Divide the examples of this machine among the devices, for a plan with `data=local`: iid, dirichlet(0.1),"
        " pathological(2), by(writer), sizes(1.2, dirichlet(0.1)), drawn(20, 0.1).",
    ),
]

_Picture = Annotated[Path | None, typer.Option(metavar="PNG", help="Where to draw it.", show_default=_PICTURE)]

_Trace = Annotated[Path | None, typer.Option(metavar="FILE", help="Write every event and decision, as lines of JSON.")]

_Replay = Annotated[Path | None, typer.Option(metavar="TRACE", help="Play a trace again and tell where it differs.")]


_Seeds = Annotated[
    int, typer.Option(metavar="N", min=1, help="Simulate N seeds, from --seed on, and show means with intervals.")
]

_Processes = Annotated[
    int,
    typer.Option(metavar="N", min=1, help="With --seeds or --sweep: how many are simulated at a time."),
]

_Sweep = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=V,V", help="A plan for each value, side by side; may be repeated: all combinations."),
]

_Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Write every figure of seeds and sweeps as JSON.")]

_Devices = Annotated[int | None, typer.Option(metavar="N", min=1, help="How many devices.", show_default="20")]

_Profile = Annotated[
    str | None, typer.Option(metavar="NAME", help="What devices they are; see --profiles.", show_default="pi4-lan")
]

_FleetPath = Annotated[
    Path | None,
    typer.Option("--fleet", metavar="FILE", help="The devices of a file instead, in groups with their own links."),
]


def simulate(
    task: _Task = "",
    devices: _Devices = None,
    profile: _Profile = None,
    fleet: _FleetPath = None,
    until_accuracy: UntilAccuracy = None,
    until: UntilMetric = None,
    epochs: Epochs = None,
    minutes: Annotated[float | None, typer.Option(metavar="M", help="End after M virtual minutes.")] = None,
    pace: Pace = None,
    topology: Topology = None,
    aggregators: Aggregators = None,
    codec: Codec = None,
    set_: TaskArguments = None,
    plan: _Plan = None,
    versus: _Versus = None,
    partition: _Partition = "",
    faults: Annotated[Path | None, typer.Option(metavar="FILE", help="What goes wrong, and when.")] = None,
    seed: Annotated[int, typer.Option(metavar="S", help="The seed of everything that happens by chance.")] = 0,
    seeds: _Seeds = 1,
    sweep: _Sweep = None,
    processes: _Processes = 1,
    out: _Out = None,
    system_only: _SystemOnly = False,
    picture: _Picture = None,
    trace: _Trace = None,
    replay: _Replay = None,
    profiles: Annotated[bool, typer.Option("--profiles", help="List the profiles and end.")] = False,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Try a plan on simulated devices: the same code as on real ones, in virtual time.

    Example:  `shoal simulate examples/mnist --devices 100 --profile wifi-phones`

    Two plans:  `shoal simulate examples/mnist --topology star --versus topology=shard`

    Each device with its own data:  `shoal simulate examples/mnist --plan data=local --partition "dirichlet(0.1)"`
    """
    from shoal.cli.commands.train import ends_typed
    from shoal.cli.simulation import Question

    if profiles:
        _print_profiles(json=json)
        return
    if replay is not None:
        raise typer.Exit(_replay(replay, home, json=json))
    if not task:
        raise Misuse("name a task to simulate, such as `shoal simulate examples/mnist`; --profiles lists devices")
    question = Question.typed(
        task=task,
        devices=devices,
        profile=profile,
        until=ends_typed(
            until_accuracy=until_accuracy, epochs=epochs, minutes=minutes, endless=False, until=until or ()
        ),
        arguments=set_ or (),
        numbers={"pace": pace, "topology": topology, "aggregators": aggregators, "codec": codec},
        plan=plan or (),
        versus=versus or (),
        faults=faults,
        seed=seed,
        train=not system_only,
        partition=partition,
        fleet=fleet,
    )
    is_compared = seeds > 1 or bool(sweep) or out is not None
    if trace is not None:
        _refuse_trace(question, is_compared=is_compared)
    if is_compared:
        from shoal.cli import sweep as sweeps

        found = sweeps.answer(question, seeds=seeds, sweep=sweep or (), processes=processes)
        _print_compared(found, out=out, picture=picture, json=json)
        return
    if processes > 1:
        raise Misuse("--processes simulates several seeds or plans at a time: add --seeds or --sweep")
    raise typer.Exit(_answer(question, home, trace=trace, picture=picture, json=json))


def _refuse_trace(question: Question, *, is_compared: bool) -> None:
    if question.versus:
        raise Misuse("a trace is of one plan: leave out --versus, or --trace")
    if is_compared:
        raise Misuse("a trace is of one plan and one seed: leave out --seeds, --sweep and --out, or --trace")


def _answer(question: Question, home: Path, *, trace: Path | None, picture: Path | None, json: bool) -> Exit:
    from shoal.cli import screen

    began_s = time.monotonic()
    answers = question.answer(home, trace=trace)
    _tell(question, answers, seconds=time.monotonic() - began_s, json=json)
    _draw(answers, picture)
    if trace is not None:
        screen.say(f"  trace       {trace} (play it again with `shoal simulate --replay {trace}`)")
    return max(exit_for_state(answer.outcome.state) for answer in answers)


def _print_compared(found: PlanComparison, *, out: Path | None, picture: Path | None, json: bool) -> None:
    from shoal.cli import screen

    if json:
        screen.print_json(found.to_plain())
    else:
        print(found)
    if out is not None:
        found.save(out)
        screen.say(f"  results     {out}")
    if picture is not None:
        found.draw(picture)
        screen.say(f"  picture     {picture}")


def _print_profiles(*, json: bool) -> None:
    from shoal.cli import screen
    from shoal.sim.profiles import PROFILES

    if json:
        screen.print_json(PROFILES)
        return
    for name, text in PROFILES.items():
        print(f"{name:<12} {text}")


def _replay(path: Path, home: Path, *, json: bool) -> Exit:
    from shoal.cli import screen
    from shoal.cli.simulation import replay

    played = replay(path, home)
    if json:
        screen.print_json({"lines": played.lines, "identical": played.difference is None})
    elif played.difference is None:
        screen.out().print(f"Identical: all {played.lines:,} lines of {path} came out again.")
    else:
        difference = played.difference
        screen.out().print(f"It differs from {path} in line {difference.line:,}.", style="bold")
        for label, line in (("then", difference.first), ("now", difference.second)):
            screen.out().print(f"  {label:<5} {(line or 'nothing: it was over').strip()}", soft_wrap=True)
        for line in played.explained:
            screen.out().print(f"  {line}", soft_wrap=True)
    return Exit.OK if played.difference is None else Exit.FAILED


def _tell(question: Question, answers: list[SimulationAnswer], *, seconds: float, json: bool) -> None:
    from shoal.cli import screen
    from shoal.cli.render.simulated import summary

    if json:
        plans: list[dict[str, Any]] = [
            {
                "plan": answer.title,
                "topology": answer.topology,
                **answer.outcome.to_plain(),
                "examples": answer.divided.to_plain() if answer.divided is not None else None,
                "cost": {**answer.cost, "currency": answer.currency} if answer.cost else None,
            }
            for answer in answers
        ]
        screen.print_json({"question": question.header(), "seconds": round(seconds, 2), "plans": plans})
        return
    terminal = screen.out()
    for part in summary(question, answers, seconds=seconds, width=terminal.width):
        terminal.print(part)


def _draw(answers: list[SimulationAnswer], path: Path | None) -> None:
    from shoal.cli import screen
    from shoal.cli.render.picture import draw

    try:
        draw([(answer.title, answer.outcome) for answer in answers], path or Path(_PICTURE))
    except Misuse as reason:
        if path is not None:
            raise
        screen.say(f"  no picture: {reason}", style="dim")
        return
    screen.say(f"  picture     {path or _PICTURE}")
