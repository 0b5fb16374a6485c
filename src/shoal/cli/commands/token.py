"""`shoal token`: who may join. Makes the lines to paste, lists them without their secrets, takes them back."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from shoal.cli.options import DEFAULT_HOME, Home, Json, hand_home_to_subcommand
from shoal.extras import install_command

app = typer.Typer(rich_markup_mode="markdown", no_args_is_help=True)


@app.callback()
def token(home: Home = DEFAULT_HOME) -> None:
    """Make lines to join with (`create`), `list` them, or `revoke` one.

    Example:  `shoal token create --uses 5 --hours 2`
    """
    hand_home_to_subcommand(home)


@app.command()
def create(
    role: Annotated[
        Literal["node", "operator"],
        typer.Option(help="A node works. An operator runs code on every node: give such a line to people you trust."),
    ] = "node",
    browser: Annotated[
        bool,
        typer.Option("--browser", help="Print a link, and a QR code of it, that makes a browser's tab train here."),
    ] = False,
    uses: Annotated[int, typer.Option(min=1, help="How many may join with the line.")] = 1,
    hours: Annotated[float, typer.Option(min=0.01, help="How long the line can be used.")] = 24.0,
    label: Annotated[str, typer.Option(help="What it is for, to know it by in the list.")] = "",
    pin: Annotated[
        bool,
        typer.Option(
            "--pin",
            help="Put this operator's key into the line: devices that join with it run only this operator's jobs, and"
            " take only members that it signed. See docs/sealed.md.",
        ),
    ] = False,
    home: Home = DEFAULT_HOME,
    json: Json = False,
) -> None:
    """Print a new line to join this cluster with. It is shown once: the cluster keeps a hash of its secret.

    Example:  `shoal token create --uses 5 --hours 2 --label lab`, or for a phone `shoal token create --browser`

    To a file it writes the line and nothing else:  `shoal token create > line.txt`, for `shoal join --line-file`
    """
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.format import plural
    from shoal.cli.render.plain_json import to_plain

    if browser and role != "node":
        raise typer.BadParameter("a tab of a browser works and never operates", param_hint="--browser")
    if pin and (browser or role != "node"):
        raise typer.BadParameter("only a device pins an operator's key", param_hint="--pin")
    kind = "browser" if browser else role
    made = with_operator(
        home, lambda operator: operator.make_token(role=kind, uses=uses, valid_s=hours * 3600, label=label)
    )
    if pin:
        made = dataclasses.replace(made, join_line=_pinned(made.join_line, home))
    if json:
        screen.print_json(to_plain(made))
        return
    if browser:
        screen.say(f"For {plural(uses, 'tab')}, for {hours:g} hours; shoal token revoke {made.token.token} ends it:")
        screen.say(_qr_code(made.join_line))
        print(made.join_line, flush=True)
        return
    users = plural(uses, "device" if role == "node" else "operator")
    screen.say(f"For {users}, for {hours:g} hours; take it back with: shoal token revoke {made.token.token}")
    # To a person, the command to paste; to a file or a script, the line and nothing else, as --line-file reads it.
    print(f"shoal join {made.join_line}" if sys.stdout.isatty() else made.join_line, flush=True)


def _pinned(line: str, home: Path) -> str:
    """Return the same line with this operator's key in it. The manager, which made the line, has no part in this."""
    from shoal.cli.commands.nodes import operator_key_text
    from shoal.identity.cards import parse_key
    from shoal.identity.join_code import JoinCode

    return str(dataclasses.replace(JoinCode.parse(line), operator_key=parse_key(operator_key_text(home))))


def _qr_code(link: str) -> str:
    """The link as dark and light half blocks, with the margin that cameras need. Empty without the package for it."""
    try:
        import segno
    except ImportError:
        return f"(for a QR code of it: {install_command('browser')})"
    rows = [[bool(dark) for dark in row] for row in segno.make(link, error="l").matrix_iter(border=2)]
    if len(rows) % 2:
        rows.append([False] * len(rows[0]))
    blocks = {(False, False): "█", (False, True): "▀", (True, False): "▄", (True, True): " "}
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return "\n".join("".join(blocks[above, below] for above, below in zip(*pair, strict=True)) for pair in pairs)


@app.command("list")
def list_(home: Home = DEFAULT_HOME, json: Json = False) -> None:
    """List the join lines: who may use each, how often and for how long.

    Example:  `shoal token list`
    """
    import time

    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.plain_json import to_plain
    from shoal.cli.render.tables import tokens_table

    tokens = with_operator(home, lambda operator: operator.tokens())
    if json:
        screen.print_json(to_plain(tokens))
    elif tokens:
        screen.out().print(tokens_table(tokens, now_s=time.time()))
    else:
        screen.say("Nobody can join now. Make a line with: shoal token create")


@app.command()
def revoke(
    token: Annotated[str, typer.Argument(metavar="ID", help="Its id, as `shoal token list` shows it.")],
    home: Home = DEFAULT_HOME,
) -> None:
    """Make a line useless from now on. Devices that joined with it stay: see `shoal nodes revoke`.

    Example:  `shoal token revoke 3fa2b1c0`
    """
    from shoal.cli import screen
    from shoal.cli.connect import with_operator
    from shoal.cli.render.format import clean

    screen.say(clean(with_operator(home, lambda operator: operator.revoke_token(token))))
