"""`shoal nodes`: the devices of the cluster: list them, let one in, hold one back, shut one out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, Json
from shoal.errors import Misuse

if TYPE_CHECKING:
    from shoal.runtime.operator import Operator
    from shoal.wire.messages import Status

app = typer.Typer(rich_markup_mode="markdown")

_Node = Annotated[str, typer.Argument(metavar="NODE", help="Its name, as `shoal nodes` shows it.")]


_AsFleet = Annotated[
    bool,
    typer.Option("--as-fleet", help="Print the devices as a fleet file for `shoal simulate`, as far as known."),
]


@app.callback(invoke_without_command=True)
def nodes(context: typer.Context, as_fleet: _AsFleet = False, home: Home = DEFAULT_HOME, json: Json = False) -> None:
    """List the devices of the cluster: which are alive, what they work on, what they are; or change how one stands.

    Example:  `shoal nodes`

    To simulate a job on devices like these:  `shoal nodes --as-fleet > fleet.toml`
    """
    from shoal.cli.connect import status_to_list

    if as_fleet:
        _print_fleet(context, home, json=json)
        return
    told = status_to_list(context, home, json=json, part="nodes")
    if told is None:
        return
    from shoal.cli import screen
    from shoal.cli.render.tables import executors_table, nodes_table

    if told.nodes:
        screen.out().print(nodes_table(told.nodes))
        if told.executors:
            screen.out().print(executors_table(told.executors))
    else:
        screen.say("No device has joined yet: run the line that `shoal up` printed on each one.")


def _print_fleet(context: typer.Context, home: Path, *, json: bool) -> None:
    if json or context.invoked_subcommand is not None:
        raise Misuse("--as-fleet prints TOML, of all devices: leave out --json and other commands")
    from shoal.cli.as_fleet import NodeSpeed, fleet_text, speeds_of
    from shoal.cli.connect import with_operator
    from shoal.runtime.paths import Paths
    from shoal.trainer.prepared_job import known_gmacs

    async def ask(operator: Operator) -> str:
        told = await operator.status()
        speeds: dict[str, NodeSpeed] = {}
        # What runs now wins over what ended.
        for view in sorted(told.jobs, key=lambda view: not view.state.is_ended):
            if view.progress is not None and any(worker.train_s for worker in view.progress.workers):
                spec = await operator.job_spec(view.job)
                speeds |= speeds_of(view, known_gmacs(Paths(home).prepared, spec.initial))
        return fleet_text(told.nodes, speeds, cluster=told.cluster)

    print(with_operator(home, ask), end="")


@app.command()
def revoke(
    node: _Node,
    reason: Annotated[str, typer.Option(help="Why, for the record; the device is told it too.")] = "",
    home: Home = DEFAULT_HOME,
) -> None:
    """Shut a device or an operator out, now and for good: its certificate and the line it joined with are void.

    Example:  `shoal nodes revoke attic-pi4 --reason stolen`
    """
    _ask(home, lambda operator: operator.revoke_node(node, reason))


@app.command()
def approve(
    node: _Node,
    key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="Also sign the device as a member of sealed jobs: the key that `shoal join` shows on the device. Copy"
            " it from the device's own screen: anyone else could give you another key.",
            show_default=False,
        ),
    ] = "",
    days: Annotated[float, typer.Option(min=1, help="How long the signature of --key is valid.")] = 90.0,
    home: Home = DEFAULT_HOME,
) -> None:
    """Let a newcomer work, or sign a device as a member of sealed jobs.

    Example:  `shoal nodes approve attic-pi4`, where `shoal up --approve` makes newcomers wait

    As a member of sealed jobs with `members=`:  `shoal nodes approve attic-pi4 --key abcd-…`
    """
    from shoal.identity.cards import parse_key

    # Before the cluster is asked: a wrong character should be told at once.
    public = parse_key(key) if key else b""
    if public:
        _warn_of_managers_disk(home)

    async def ask(operator: Operator) -> str:
        card = operator.sign_card(node, public, days=days) if public else b""
        return await operator.approve_node(node, card=card)

    _ask(home, ask)


@app.command("key")
def key_(home: Home = DEFAULT_HOME) -> None:
    """Print the key with which this operator signs members and jobs. Devices pin it.

    Example:  `shoal nodes key`, then on each device `shoal join --operator-key KEY`
    """
    print(operator_key_text(home))


def operator_key_text(home: Path) -> str:
    """Return this operator's public card key as devices pin it. Makes the key if there is none."""
    from shoal.cli.exits import NoCluster
    from shoal.identity.card_files import make_card_key
    from shoal.identity.cards import key_text
    from shoal.identity.identity import IDENTITY_FILE
    from shoal.runtime.paths import Paths

    folder = Paths(home).operator
    if not (folder / IDENTITY_FILE).exists():
        raise NoCluster(f"no cluster is operated from {home}: run `shoal up` here first, or name its --home")
    _warn_of_managers_disk(home)
    return key_text(make_card_key(folder).public)


