"""`shoal nodes`: the devices of the cluster: list them, let one in, hold one back, shut one out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, Json

if TYPE_CHECKING:
    from shoal.runtime.operator import Operator
    from shoal.wire.messages import Status

app = typer.Typer(rich_markup_mode="markdown")

_Node = Annotated[str, typer.Argument(metavar="NODE", help="Its name, as `shoal nodes` shows it.")]


@app.callback(invoke_without_command=True)
def nodes(context: typer.Context, home: Home = DEFAULT_HOME, json: Json = False) -> None:
    """List the devices of the cluster: which are alive, what they work on, what they are; or change how one stands.

    Example:  `shoal nodes`
    """
    from shoal.cli.connect import status_to_list

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
def approve(node: _Node, home: Home = DEFAULT_HOME) -> None:
    """Let a newcomer work, where `shoal up --approve` makes newcomers wait.

    Example:  `shoal nodes approve attic-pi4`
    """
    _ask(home, lambda operator: operator.approve_node(node))


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
    """What a job will lack without this device; empty: nothing, or others can take its place."""
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
