"""`shoal authority`: authorities of managers' own, which the cluster's certifies. Issues, shows and revokes them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.options import DEFAULT_HOME, Home, hand_home_to_subcommand

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)

_Name = Annotated[str, typer.Argument(metavar="NAME", help="What the manager is called, such as `east`.")]


@app.callback()
def authority(home: Home = DEFAULT_HOME) -> None:
    """Give a manager an authority of its own (`issue`), `show` what this home signs with, or `revoke` a manager's.

    Example:  `shoal authority issue east --to east-authority`
    """
    hand_home_to_subcommand(home)


@app.command()
def issue(
    name: _Name,
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder for it. It holds a key: copy it like one.")],
    days: Annotated[float, typer.Option(min=0.01, help="How long it is valid, and what it issues at most.")] = 90.0,
    home: Home = DEFAULT_HOME,
) -> None:
    """Write a new authority for one manager, so that no manager needs the key of the cluster.

    Example:  `shoal authority issue east --to east-authority`

    Run it where the cluster's own authority is kept; that may be a machine that is on no network.
    """
    from shoal.cli import screen
    from shoal.errors import Misuse
    from shoal.identity.identity import AUTHORITY_FILE, Authority
    from shoal.runtime.paths import Paths

    if to.exists():
        raise Misuse(f"{to} exists already: choose another folder")
    Authority.load(Paths(home).authority).for_manager(name, valid_days=days).save(to / AUTHORITY_FILE)
    screen.say(
        f"{to} holds the authority of the manager {name}, for {days:g} days. Move the folder to that machine as"
        " ~/.shoal/cluster/authority, and start `shoal up` there."
    )


@app.command()
def show(home: Home = DEFAULT_HOME) -> None:
    """Say what the manager of this home signs with, and until when.

    Example:  `shoal authority show`
    """
    import time

    from shoal.cli import screen
    from shoal.identity import certificates
    from shoal.identity.identity import Authority
    from shoal.runtime.paths import Paths

    found = Authority.load(Paths(home).authority)
    until_s = certificates.own_authority(found.own_pem or found.certificate_pem).expires_s
    whose = f"the manager {found.name}" if found.name else "the cluster"
    until = time.strftime("%Y-%m-%d", time.gmtime(until_s))
    screen.say(f"This home signs for {found.cluster} with the authority of {whose}, valid until {until}.")


@app.command()
def revoke(
    name: _Name,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    home: Home = DEFAULT_HOME,
) -> None:
    """Make a manager's authority void, with all that it issued. Devices that have nothing else join again.

    Example:  `shoal authority revoke east --reason stolen`

    Another manager must run the cluster at that moment.
    """
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.format import clean

    screen.say(clean(with_operator(home, lambda operator: operator.revoke_node(name, reason))))