def _warn_of_managers_disk(home: Path) -> None:
    """Warn if this operator's keys are on the manager's disk: then the manager can sign as this operator."""
    from shoal.cli import screen
    from shoal.runtime.paths import Paths

    if Paths(home).authority.exists():
        screen.say(
            "Warning: this operator's key is on the manager's machine, so whoever controls that machine can sign"
            " members too. Sign on another one: `shoal token create --role operator` here, `shoal join LINE` there.",
            "yellow",
        )


@app.command()
def drain(
    node: _Node,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    home: Home = DEFAULT_HOME,
) -> None:
    """Let a device finish its lease and give it no new one, before you update it or switch it off. Loses no work.

    Example:  `shoal nodes drain attic-pi4 --reason update`
    """
    from shoal.cli import screen

    short = ""

    async def ask(operator: Operator) -> str:
        nonlocal short
        told = await operator.status()
        done = await operator.drain_node(node, reason)
        short = shortage(told, node)
        return done

    _ask(home, ask)
    if short:
        screen.say(f"Warning: {short}", "yellow")


def shortage(told: Status, node: str) -> str:
    """Say what a job will lack without this device. Returns an empty string if others can take its place."""
    from shoal.cli.render.format import clean, plural

    placed = next((view.job for view in told.nodes if view.node == node), "")
    job = next((view for view in told.jobs if view.job == placed), None)
    if job is None:
        return ""
    fit = [view for view in told.nodes if view.node != node and view.state == "alive" and not view.standing]
    here = sum(view.job == placed and not view.facts.is_hub for view in fit)
    free = sum(not view.job and bool(view.facts.torch or view.facts.onnx) for view in fit)
    least = job.plan.workers_least
    if here + free >= least:
        return ""
    return f"{clean(placed)} has {here} of at least {plural(least, 'worker')} without it: it waits until there are more"


@app.command()
def label(
    node: _Node,
    labels: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Such as room=3; NAME= takes it back.")],
    home: Home = DEFAULT_HOME,
) -> None:
    """Say what a device is, for jobs that choose their devices. Your word wins over the device's own `--label`.

    Example:  `shoal nodes label attic-pi4 room=3 gpu=no`, then `shoal train TASK --where 'room in (3, 4)'`
    """
    from shoal.where import parse_labels

    # Before the cluster is asked: a wrong character should be told at once.
    parse_labels(labels)
    _ask(home, lambda operator: operator.label_node(node, tuple(labels)))


@app.command()
def undrain(node: _Node, home: Home = DEFAULT_HOME) -> None:
    """Give a drained device work again.

    Example:  `shoal nodes undrain attic-pi4`
    """
    _ask(home, lambda operator: operator.undrain_node(node))


@app.command()
def forget(node: _Node, home: Home = DEFAULT_HOME) -> None:
    """List a lost or revoked device no longer. If it comes back, it needs a new line.

    Example:  `shoal nodes forget attic-pi4`
    """
    _ask(home, lambda operator: operator.forget_node(node))


def _ask(home: Path, command: Callable[[Operator], Awaitable[str]]) -> None:
    """Have it done; say what was."""
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.format import clean

    screen.say(clean(with_operator(home, command)))
