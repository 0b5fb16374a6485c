"""`shoal managers`: the managers of the cluster: list them, take one out of service, take it back."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, Json, hand_home_to_subcommand

app = typer.Typer(rich_markup_mode="markdown")

_Manager = Annotated[
    str,
    typer.Argument(
        metavar="[MANAGER]",
        help="Its HOST:PORT, as `shoal managers` shows it. Without one: the manager that this machine asks.",
        show_default=False,
    ),
]


@app.callback(invoke_without_command=True)
def managers(context: typer.Context, home: Home = DEFAULT_HOME, json: Json = False) -> None:
    """List the managers of the cluster: their jobs, their devices, how they are; or take one out of service.

    Example:  `shoal managers`
    """
    if context.invoked_subcommand is not None:
        hand_home_to_subcommand(home)
        return
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.plain_json import to_plain
    from shoal.cli.render.tables import managers_table

    views = with_operator(home, lambda operator: operator.managers())
    if json:
        screen.print_json(to_plain(views))
    else:
        screen.out().print(managers_table(views))


@app.command()
def drain(
    manager: _Manager = "",
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    home: Home = DEFAULT_HOME,
) -> None:
    """Have a manager give its jobs to the others and take no more, before you update it or switch it off.

    It stays so after a restart. Loses no work.

    Example:  `shoal managers drain b.lan:7070 --reason update`
    """
    from shoal.cli import screen
    from shoal.cli.connect import with_operator

    screen.say(with_operator(home, lambda operator: operator.drain_manager(manager, reason)))


@app.command()
def undrain(manager: _Manager = "", home: Home = DEFAULT_HOME) -> None:
    """Have a drained manager take jobs again.

    Example:  `shoal managers undrain b.lan:7070`
    """
    from shoal.cli import screen
    from shoal.cli.connect import with_operator

    screen.say(with_operator(home, lambda operator: operator.undrain_manager(manager)))
